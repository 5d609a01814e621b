"""Sessions: a function's last values are kept, and a run computes what its changed inputs can reach."""

from __future__ import annotations

import inspect
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import index, is_
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from weft.autograd.context import context, default_device
from weft.autograd.value import Value
from weft.core.args.handle import Handle, describe, wrap_untracked
from weft.core.args.modes import numerics
from weft.core.args.structure import Key, flatten
from weft.core.execute import run, tracing
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError
from weft.ir import dtypes
from weft.ir.index import Var
from weft.ir.regions.boxes import Interval
from weft.ir.regions.region import NOTHING, Region
from weft.sessions.check import Deviation, checked
from weft.sessions.explain import SessionExplanation, Stats, explained, statistics
from weft.sessions.form import Form
from weft.sessions.inputs import Array, OtherKindError
from weft.sessions.pool import MemoryPool, Turns
from weft.sessions.recorded import recorded

FORMS_KEPT = 8
"""Structures of arguments whose graphs, plans and values a session keeps; the least recently used goes first."""

Box: TypeAlias = "Sequence[int | slice]"
"""A box as an index: an integer or a slice of step 1 for each of the first axes."""


def session(
    fn: Callable[..., Any],
    *example: Any,
    exact: bool = True,
    memory: int | None = None,
    pool: MemoryPool | None = None,
    plan: str | os.PathLike[str] | None = None,
) -> Session:
    """A function of tensors, or a module, to be run again and again while most of its input stays as it was.

        s = weft.session(model, ids)
        y = s(ids)                # the first run computes everything
        ids[0, t] = token         # a write through weft: its box is known, nothing is compared
        y = s(ids)                # computes what position t can reach
        y = s(array)              # a NumPy array or a fresh tensor: compared with the last one
        y = s(array, changed={"ids": [(0, slice(t, t + 1))]})   # or the caller says what differs

    The function is recorded once for each structure of its arguments (shapes, dtypes, Python values; `example` has that
    done at once). What kernels store on the way is kept; so are the last values of arguments. Tensors that the function
    uses without being given them are read at every run, and a change of them is a change like any other. Results are
    the caller's, and require no grad; `y.changed` is the region of a result that may differ from the last run. Where a
    module that it reads has another parameter, child, hook or attribute than then, or a name in its code stands for
    something else (as for `weft.compile`), it is recorded again.

    With `exact` every run gives the bits that a session which starts anew gives: it computes as in
    `weft.numerics("same")`. Random numbers are drawn once, and stay. ArgumentError for a function that reads values of
    tensors, or writes to tensors that it did not make. One thread runs at a time, and others wait; a call within a run,
    by a handler of a signal, is refused.
    """
    if not callable(fn):
        raise DTypeError(f"session: expected a function, got {describe(fn)}")
    if memory is not None:
        memory = _bytes(memory)
        if pool is not None:
            raise ArgumentError(
                "session: takes memory= or pool=, not both: a pool has a limit for all its sessions"
            )
        pool = MemoryPool(memory)
    if plan is not None and not example:
        raise ArgumentError(
            "session: a plan is for arguments of some shapes; give an example of them with plan="
        )
    made = Session(fn, example, exact, pool)
    if plan is not None:
        made.load(plan)
    return made


def _bytes(memory: Any) -> int:
    """A number of bytes. DTypeError for what is no integer."""
    try:
        if not isinstance(memory, bool):
            return index(memory)
    except TypeError:
        pass
    raise DTypeError(f"session: memory= is a number of bytes, got {describe(memory)}")


