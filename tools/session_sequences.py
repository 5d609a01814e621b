"""Random sequences of edits of all that a model reads, through a session; each run against one that starts anew.

Beside each tensor there is an array that has to have the same elements: what is compared with is made of these arrays,
so that a write that is lost, or a session that writes to what is not its own, shows. The region that `changed` of a
result says is checked, too: nothing outside of it may differ from the run before.
"""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
from session_models import Array, Model

import weft
from weft.errors import MemoryPlanError
from weft.scheduler.kernelize.uses import find_uses
from weft.sessions.session import Session, session

Index: TypeAlias = "tuple[int | slice, ...]"
Edited: TypeAlias = "tuple[Any, list[Index] | None]"
"""What is given for an argument, and the boxes that `changed=` says."""

SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0)
DRAWS = 7
"""The seed of what functions draw, set before each run."""


class WrongError(Exception):
    """A result, or a tensor of the user's, is another one than it has to be."""


class Sequence:
    """A session of a model with its arguments in two sizes, and their arrays. `memory`: its limit."""

    def __init__(self, random: Random, m: Model, memory: int | None = None) -> None:
        self.random, self.m, self.memory = random, m, memory
        self.arrays = [m.arrays(n) for n in m.rows]
        self.tensors = [m.tensors(xs) for xs in self.arrays]
        self.weights = [np.array(w.numpy()) for w in m.weights]
        self.done: list[Any] = []
        self.t = 0
        self.results: tuple[Any, ...] | None = None
        self.held: list[tuple[tuple[Any, ...], list[Array]]] = []
        self.last: dict[int, list[Array]] = {}
        self.session = self.anew(0, memory, shown=m.variable is not None or random.random() < 0.5)
        self.session._names = [f"x{k}" for k in range(len(m.kinds))]
        self.specials: bool | None = None

    def anew(self, size: int, memory: int | None = None, shown: bool = True) -> Session:
        """A session that starts anew."""
        weft.manual_seed(DRAWS)
        if not shown:
            return session(self.m, memory=memory)
        example = self.m.tensors(self.arrays[size])
        return session(self.m, *example, *([self.m.variable] if self.m.variable else []), memory=memory)

    def run(self, edits: int) -> None:
        """So many runs, with edits before each. WrongError where anything is."""
        for _ in range(edits):
            self.step()
        for results, was in self.held:
            self._compare("a result that is held", [elements(y) for y in results], was)

    def step(self) -> None:
        """Some edits, and a run."""
        size = 0 if self.random.random() < 0.8 else 1
        given, said = self._edited(size)
        self._edit_weights()
        more: list[int] = []
        if self.m.variable is not None:
            hi = self.m.variable.hi
            self.t = self.random.choice((self.t, min(self.t + 1, hi), self.random.randint(0, hi)))
            more = [self.t]
        self._between()
        was, self.results = self.results, None
        if was is not None and self.random.random() < 0.3:
            self.held.append((was, [elements(y) for y in was]))
        del was
        weft.manual_seed(DRAWS)
        try:
            self.results = self.session(*given, *more, changed=said or None)
        except MemoryPlanError:
            if self.memory is None:
                raise
            return
        self._check(size, more)

    def _check(self, size: int, more: list[int]) -> None:
        assert self.results is not None
        for tensors, arrays in (*zip(self.tensors, self.arrays, strict=True), (self.m.weights, self.weights)):
            self._compare("a tensor of the user's", [elements(x) for x in tensors], arrays)
        anew = self.anew(size, shown=bool(more))
        weft.manual_seed(DRAWS)
        wanted = [elements(y) for y in anew(*self.m.tensors(self.arrays[size]), *more)]
        self._compare("a result", [elements(y) for y in self.results], wanted)
        for a, b, y in zip(self.last.get(size, ()), wanted, self.results, strict=False):
            differs = np.array(~same_elements(a, b)) if a.shape == b.shape else np.zeros(())
            for box in y.changed.boxes:
                differs[tuple([slice(int(i.lo), int(i.hi)) for i in box])] = False
            if differs.any():
                raise WrongError(f"{y.changed} is said to have changed, and more did: {self.done}")
        self.last[size] = wanted

    def _compare(self, what: str, found: list[Array], wanted: list[Array]) -> None:
        for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
            if a.shape != b.shape or a.dtype != b.dtype or not np.all(same_elements(a, b)):
                raise WrongError(f"{what}, number {k}, after {self.done}, t = {self.t}:\n{a}\n{b}")

    def _between(self) -> None:
        """What is done between runs, now and then: another choice of what to keep, or one from a file."""
        chance = self.random.random()
        try:
            if chance < 0.04:
                self.done.append("optimize")
                self.session.optimize(0.02)
            elif chance < 0.06 and self.session._forms:
                self.done.append("save and load")
                with TemporaryDirectory() as folder:
                    self.session.save(Path(folder) / "plan.json")
                    self.session.load(Path(folder) / "plan.json")
        except MemoryPlanError:
            if self.memory is None:
                raise

    # edits ----------------------------------------------------------------------------------------------------------

    def _edited(self, size: int) -> tuple[list[Any], dict[str, list[Index]]]:
        """What is given after some edits, and what is said of them."""
        count = len(self.m.kinds)
        instead: dict[int, Any] = {}
        said: dict[str, list[Index]] = {}
        for k in self.random.sample(range(count), min(count, self.random.choice((0, 1, 1, 1, 2)))):
            kind = self.random.choice(EDITS if self.m.kinds[k] not in ("scalar", "count") else NUMBERS)
            self.done.append((size, k, kind.__name__.strip("_")))
            found, boxes = kind(self, size, k)
            if kind is _swapped:
                instead, said = {}, {}
            if found is not self.tensors[size][k]:
                instead[k] = found
                self.tensors[size][k] = (
                    found if isinstance(found, weft.Tensor) else self.m.tensor(self.arrays[size][k].copy())
                )
            if boxes is not None:
                said[f"x{k}"] = boxes
        return [instead.get(k, self.tensors[size][k]) for k in range(count)], said

    def values(self, k: int, shape: tuple[int, ...]) -> Array:
        """New elements for an argument; special ones where no mask is taken to hide only finite ones."""
        a = np.array(self.m.array(self.m.kinds[k], shape))
        if self.specials is None:
            forms = list(self.session._forms.values())
            self.specials = bool(forms) and not any(
                find_uses(f.template.order, frozenset(f.template.results)).assumed for f in forms
            )
        if a.dtype.kind == "f" and a.size and self.random.random() < 0.2:
            a.flat[self.random.randrange(a.size)] = self.random.choice(
                SPECIAL if self.specials else SPECIAL[3:]
            )
        return np.zeros_like(a) if self.random.random() < 0.05 else a

    def box(self, shape: tuple[int, ...]) -> Index:
        """A random box, not empty."""
        sides: list[slice] = []
        for n in shape:
            lo = self.random.randrange(n)
            some = slice(lo, self.random.randint(lo + 1, n))
            sides.append(some if self.random.random() < 0.7 else slice(0, n))
        return tuple(sides)

    def _edit_weights(self) -> None:
        if not self.weights or self.random.random() < 0.75:
            return
        k = self.random.randrange(len(self.weights))
        w, a = self.m.weights[k], self.weights[k]
        new = self.m.rng.standard_normal(a.shape).astype(np.float32)
        how = self.random.choice(("all", "copy", "scaled", "data", "box", "box"))
        self.done.append(("weight", k, how))
        if how == "box":
            at = self.box(a.shape)
            a[at], w[at] = new[at], self.m.tensor(new[at])
            return
        a[...] = a * 2 if how == "scaled" else new
        if how == "all":
            w[...] = self.m.tensor(new)
        elif how == "copy":
            w.copy_(self.m.tensor(new))
        elif how == "data":
            w.data = self.m.tensor(new)
        else:
            w.mul_(2)


