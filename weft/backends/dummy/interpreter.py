"""The meaning of lowered loops: an interpreter in NumPy that checks every access.

Everything is executed as written, statement by statement, in the order of the iterations. Three points are decided
here for all backends:

- A guard on a statement protects all that the statement evaluates; a guard on a load protects that one read: what
  is inside the load's index, and both branches of a WHERE, are evaluated whatever the guard or condition says.
- `Let` evaluates its value once, where it stands.
- In a VECTOR or ACROSS loop each statement is done for all lanes before the next one. An Accumulate whose offset the
  lanes share combines them as a tree first: the first half with the second half, until one value is left.

Values are NumPy scalars, or arrays with one entry per lane where they differ between lanes.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np

from weft.ir.dtypes import to_numpy
from weft.ir.errors import IRError
from weft.ir.expr import Const, Expr, FromIndex, Load, ScalarCall, Temp, Test, walk
from weft.ir.index import Guard, Int, Opaque, Var, atoms, evaluate
from weft.ir.loops import (
    LANE_KINDS,
    Accumulate,
    Alloc,
    Barrier,
    Block,
    Buffer,
    Combine,
    If,
    Let,
    Loop,
    LoopKind,
    Prefetch,
    Program,
    Stmt,
    Store,
)
from weft.ir.loops_names import every, roots, written
from weft.ir.loops_text import show_head
from weft.ir.ops import Op
from weft.ir.reference_ops import apply, cast
from weft.lazy_dataclass import dataclass

Array: TypeAlias = Any
Steps: TypeAlias = Generator[Barrier | Combine, None, None]
"""Running a block: it stops at each Barrier, and before each Combine, until all threads have come to it."""

_NOBODY, _SEVERAL = -1, -2
_TASKS = frozenset({LoopKind.PARALLEL, LoopKind.BLOCK, LoopKind.THREAD})


def interpret(
    program: Program,
    buffers: Mapping[str, np.ndarray[Any, Any]],
    variables: Mapping[str, int] | None = None,
    *,
    races: bool = False,
) -> None:
    """Run `program` on flat arrays, one per parameter by name, in place; `variables` gives the runtime integers.

    With `races`, it is an error when an iteration of a PARALLEL, BLOCK or THREAD loop touches an element that
    another iteration of it writes (without a barrier between them, for THREAD). IRError says what went wrong where.
    """
    with np.errstate(all="ignore"):
        _Machine(program, races).run(buffers, variables or {})


@dataclass(slots=True, eq=False)
class _Memory:
    """A buffer's elements. Allocated inside a VECTOR loop it holds one run of `size` elements per lane."""

    buffer: Buffer
    data: np.ndarray[Any, Any]
    size: int
    initialized: np.ndarray[Any, Any] | None  # None: all of it
    writable: bool
    lane_base: Array = 0
    depth: int = 0  # how many tasks it is inside of


@dataclass(slots=True, eq=False)
class _Tasks:
    """One run of a loop with independent iterations: who touched which element of which memory."""

    thread: bool
    writers: dict[_Memory, Array] = field(default_factory=dict[_Memory, Array])
    readers: dict[_Memory, Array] = field(default_factory=dict[_Memory, Array])