class Session:
    """A function whose last values are kept; see `session`."""

    def __init__(
        self, fn: Callable[..., Any], example: tuple[Any, ...], exact: bool, pool: MemoryPool | None = None
    ) -> None:
        self.fn, self.exact, self.pool = fn, exact, pool
        self._mode: Callable[[], AbstractContextManager[object]] = (
            partial(numerics, "same") if exact else nullcontext
        )
        self._forms: OrderedDict[Key, Form] = OrderedDict()
        self._turns = Turns() if pool is None else pool.turns
        self._example = example
        self._warned = False
        self._names = _parameters(fn)
        self._shown = dict(zip(self._names, example, strict=False))
        if example:
            self._form(_Call(example, {}, example, {}))

    def __call__(self, *args: Any, changed: Mapping[str, Sequence[Box]] | None = None, **kwargs: Any) -> Any:
        """The function's result. `changed` names arguments, and boxes that hold all that differs from the last run."""
        if tracing.current() is not None:
            raise ArgumentError("session: is called by a function that is traced; call it outside")
        return self._turns.take(lambda: self._run(_Call(args, kwargs, self._example, self._shown), changed))

    def _run(self, call: _Call, changed: Mapping[str, Sequence[Box]] | None) -> Any:
        form = self._form(call)
        said = self._said(call, changed) if changed else {}
        try:
            return form.run(call.tensors, call.arrays, said, call.numbers)
        except OtherKindError:
            del self._forms[call.key]
            return self._form(call).run(call.tensors, call.arrays, said, call.numbers)

    def optimize(self, seconds: float = 10.0) -> None:
        """Choose what to keep anew, from what the runs so far were like: what was needed again and again is kept, what
        no run needed is not. The last runs are done again with both choices, and what was there stays where it is
        faster; without a limit, half of the bytes are worth a tenth of the time. The search may be interrupted, and
        takes `seconds`, besides planning and two runs of everything. The next run computes everything."""
        self._turns.take(lambda: [form.choose(seconds, chosen=True) for form in self._forms.values()])

    def load(self, path: str | os.PathLike[str]) -> None:
        """Keep what a plan file says for the arguments of the example, or of the last call. FileError where there is no
        file, FileFormatError where it is damaged, or of another function or device."""
        self._turns.take(lambda: self._last("load a plan for").load(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what the session keeps for the arguments of the last call to a plan file, for `weft.session(plan=)`. It
        has no values of tensors. FileError where it cannot be written."""
        self._turns.take(lambda: self._last("save").save(path))

    def check(
        self, references: Sequence[tuple[Any, Any]], *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> Deviation | None:
        """The first value that is another one than its reference, or None: runs on pairs (inputs, outputs) in their
        order, so that each but the first is computed from what the last one left. `inputs` is a tensor or a tuple of
        arguments; `outputs` has the structure of the result, or is a dict from names of modules to their outputs, ""
        being the result."""
        return checked(self, self.fn, references, atol, rtol)

    def stats(self) -> Stats:
        """The runs of the session so far, by what they had to compute, and the bytes that it takes."""
        limit = None if self.pool is None else self.pool.nbytes
        return self._turns.take(lambda: statistics(list(self._forms.values()), limit))

    def explain(self) -> SessionExplanation:
        """The values kept for the last arguments, those that are not, and what each class of changes so far reaches and
        computes. ArgumentError where the session has not been run."""
        return self._turns.take(lambda: explained(self._last("explain")))

    def __repr__(self) -> str:
        return f"<weft.session of {getattr(self.fn, '__qualname__', type(self.fn).__name__)}>"

    def _last(self, what: str) -> Form:
        """The form of the last call."""
        if not self._forms:
            raise ArgumentError(
                f"session: there is nothing to {what} before the first run; give it an example"
            )
        return next(reversed(self._forms.values()))

    def _form(self, call: _Call) -> Form:
        """The form for the structure of a call, recorded if it is new."""
        form = self._forms.get(call.key)
        if form is None or not form.template.modules.are_as_they_were():
            with self._mode():
                template = recorded(self.fn, call.args, call.kwargs, call.tensors, call.variables)
            form = Form(template, self._mode, self.pool)
            self._watch_growth(call)
            self._forms[call.key] = form
            while len(self._forms) > FORMS_KEPT:
                self._forms.popitem(last=False)
        self._forms.move_to_end(call.key)
        return form

    def _watch_growth(self, call: _Call) -> None:
        """Warn once where arguments have other shapes, or Python values, in each call."""
        if len(self._forms) + 1 < FORMS_KEPT or call.key in self._forms or self._warned:
            return
        self._warned = True
        change = _other_size(next(reversed(self._forms)), call.key)
        if change is None:
            what = "Python values that change from call to call are recorded each time: pass them as tensors"
        else:
            names = (n for n, x in self._given(call) if x is call.tensors[change.tensor])
            what = (
                f"{next(names, 'an argument')} had {change.before} elements along axis {change.axis}, "
                f"now {change.now}, and each shape is computed from nothing: take a buffer of full length, write to "
                "it, and give a weft.Variable for how far it is filled"
            )
        warnings.warn(f"weft.session: recorded {FORMS_KEPT} times; {what}", stacklevel=7)

    def _given(self, call: _Call) -> list[tuple[str, Any]]:
        """The arguments of a call by name, as far as they have names."""
        return [*zip(self._names, call.args, strict=False), *call.kwargs.items()]

    def _said(self, call: _Call, changed: Mapping[str, Sequence[Box]]) -> dict[int, Region]:
        """The regions that the caller says have changed, by number."""
        found: dict[int, Region] = {}
        if not _is(changed, Mapping):
            raise DTypeError(
                f"session: changed= is a dict from names of arguments to lists of boxes, got {describe(changed)}"
            )
        given = dict(self._given(call))
        for name, boxes in changed.items():
            t = given.get(name)
            if not isinstance(t, Handle):
                known = ", ".join(n for n, x in given.items() if isinstance(x, Handle))
                raise ArgumentError(
                    f"session: changed= names {name!r}; the tensors are {known or 'not named'}"
                )
            number = next(k for k, x in enumerate(call.tensors) if x is t)
            found[number] = found.get(number, NOTHING) | _region(boxes, t.value.shape, name)
        return found


def _parameters(fn: Callable[..., Any]) -> list[str]:
    """The names of a function's positional parameters, as far as it tells; of a module, those of `forward`."""
    try:
        found = inspect.signature(getattr(fn, "forward", fn)).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


class _OtherSize(NamedTuple):
    """A tensor, by number, that has another number of elements along an axis."""

    tensor: int
    axis: int
    before: int
    now: int


def _other_size(before: Any, now: Any) -> _OtherSize | None:
    """The first size in which the keys of two calls differ; None where they differ in something else."""
    for k, (old, new) in enumerate(zip(before[1], now[1], strict=False)):
        for axis, (a, b) in enumerate(zip(old[0], new[0], strict=False)):
            if a != b:
                return _OtherSize(k, axis, a, b)
    return None


def _region(boxes: Sequence[Box], shape: Sequence[Any], name: str) -> Region:
    """Boxes as indices, of a tensor of this shape. ArgumentError for what is no box within it."""
    found: list[tuple[Interval, ...]] = []
    if not _is(boxes, Sequence) or not all(_is(box, Sequence) for box in boxes):
        raise DTypeError(
            f"session: changed={{{name!r}: ...}} is a list of boxes, and a box a tuple with an integer or a slice for "
            f"each of the first axes, as [(0, slice(2, 4))]; got {boxes!r}"
        )
    for box in boxes:
        if len(box) > len(shape):
            raise ArgumentError(
                f"session: changed={{{name!r}: ...}} has a box {box} of a tensor of shape {tuple(shape)}"
            )
        sides: list[Interval] = []
        for i, n in zip((*box, *[slice(None)] * (len(shape) - len(box))), shape, strict=True):
            try:
                at = i if isinstance(i, slice) else slice(index(i), index(i) + 1 or None)
                lo, hi, step = at.indices(n)
            except TypeError:
                raise DTypeError(
                    f"session: changed={{{name!r}: ...}} has {i!r} in a box; it takes integers and slices of these"
                ) from None
            if step != 1 or (not isinstance(i, slice) and not -n <= i < n):
                raise ArgumentError(
                    f"session: changed={{{name!r}: ...}} has {i} for an axis of {n}; use slices of step 1"
                )
            sides.append(Interval(lo, hi))
        found.append(tuple(sides))
    return Region.of(found)


def _is(x: object, kind: type) -> bool:
    """True for an instance of a class, also where annotations say that it is one."""
    return isinstance(x, kind)


class _Call:
    """A call's arguments with arrays as tensors, which are copied where they are needed only, and their structure."""

    __slots__ = ("args", "arrays", "key", "kwargs", "numbers", "tensors", "variables")

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        example: tuple[Any, ...],
        names: Mapping[str, Any],
    ) -> None:
        behind: dict[int, Array] = {}
        self.numbers: dict[Var, int] = {}
        self.variables = [v for v in example if isinstance(v, Var)]
        shown = (*example, *[None] * (len(args) - len(example)))
        self.args = tuple([self._given(a, x, behind) for a, x in zip(args, shown, strict=False)])
        self.kwargs = {k: self._given(a, names.get(k), behind) for k, a in kwargs.items()}
        if len(self.numbers) < len(self.variables) and args is not example:
            left = ", ".join(v.name for v in self.variables if v not in self.numbers)
            raise ArgumentError(
                f"session: {left} needs a number in each call, as the example has a Variable there"
            )
        self.tensors: list[Tensor] = []
        structure = flatten((self.args, self.kwargs), self.tensors, {})
        here = default_device()
        specs = [(t.value.shape, t.value.dtype, t.value.node.device or here) for t in self.tensors]
        self.key: Key = (structure, tuple(specs), context().casts, here)
        self.arrays = {k: behind[id(t)] for k, t in enumerate(self.tensors) if id(t) in behind}

    def _given(self, x: Any, shown: Any, behind: dict[int, Array]) -> Any:
        """An argument in the form of the example: a number as a Variable or a tensor, where it shows one."""
        if isinstance(shown, Var):
            if x is not shown:
                self.numbers[shown] = _in_bounds(x, shown)
            return shown
        if isinstance(shown, Handle) and isinstance(x, bool | int | float) and not shown.value.shape:
            x = np.asarray(x, dtypes.to_numpy(shown.value.dtype))
        return _tensor(x, behind)


def _in_bounds(x: Any, v: Var) -> int:
    """The integer given for a runtime variable."""
    try:
        n = v.lo - 1 if isinstance(x, bool) else index(x)
    except TypeError:
        raise DTypeError(f"session: expected an integer for {v.name}, got {describe(x)}") from None
    if not v.lo <= n <= v.hi:
        raise ArgumentError(f"session: {v.name} is from {v.lo} to {v.hi}, got {x}")
    return n


def _tensor(x: Any, behind: dict[int, Array]) -> Any:
    """A tensor for an array, which is noted, also in lists, tuples and dicts; anything else as it is."""
    if not isinstance(x, np.ndarray):
        return _tensors(x, behind)
    given = cast("Array", x)
    try:
        dtype = dtypes.from_numpy(given.dtype)
    except KeyError:
        raise DTypeError(f"session: no tensor holds the elements of an array of {given.dtype}") from None
    array: Array = np.ascontiguousarray(given, given.dtype.newbyteorder("=")).reshape(given.shape)
    leaf = run.deferred(array.shape, dtype, default_device(), lambda: array.reshape(-1).view(np.uint8).data)
    t = wrap_untracked(Value(leaf))
    behind[id(t)] = array
    return t


def _tensors(tree: Any, behind: dict[int, Array]) -> Any:
    """A list, tuple or dict with tensors for the arrays in it: itself where there are none."""
    make: Callable[[Any], Any] = tree.__class__
    if make not in _CONTAINERS:
        return tree
    is_named = hasattr(tree, "values")
    given: Any = tree.values() if is_named else tree
    made: Any = [_tensor(x, behind) for x in given]
    if all(map(is_, made, given)):
        return tree
    return make(zip(tree, made, strict=True) if is_named else made)


_CONTAINERS: frozenset[Any] = frozenset((tuple, list, dict))