def elements(t: weft.Tensor) -> Array:
    """A copy of a tensor's elements; those of bfloat16 as integers."""
    t = t.detach()
    return np.array((t.view(weft.int16) if t.dtype is weft.bfloat16 else t).numpy())


def same_elements(a: Array, b: Array) -> Any:
    """Where two arrays of one shape have the same bits, but for the bits of NaN."""
    if a.dtype.kind in "biu":
        return a == b
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    return ((a != a) & (b != b)) | (
        np.ascontiguousarray(a).view(unsigned) == np.ascontiguousarray(b).view(unsigned)
    )


# kinds of edits: (sequence, size, number of the argument) -> what is given, and the boxes that are said --------------


def _nothing(s: Sequence, size: int, k: int) -> Edited:
    return s.tensors[size][k], None


def _equal(s: Sequence, size: int, k: int) -> Edited:
    a = s.arrays[size][k]
    return (a.copy() if s.random.random() < 0.5 else s.m.tensor(a.copy())), None


def _boxes(s: Sequence, size: int, k: int) -> Edited:
    """Writes of boxes, elements and rows, of which some are computed meanwhile, or written again."""
    a, x = s.arrays[size][k], s.tensors[size][k]
    for _ in range(s.random.randint(1, 5)):
        kind = s.random.choice(("box", "element", "row"))
        if kind == "element":
            at: Index = tuple([s.random.randrange(n) for n in a.shape])
        else:
            at = s.box(a.shape) if kind == "box" else (s.random.randrange(a.shape[0]),)
        new = np.array(a[at]) if s.random.random() < 0.1 else s.values(k, np.shape(a[at]))
        a[at], x[at] = new, s.m.tensor(new)
        if s.random.random() < 0.2:
            x.numpy()
    return x, None


def _all(s: Sequence, size: int, k: int) -> Edited:
    a, x = s.arrays[size][k], s.tensors[size][k]
    new = s.values(k, a.shape)
    a[...] = new
    how = s.random.choice(("set", "copy", "array", "tensor"))
    if how == "set":
        x[...] = s.m.tensor(new)
    elif how == "copy":
        x.copy_(s.m.tensor(new))
    return (x if how in ("set", "copy") else new if how == "array" else s.m.tensor(new)), None


