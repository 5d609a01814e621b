"""Campaigns against sessions: random programs, edits and limits; each result against a session that starts anew.

    python tools/session_campaigns.py edits --sequences 10000                    # on cpu:0
    python tools/session_campaigns.py edits --sequences 1000 --device dummy:0    # every access is checked
    python tools/session_campaigns.py models --sequences 10000                   # layers as users write them
    python tools/session_campaigns.py limits --pairs 10000                       # on a device that counts bytes
    python tools/session_campaigns.py files                                      # every byte of a plan file

`edits`: programs of random ops, and nets of attention and wide maps of which one row is asked for, are run through
sequences of edits: none, one element, boxes, several inputs, all, fresh arrays, equal arrays, results that are held.
`models`: functions of layers (`session_models.py`) with captured weights, in two sizes, with and without a limit, with
edits of all kinds (`session_sequences.py`).
`limits`: each program is run in limits between the least that a refusal names and what it takes without one; the peak
of allocations has to be what was planned, and less than the least has to be refused. `files`: each byte is changed to
several others; the file has to be refused, or harmless. The exit status is 1 where any bit differs, any limit is
overrun, or anything else is raised.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from session_models import Model, random_model
from session_sequences import DRAWS, Sequence

import weft
from weft.autograd.value import Value
from weft.backends.dummy.device import DummyBackend
from weft.backends.registry import open_device, register, unregister
from weft.core.args.handle import wrap_untracked
from weft.errors import FileFormatError, MemoryPlanError
from weft.ir.dtypes import float32, int32
from weft.ir.graph import Node
from weft.ir.ops import Op
from weft.sessions.session import Session, session
from weft.testing.programs import GraphProgram
from weft.testing.strategies import programs

Function = Callable[..., Any]
Array = np.ndarray[Any, Any]
Each = Callable[["Campaign", argparse.Namespace, "GraphProgram | None", Random], None]

MOST_EDITS = 6
SEQUENCES_EACH = 8
LIMITS_EACH = 8
ROOMY = 1 << 28
COUNTED = "counted"
"""The name of the backend on which bytes are counted."""


class Campaign:
    """Counts of what was done, and of what went wrong, which is printed as it comes."""

    def __init__(self) -> None:
        self.done = Counter[str]()
        self.wrong = Counter[str]()
        self.start = time.monotonic()

    def report(self, kind: str, what: object) -> None:
        """Something is wrong."""
        self.wrong[kind] += 1
        if self.wrong[kind] <= 20:
            print(f"WRONG {kind}: {what}", flush=True)

    def __str__(self) -> str:
        done, wrong = (", ".join(f"{n} {k}" for k, n in sorted(c.items())) for c in (self.done, self.wrong))
        return f"{time.monotonic() - self.start:7.0f} s: {done}; wrong: {wrong or 'nothing'}"


def same_bits(a: Array, b: Array) -> bool:
    """Equal to the bit, but for the bits of NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    nan = (a != a) & (b != b)
    return bool(np.all(nan | (bits(a) == bits(b))))


def bits(a: Array) -> Array:
    """The elements as numbers of as many bits."""
    return a if a.dtype.kind in "biu" else np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}")


def function_of(p: GraphProgram) -> Function:
    """A program as a function of tensors."""

    def f(*xs: weft.Tensor) -> tuple[weft.Tensor, ...]:
        left = iter(xs)

        def leaf(_: Array) -> Node:
            return next(left).value.node

        return tuple([wrap_untracked(Value(n)) for n in p.build(leaf)])

    return f


def net(random: Random, device: str) -> tuple[Function, list[Array], Any]:
    """Rows of attention with wide maps between, one row of the result, and where it is."""
    rng = np.random.default_rng(random.getrandbits(32))
    rows, width, depth = random.choice((5, 8, 13, 24)), random.choice((3, 4, 8, 16)), random.randint(1, 3)

    def floats(*shape: int) -> weft.Tensor:
        return weft.tensor((rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32), device=device)

    wide = width * random.choice((2, 4))
    weights = [(floats(width, width), floats(width, wide), floats(wide, width)) for _ in range(depth)]
    before = weft.tensor(np.tril(np.ones((rows, rows), bool)), device=device)
    row_only, mask = random.random() < 0.7, random.choice((-float("inf"), -1e30))

    def f(x: weft.Tensor, t: Any) -> Any:
        for w, up, down in weights:
            k = x @ w
            x = weft.where(before, x @ k.transpose(0, 1), mask).softmax(-1) @ k + x
            x = x + (x @ up).relu() @ down
        return x[t] if row_only else (x, x[t])

    return f, [rng.standard_normal((rows, width)).astype(np.float32)], weft.Variable("t", 0, rows - 1)