@dataclass(slots=True)
class _Frame:
    """The meanings of the names in scope, and the tasks that this is part of."""

    names: dict[str, Any]
    tasks: tuple[tuple[_Tasks, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The lanes being run: `mask` says which are active (a NumPy bool where there is only one)."""

    mask: Array
    active: int  # how many
    full: bool  # all are active
    tree: bool  # how an Accumulate combines them: as a tree, or in order


def _lanes(mask: Array, tree: bool = False) -> _Lanes:
    active = int(np.count_nonzero(mask))
    return _Lanes(mask, active, active == mask.size, tree)


def _differs(x: Array) -> bool:
    """True where there is one entry per lane, false of a number that they share; np.ndim takes five times as long."""
    return isinstance(x, np.ndarray) and x.ndim > 0  # pyright: ignore[reportUnknownMemberType]


_ONE = _lanes(np.True_)


class _Machine:
    def __init__(self, program: Program, races: bool) -> None:
        self.program, self.races = program, races
        self.stmt: Stmt | None = None
        self.orders: dict[Expr, list[Expr]] = {}
        self.lanewise: dict[int, bool] = {}
        self.constants: dict[Const, Array] = {}
        # lanes that are all active, by how many, and how they are combined
        self.numbered: dict[tuple[int, bool], tuple[Array, _Lanes]] = {}
        self.overlap = False  # parameters lie in the same memory

    def fail(self, rule: str) -> IRError:
        where = show_head(self.stmt) if self.stmt is not None else ""
        return IRError(rule, f"running {self.program.name}", where)

    def run(self, buffers: Mapping[str, np.ndarray[Any, Any]], variables: Mapping[str, int]) -> None:
        frame = _Frame({})
        for v in self.program.variables:
            value = variables.get(v.name)
            if value is None or not v.lo <= value <= v.hi:
                raise self.fail(f"variable {v.name} in {v.lo}..{v.hi} is given as {value}")
            frame.names[v.name] = int(value)
        for b in self.program.params:
            data, size = buffers[b.name], int(evaluate(b.size, frame.names))
            if data.ndim != 1 or data.dtype != to_numpy(b.dtype) or data.size < size:
                raise self.fail(
                    f"parameter {b.name} needs {size} of {b.dtype.name}, got {data.dtype}{data.shape}"
                )
            frame.names[b.name] = _Memory(b, data, size, None, b.name in self.program.writes)
        params = [frame.names[b.name] for b in self.program.params]
        self.overlap = any(
            (a.writable or b.writable) and np.may_share_memory(a.data[: a.size], b.data[: b.size])
            for k, b in enumerate(params)
            for a in params[:k]
        )
        for _ in self.block(self.program.body, frame, _ONE):
            pass

    # statements

    def block(self, body: Block, frame: _Frame, lanes: _Lanes) -> Steps:
        for s in body:
            self.stmt = s
            match s:
                case Loop():
                    yield from self.loop(s, frame, lanes)
                case If():
                    inside = self.holds(s.guard, frame, lanes, None)
                    if inside.active:
                        yield from self.block(s.body, frame, inside)
                case Let():
                    frame.names[s.name] = self.value(s.value, frame, lanes)
                case Alloc():
                    frame.names[s.buffer.name] = self.alloc(s.buffer, frame, lanes)
                case Store() | Accumulate():
                    inside = self.holds(s.guard, frame, lanes, None)
                    if inside.active:
                        self.write(s, frame, inside)
                case Prefetch():
                    pass
                case Barrier():
                    for tasks, _ in frame.tasks:
                        if tasks.thread:
                            tasks.writers.clear()
                            tasks.readers.clear()
                    yield s
                case Combine():
                    yield s
                case _:
                    raise self.fail(f"not a statement: {type(s).__name__}")

    def loop(self, s: Loop, frame: _Frame, lanes: _Lanes) -> Steps:
        extent = self.index(s.extent, frame, lanes, None)
        if _differs(extent):
            raise self.fail("the extent differs between lanes")
        n = int(extent)
        if s.kind in LANE_KINDS or (n > 1 and not _differs(lanes.mask) and self.is_lanewise(s)):
            tree = s.kind in LANE_KINDS
            if (n, tree) not in self.numbered:
                self.numbered[n, tree] = np.arange(n), _lanes(np.ones(n, bool), tree)
            frame.names[s.var.name], inner_lanes = self.numbered[n, tree]
            yield from self.block(s.body, frame, inner_lanes)
        elif s.kind is LoopKind.THREAD:
            yield from self.threads(s, n, frame, lanes)
        else:
            tasks = _Tasks(False) if self.races and s.kind in _TASKS else None
            for i in range(n):
                inner = frame if tasks is None else _Frame(frame.names, (*frame.tasks, (tasks, i)))
                frame.names[s.var.name] = i
                yield from self.block(s.body, inner, lanes)

    def threads(self, s: Loop, n: int, frame: _Frame, lanes: _Lanes) -> Steps:
        """All threads, each up to the next barrier, then on."""
        tasks = _Tasks(True)
        running: list[Steps] = []
        frames: list[_Frame] = []
        for i in range(n):
            names = {**frame.names, s.var.name: i}
            frames.append(_Frame(names, (*frame.tasks, (tasks, i))))
            running.append(self.block(s.body, frames[i], lanes))
        while running:
            reached = [next(thread, None) for thread in running]
            first = reached[0]
            if any(b is not first for b in reached):
                self.stmt = s
                raise self.fail("the threads of a block reach different barriers")
            if first is None:
                break
            if isinstance(first, Combine):
                self.combine(first, frames, lanes)
            else:
                yield first

    def combine(self, s: Combine, frames: Sequence[_Frame], lanes: _Lanes) -> None:
        """The threads' elements, as a tree in each group."""
        self.stmt = s
        places: list[tuple[_Memory, int]] = []
        for frame in frames:
            m = self.memory(s.buffer, frame)
            at = self.place(m, self.index(s.offset, frame, lanes, None), lanes)
            self.check_initialized(m, at)
            places.append((m, at))
        values = np.array([m.data[at] for m, at in places]).reshape(-1, s.group).T
        while len(values) > 1:
            half = len(values) // 2
            values = apply(s.op, places[0][0].buffer.dtype, values[:half], values[half:])
        for k, (m, at) in enumerate(places):
            m.data[at] = values[0, k // s.group]

    def is_lanewise(self, s: Loop) -> bool:
        """True where doing each statement for all iterations at once gives the same: no written buffer is read
        in the body or written twice, and nothing but plain statements is inside. Accumulates stay in order.
        """
        known = self.lanewise.get(id(s))
        if known is None:
            inside = list(every(s.body))
            plain = not (self.races or self.overlap) and all(
                isinstance(x, Let | Store | Accumulate | If | Prefetch) for x in inside
            )
            targets = [x.buffer for x in inside if isinstance(x, Store | Accumulate)]
            read = (
                {e.source for x in inside for e in walk(roots(x)) if isinstance(e, Load)}
                if plain
                else set[str]()
            )
            known = plain and len(set(targets)) == len(targets) and read.isdisjoint(written(s.body))
            self.lanewise[id(s)] = known
        return known

    def alloc(self, b: Buffer, frame: _Frame, lanes: _Lanes) -> _Memory:
        count = int(lanes.mask.size)
        size = int(evaluate(b.size, frame.names))
        data = np.zeros(size * count, to_numpy(b.dtype))
        base = np.arange(count) * size if _differs(lanes.mask) else 0
        return _Memory(b, data, size, np.zeros(data.size, bool), True, base, len(frame.tasks))

    def write(self, s: Store | Accumulate, frame: _Frame, lanes: _Lanes) -> None:
        value = self.value(s.value, frame, lanes)
        m = self.memory(s.buffer, frame)
        if not m.writable:
            raise self.fail(f"parameter {s.buffer} is not among the program's writes")
        if value.dtype != m.data.dtype:
            raise self.fail(f"a value of {value.dtype} is stored to {s.buffer}")
        at = self.place(m, self.index(s.offset, frame, lanes, None), lanes)
        if not lanes.full and _differs(value):
            value = value[lanes.mask]
        if isinstance(s, Store):
            self.touch(m, at, frame, writes=True)
            m.data[at] = value[-1] if _differs(value) and not _differs(at) else value
        else:
            self.check_initialized(m, at)
            self.touch(m, at, frame, writes=True)
            values = value if _differs(value) else np.full(lanes.active, value)
            self.accumulate(s.op, m, at, values, lanes.tree)
        if m.initialized is not None:
            m.initialized[at] = True

    def accumulate(self, op: Op, m: _Memory, at: Array, values: Array, tree: bool) -> None:
        """Combine the lanes' values into the elements `at`, or into the one that they share."""
        d, data = m.buffer.dtype, m.data
        if not _differs(at):
            while tree and values.size > 1:
                half = values.size // 2
                both = apply(op, d, values[:half], values[half : 2 * half])
                values = np.concatenate([both, values[2 * half :]])
            if op is Op.ADD and values.size > 1:
                data[at] = np.add.accumulate(np.append(data[at], values), dtype=values.dtype)[-1]
                return
            for v in values:
                data[at] = apply(op, d, data[at], v)
        elif (at[1:] > at[:-1]).all() or np.unique(at).size == at.size:
            data[at] = apply(op, d, data[at], values)
        else:
            for k, v in zip(at, values, strict=True):
                data[k] = apply(op, d, data[k], v)

    # accesses

    def memory(self, name: str, frame: _Frame) -> _Memory:
        m = frame.names.get(name)
        if not isinstance(m, _Memory):
            raise self.fail(f"{name} is not a buffer in scope")
        return m

    def place(self, m: _Memory, offset: Array, lanes: _Lanes) -> Array:
        """Places of elements in `m.data`: one entry per active lane, or one number where the lanes share it."""
        apart = _differs(m.lane_base)
        if not apart and not _differs(offset):
            if not 0 <= offset < m.size:
                raise self.outside(m, offset)
            return offset
        at = offset if _differs(offset) else np.full(lanes.mask.shape, offset)
        at = at if lanes.full else at[lanes.mask]
        if np.count_nonzero(at.view(np.uint64) >= m.size):  # as one that is negative is, read so
            lowest = at.min()
            raise self.outside(m, lowest if lowest < 0 else at.max())
        return at + (m.lane_base if lanes.full else m.lane_base[lanes.mask]) if apart else at

    def outside(self, m: _Memory, offset: int) -> IRError:
        return self.fail(f"offset {offset} is outside {m.buffer.name}, which has {m.size} elements")

    def check_initialized(self, m: _Memory, at: Array) -> None:
        known = m.initialized
        if known is None or (np.count_nonzero(known[at]) == at.size if _differs(at) else known[at]):
            return
        bad = np.atleast_1d(at)[~np.atleast_1d(known[at])][0]
        raise self.fail(f"{m.buffer.name}[{bad % max(1, m.size)}] is read before it is written")

    def touch(self, m: _Memory, at: Array, frame: _Frame, writes: bool) -> None:
        """Note who touches these elements; refuse what another task of the same loop has written, or read."""
        if not self.races:
            return
        at = np.atleast_1d(at)
        for tasks, me in frame.tasks[m.depth :]:
            writers = tasks.writers.setdefault(m, np.full(m.data.size, _NOBODY))
            readers = tasks.readers.setdefault(m, np.full(m.data.size, _NOBODY))
            wrote, read = writers[at], readers[at]
            others = (wrote != me) & (wrote != _NOBODY)
            elsewhere = (read != me) & (read != _NOBODY)
            if writes:
                others |= elsewhere
                writers[at] = me
            else:
                readers[at] = np.where(elsewhere, _SEVERAL, me)
            if np.count_nonzero(others):
                raise self.fail(
                    f"{m.buffer.name}[{at[others][0]}] is shared by iterations that run independently"
                )

    # values

    def value(self, e: Expr, frame: _Frame, lanes: _Lanes) -> Array:
        """The value of a scalar expression: each distinct part is computed once."""
        order = self.orders.get(e)
        if order is None:
            order = self.orders[e] = list(walk([e]))
        done: dict[Expr, Array] = {}
        for x in order:
            match x:
                case Const():
                    done[x] = self.constant(x)
                case FromIndex():
                    done[x] = np.int64(self.index(x.index, frame, lanes, done)).astype(to_numpy(x.dtype))
                case Test():
                    done[x] = self.holds(x.guard, frame, _ONE, done).mask
                case Temp():
                    done[x] = frame.names[x.name]
                case Load():
                    done[x] = self.load(x, frame, lanes, done)
                case ScalarCall():
                    done[x] = apply(x.op, x.dtype, *(done[a] for a in x.args))
                case _:
                    raise self.fail(f"not a scalar expression: {type(x).__name__}")
        return done[e]

    def load(self, x: Load, frame: _Frame, lanes: _Lanes, done: dict[Expr, Array]) -> Array:
        m = self.memory(x.source, frame)
        if len(x.index) != 1 or x.dtype is not m.buffer.dtype:
            raise self.fail(f"{x!r} does not fit {m.buffer!r}")
        inside = self.holds(x.guard, frame, lanes, done)
        if not inside.active:
            return np.zeros((), m.data.dtype)[()]
        at = self.place(m, self.index(x.index[0], frame, inside, done), inside)
        self.check_initialized(m, at)
        self.touch(m, at, frame, writes=False)
        if inside.full:
            return m.data[at]
        out = np.zeros(inside.mask.shape, m.data.dtype)
        out[inside.mask] = m.data[at]
        return out

    def constant(self, e: Const) -> Array:
        """A constant as a NumPy scalar."""
        known = self.constants.get(e)
        if known is None:
            exact = np.asarray(e.value, np.float64 if e.dtype.is_float else to_numpy(e.dtype))[()]
            known = self.constants[e] = cast(exact, e.dtype)
        return known

    def index(self, i: Int, frame: _Frame, lanes: _Lanes, done: dict[Expr, Array] | None) -> Array:
        """The value of an index expression: a Python int, or an int64 array with one entry per lane."""
        if isinstance(i, int):
            return i
        if isinstance(i, Var):
            return frame.names[i.name]

        def opaque(v: Expr) -> Array:
            x = self.value(v, frame, lanes) if done is None else done[v]
            return x.astype(np.int64)

        if i.computed:
            self.check_promises(i, frame, lanes, opaque)
        out = evaluate(i, frame.names, opaque)
        return out if _differs(out) else int(out)

    def check_promises(self, i: Int, frame: _Frame, lanes: _Lanes, opaque: Any) -> None:
        """Computed indices lie in the bounds that they promise."""
        for a in atoms(i):
            if isinstance(a, Opaque):
                got = np.broadcast_to(opaque(a.value), np.shape(lanes.mask) or np.shape(opaque(a.value)))
                active = got[lanes.mask] if _differs(lanes.mask) else got
                if np.any((active < a.lo) | (active > a.hi)):
                    raise self.fail(f"{a!r} leaves its bounds {a.lo}..{a.hi}")

    def holds(self, g: Guard, frame: _Frame, lanes: _Lanes, done: dict[Expr, Array] | None) -> _Lanes:
        """The lanes, of those that are active, where the guard holds."""
        if not g:
            return lanes
        mask = lanes.mask
        for c in g:
            v = self.index(c.value, frame, lanes, done)
            if c.lo is not None:
                mask = np.logical_and(mask, v >= self.index(c.lo, frame, lanes, done))
            if c.hi is not None:
                mask = np.logical_and(mask, v < self.index(c.hi, frame, lanes, done))
        return _lanes(mask, lanes.tree)