def _fresh(s: Sequence, size: int, k: int) -> Edited:
    """An array, in several layouts, or a tensor, that differs in some boxes, which may be said, and more than these."""
    a = s.arrays[size][k]
    boxes = [s.box(a.shape) for _ in range(s.random.randint(1, 4))]
    for at in boxes:
        a[at] = s.values(k, a[at].shape)
    how = s.random.choice(("array", "tensor", "order", "reversed", "swapped bytes"))
    given: Any = a.copy()
    if how == "tensor":
        given = s.m.tensor(given)
    elif how == "order":
        given = np.asfortranarray(given)
    elif how == "reversed":
        given = a[::-1].copy()[::-1]
    elif how == "swapped bytes":
        given = a.astype(a.dtype.newbyteorder())
    if s.random.random() < 0.7:
        return given, None
    return given, [*boxes, *([s.box(a.shape)] if s.random.random() < 0.3 else [])]


def _strided(s: Sequence, size: int, k: int) -> Edited:
    a, x = s.arrays[size][k], s.tensors[size][k]
    axis = s.random.randrange(a.ndim)
    at = (
        *[slice(None)] * axis,
        slice(s.random.randrange(min(2, a.shape[axis])), None, s.random.choice((2, 3))),
    )
    new = s.values(k, a[at].shape)
    a[at], x[at] = new, s.m.tensor(new)
    return x, None


def _view(s: Sequence, size: int, k: int) -> Edited:
    a, x = s.arrays[size][k], s.tensors[size][k]
    i = s.random.randrange(a.shape[0])
    new = s.values(k, a.shape[1:])
    view = x[i]
    if s.random.random() < 0.5:
        view.copy_(s.m.tensor(new))
    else:
        view[...] = s.m.tensor(new)
    a[i] = new
    return x, None


def _in_place(s: Sequence, size: int, k: int) -> Edited:
    a, x = s.arrays[size][k], s.tensors[size][k]
    if a.dtype.kind == "f":
        x.mul_(2)
        a *= 2
    elif a.dtype.kind == "i":
        x.add_(1)
        a += 1
    return x, None


def _indexed(s: Sequence, size: int, k: int) -> Edited:
    """Writes by a mask, or by rows."""
    a, x = s.arrays[size][k], s.tensors[size][k]
    if s.random.random() < 0.5:
        mask, new = s.m.rng.random(a.shape) < 0.4, s.values(k, ())
        a[mask], x[s.m.tensor(mask)] = new, new.item()
        return x, None
    at = s.m.rng.permutation(a.shape[0])[: s.random.randint(1, a.shape[0])].astype(np.int64)
    new = s.values(k, (len(at), *a.shape[1:]))
    a[at], x[s.m.tensor(at)] = new, s.m.tensor(new)
    return x, None


def _empty(s: Sequence, size: int, k: int) -> Edited:
    x = s.tensors[size][k]
    x[s.random.choice((slice(0, 0), slice(0, 0, 3)))] = 1
    return x, None


def _moved(s: Sequence, size: int, k: int) -> Edited:
    """A write of what another row has, computed by nobody yet."""
    a, x = s.arrays[size][k], s.tensors[size][k]
    i, j = (s.random.randrange(a.shape[0]) for _ in range(2))
    x[i] = x[j] * 1
    a[i] = a[j]
    return x, None


def _swapped(s: Sequence, size: int, k: int) -> Edited:
    """Two arguments of one kind change places."""
    arrays, tensors = s.arrays[size], s.tensors[size]
    for j in range(len(arrays)):
        if j != k and s.m.kinds[j] == s.m.kinds[k]:
            arrays[k], arrays[j] = arrays[j], arrays[k]
            tensors[k], tensors[j] = tensors[j], tensors[k]
    return tensors[k], None


def _result(s: Sequence, size: int, k: int) -> Edited:
    """A result of the last run is written, or given."""
    a, x = s.arrays[size][k], s.tensors[size][k]
    for y in s.results or ():
        if tuple(y.shape) != a.shape or y.dtype is not x.dtype:
            continue
        a[...] = elements(y)
        if s.random.random() < 0.5:
            x[...] = y
            return x, None
        s.held = [h for h in s.held if h[0] is not s.results]
        s.results = None  # it is an argument from here on, and may be written to
        return y, None
    return x, None


def _number(s: Sequence, size: int, k: int) -> Edited:
    """A number of Python for a tensor without dimensions, where an example shows one."""
    a = s.arrays[size][k]
    a[...] = s.values(k, ())
    return (a.item() if s.session._example else a.copy()), None


NUMBERS = (_nothing, _equal, _all, _in_place, _result, _number)
EDITS = (
    _nothing, _equal, _boxes, _boxes, _boxes, _all, _fresh, _fresh, _strided, _view, _in_place, _indexed, _empty,
    _moved, _swapped, _result,
)  # fmt: skip