def edit(random: Random, x: weft.Tensor) -> weft.Tensor | Array:
    """The tensor after a random edit, or what is to be given instead of it."""
    shape = cast("tuple[int, ...]", x.shape)
    kind = random.choice(("none", "element", "box", "boxes", "all", "array", "equal", "tensor"))
    if kind == "none" or 0 in shape:
        return x
    old = x.numpy()
    if kind == "equal":
        return old.copy()
    if kind == "all":
        x[...] = other(random, old)
        return x
    if kind in ("array", "tensor"):
        new = old.copy()
        for _ in range(random.randint(1, 3)):
            at = box(random, shape)
            new[at] = other(random, old[at])
        return new if kind == "array" else weft.tensor(new, device=x.device)
    for _ in range(random.randint(2, 3) if kind == "boxes" else 1):
        at = tuple([random.randrange(n) for n in shape]) if kind == "element" else box(random, shape)
        x[at] = other(random, np.asarray(old[at]))
    return x


def box(random: Random, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """A random box of a shape, not empty."""
    sides: list[slice] = []
    for n in shape:
        lo = random.randrange(n)
        sides.append(slice(lo, random.randint(lo + 1, n)) if random.random() < 0.7 else slice(0, n))
    return tuple(sides)


def other(random: Random, old: Array) -> Array:
    """Other values of that shape and dtype."""
    rng = np.random.default_rng(random.getrandbits(32))
    if old.dtype.kind == "b":
        return rng.random(old.shape) < 0.5
    if old.dtype.kind in "iu":
        return rng.integers(0, 5, old.shape).astype(old.dtype)
    return rng.standard_normal(old.shape).astype(old.dtype)


def outputs(y: Any) -> list[Array]:
    """Copies of a session's results."""
    return [t.numpy().copy() for t in (y if isinstance(y, tuple) else (y,))]


class Edited:
    """Sequences of edits of one function through sessions."""

    def __init__(self, c: Campaign, f: Function, arrays: list[Array], variable: Any, device: str) -> None:
        self.c, self.f, self.arrays, self.variable, self.device = c, f, arrays, variable, device

    def session(self, memory: int | None = None) -> Session:
        """A session that starts anew."""
        if self.variable is None:
            return session(self.f, memory=memory)
        return session(self.f, *self.tensors(), self.variable, memory=memory)

    def tensors(self) -> list[weft.Tensor]:
        return [weft.tensor(a, device=self.device) for a in self.arrays]

    def sequence(self, random: Random, s: Session, edits: int, what: str) -> None:
        """A run, edits each with a run after it; each against a session that starts anew."""
        given: list[Any] = self.tensors()
        held: list[Any] = []
        for k in range(edits + 1):
            now = list(given)
            if k:
                for i in random.sample(range(len(given)), min(len(given), random.randint(1, 2))):
                    now[i] = edit(random, given[i])
                    if isinstance(now[i], weft.Tensor):
                        given[i] = now[i]
            n = random.randrange(now[0].shape[0]) if self.variable is not None else 0
            more = (n,) if self.variable is not None else ()
            y = s(*now, *more)
            if random.random() < 0.3:
                held.append((y, outputs(y)))
            found, wanted = outputs(y), outputs(self.session()(*now, *more))
            self.c.done["runs"] += 1
            for a, b in zip(found, wanted, strict=True):
                if not same_bits(a, b):
                    both = np.isfinite(a.astype(np.float64)) & np.isfinite(b.astype(np.float64))
                    kind = "bits" if np.any((bits(a) != bits(b)) & both) else "values that are not finite"
                    self.c.report(kind, f"{what} edit {k}\n{a}\n{b}")
                    return
        for y, was in held:
            if not all(same_bits(a, b) for a, b in zip(outputs(y), was, strict=True)):
                self.c.report("held results", what)


def guarded(c: Campaign, what: object, do: Callable[[], None]) -> None:
    """Do, and report what is raised."""
    try:
        do()
    except KeyboardInterrupt:
        raise
    except Exception as error:  # of any kind: that is what is looked for
        c.report(type(error).__name__, f"{error}\n{what}\n{traceback.format_exc()}")


def edited(c: Campaign, given: argparse.Namespace, p: GraphProgram | None, random: Random) -> Edited | None:
    """A program, or a net; None for one with several devices, nothing given, or values that are not finite."""
    if p is None:
        return Edited(c, *net(random, given.device), given.device)
    finite = all(np.isfinite(a.astype(np.float64)).all() for a in p.leaves)
    if not p.leaves or not finite or any(step.op is Op.COPY for step in p.steps):
        return None
    return Edited(c, function_of(p), list(p.leaves), None, given.device)


def edits_of(c: Campaign, given: argparse.Namespace, p: GraphProgram | None, random: Random) -> None:
    """Some sequences of edits of one program, or of a net."""
    e = edited(c, given, p, random)
    if e is None:
        return
    c.done["programs"] += 1
    for _ in range(SEQUENCES_EACH):
        c.done["sequences"] += 1
        guarded(c, p, lambda: e.sequence(random, e.session(), random.randint(1, MOST_EDITS), repr(p)))


def least(e: Edited) -> int | None:
    """The least limit that a refusal names; None where there is no lower limit."""
    try:
        e.session(memory=1)(*e.tensors(), *((0,) if e.variable is not None else ()))
    except MemoryPlanError as refused:
        return int(str(refused).split("at least ")[1].split(" bytes")[0].replace(",", ""))
    return None


def limits_of(c: Campaign, given: argparse.Namespace, p: GraphProgram | None, random: Random) -> None:
    """Some limits of one program, or of a net."""
    e = edited(c, given, p, random)
    if e is None:
        return
    roomy = e.session(memory=ROOMY)
    roomy(*e.tensors(), *((0,) if e.variable is not None else ()))
    most, few = roomy.stats().planned_bytes, least(e)
    if few is None:
        return
    c.done["programs"] += 1
    for k in range(LIMITS_EACH):
        limit = few - 1 if k == 0 else random.randint(few, max(few, 2 * most))
        c.done["pairs"] += 1
        guarded(c, p, lambda limit=limit: within(e, random, limit, limit < few, repr(p)))


def within(e: Edited, random: Random, limit: int, is_refused: bool, what: str) -> None:
    """A sequence in a limit, with its peak counted, or its refusal."""
    s = e.session(memory=limit)
    if is_refused:
        try:
            s(*e.tensors(), *((0,) if e.variable is not None else ()))
        except MemoryPlanError:
            e.c.done["refused"] += 1
            return
        e.c.report("not refused", f"{limit}: {what}")
        return
    e.sequence(random, s, 2, f"limit {limit} {what}")
    planned = s.stats().planned_bytes
    if planned > limit:
        e.c.report("overrun", f"{planned} planned in {limit}: {s.stats()} {what}")
    device: Any = open_device(e.device)
    xs: list[Any] = e.tensors()
    more = (0,) if e.variable is not None else ()
    s(*xs, *more)
    (form,) = s._forms.values()  # pyright: ignore[reportPrivateUsage]
    form.release()
    gc.collect()
    before = device.pool.peak_bytes = device.pool.used_bytes
    y = s(*xs, *more)
    peak, planned = device.pool.peak_bytes - before, s.stats().planned_bytes
    del y
    if peak > planned:
        e.c.report("peak", f"{peak} for {planned} planned, limit {limit}: {what}")
    e.c.done["exact peaks" if peak == planned else "peaks below"] += 1


def walk(c: Campaign, given: argparse.Namespace, each: Each, unit: str, most: int) -> None:
    """Programs until so many units are done."""
    strategy = programs(given.steps, (float32, int32))
    turn, shown = given.seed, 0.0
    while c.done[unit] < most:

        @seed(turn)
        @settings(
            max_examples=20, database=None, deadline=None, phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given_programs(strategy)
        def some(p: GraphProgram, random: Random) -> None:
            if c.done[unit] < most:
                guarded(c, p, lambda: each(c, given, None if random.random() < given.nets else p, random))

        some()
        turn += 1
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            print(c, flush=True)


def given_programs(strategy: st.SearchStrategy[GraphProgram]) -> Callable[..., Any]:
    """The arguments of each turn."""
    return given(strategy, st.randoms(use_true_random=False))


def files(c: Campaign) -> None:
    """A plan file with any one byte changed is refused, or harmless: run beside the right one."""
    f, (x,), t = net(Random(1), "cpu:0")
    xs = weft.tensor(x)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        s = session(f, xs, t)
        for n in (0, 1, 2, 1):
            xs[n] = float(n)
            s(xs, n)
        s.save(path)
        data, wanted = path.read_bytes(), outputs(s(xs, 1))
        c.done["bytes"] = len(data)
        for at in range(len(data)):
            for new in {0, 9, 32, 48, 49, 57, 44, 34, 125, 255, data[at] ^ 1, data[at] ^ 128} - {data[at]}:
                path.write_bytes(data[:at] + bytes([new]) + data[at + 1 :])
                c.done["files"] += 1
                guarded(c, f"byte {at}: {new}", lambda: loaded(c, f, xs, t, path, wanted))
            if at % 200 == 0:
                print(c, flush=True)
        again = json.loads(data)
        text = json.dumps(again["plan"], separators=(",", ":"), sort_keys=True)
        assert again["digest"] == sha256(text.encode()).hexdigest()


def loaded(c: Campaign, f: Function, x: weft.Tensor, t: Any, path: Path, wanted: list[Array]) -> None:
    """Load a plan file, and run by it."""
    try:
        s = session(f, x, t, plan=path)
    except FileFormatError:
        c.done["refused"] += 1
        return
    c.done["harmless"] += 1
    if not all(same_bits(a, b) for a, b in zip(outputs(s(x, 1)), wanted, strict=True)):
        c.report("bits", path)


def models(c: Campaign, given: argparse.Namespace) -> None:
    """Sequences of edits of models, each by its number alone."""
    shown = 0.0
    for turn in count(given.seed):
        if c.done["sequences"] >= given.sequences:
            return
        weft.manual_seed(DRAWS)
        m = random_model(Random(turn), given.device)
        c.done["models"] += 1
        for k in range(4):
            random = Random(1000 * turn + k)
            c.done["sequences"] += 1
            guarded(c, f"model {turn} {m}, sequence {k}", lambda random=random, m=m: sequence(c, random, m))
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            print(c, flush=True)


def sequence(c: Campaign, random: Random, m: Model) -> None:
    """A sequence of edits of a model, one time in three in a limit around what it takes without."""
    memory = None
    if random.random() < 0.35:
        roomy = Sequence(random, m, ROOMY)
        roomy.run(1)
        memory = max(1, int(roomy.session.stats().planned_bytes * random.uniform(0.4, 1.6)))
    edits = random.randint(2, 9)
    c.done["runs"] += edits
    Sequence(random, m, memory).run(edits)


def main() -> int:
    """Run a campaign as the command line says; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("edits", "models", "limits", "files"))
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--device", default="cpu:0")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=8, help="ops of a program, about")
    parser.add_argument("--nets", type=float, default=0.3, help="the share of nets of attention")
    given = parser.parse_args()
    c = Campaign()
    if given.what == "limits":
        register(DummyBackend(name=COUNTED))
        given.device = f"{COUNTED}:0"
    try:
        with weft.device(given.device):
            if given.what == "files":
                files(c)
            elif given.what == "models":
                models(c, given)
            elif given.what == "edits":
                walk(c, given, edits_of, "sequences", given.sequences)
            else:
                walk(c, given, limits_of, "pairs", given.pairs)
    finally:
        if given.what == "limits":
            unregister(COUNTED)
    print(c)
    return 1 if c.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
