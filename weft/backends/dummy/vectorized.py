"""The interpreter's quick form: each statement for as many iterations of the loops around it as may run at once.

The loops whose iterations may (see `independent.py`) become axes of NumPy arrays, one lane per combination; the others
run one iteration after the other. What `interpreter.py` checks is checked here, for all lanes of a statement: bounds,
reads of what was not written, promises of computed indices, barriers that some threads miss. Results are the same to
the bit, but where sums of products become products of matrices (`contract.py`), as backends may contract them, and
where lanes under a guard are combined as a tree.

Values are NumPy scalars, or arrays whose axes are the lanes' (of size 1 where lanes do not differ).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from weft.backends.dummy.contract import contract, pays
from weft.backends.dummy.independent import at_once, lanes_inside
from weft.backends.dummy.strided import Strided, row_major
from weft.ir import dtypes
from weft.ir.dtypes import to_numpy
from weft.ir.errors import IRError
from weft.ir.expr import Const, Expr, FromIndex, Load, ScalarCall, Temp, Test, walk
from weft.ir.index import FloorDiv, Guard, Int, Max, Min, Mod, Opaque, Product, Sum, Var, atoms, evaluate
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
from weft.ir.loops_names import every
from weft.ir.loops_text import show_head
from weft.ir.ops import Op
from weft.ir.reference_ops import apply, cast
from weft.lazy_dataclass import dataclass

Array: TypeAlias = Any

LANES = 1 << 20
"""The number of lanes that run at once, about: their values should stay in the caches."""

_where: Callable[[Array, Array, Array], Array] = np.where

_COMBINE: dict[Op, Any] = {Op.ADD: np.add, Op.MUL: np.multiply, Op.MAX: np.maximum, Op.MIN: np.minimum}


@dataclass(slots=True, eq=False)
class _Memory:
    """A buffer's elements: one run of `size` for each lane of where it was allocated; `base` says where."""

    buffer: Buffer
    data: Array
    size: int
    initialized: Array | None  # None: all of it
    writable: bool
    base: Strided
    changes: bool  # whether it is written, under this name or another


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The lanes being run: their axes, the kinds of the loops that these are, and which lanes are active."""

    shape: tuple[int, ...] = ()
    kinds: tuple[LoopKind, ...] = ()
    mask: Array | None = None  # None: all; else it broadcasts to the shape

    def only(self, mask: Array | None) -> _Lanes:
        """The same with another mask."""
        return _Lanes(self.shape, self.kinds, mask)


class Vectorized:
    """A program, ready to be run many times."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.orders: dict[Expr, list[Expr]] = {}
        self.constants: dict[Const, Array] = {}
        self.plans: dict[tuple[str, ...], tuple[dict[int, bool], dict[int, int]]] = {}

    def run(self, buffers: Mapping[str, Array], variables: Mapping[str, int] | None = None) -> None:
        """As `interpret`. IRError says what went wrong where."""
        with np.errstate(all="ignore"):
            _Machine(self, buffers, variables or {}).run()

    def plan(self, same: Mapping[str, str] | None) -> tuple[dict[int, bool], dict[int, int]]:
        """Two tables of loops, by identity: whether the iterations run at once, and how many lanes one has.

        `same`: see `_same_memory`; None: only the loops run at once whose kind says so.
        """
        key = ("overlap",) if same is None else tuple(same.get(b.name, b.name) for b in self.program.params)
        found = self.plans.get(key)
        if found is None:
            loops = [s for s in every(self.program.body) if isinstance(s, Loop)]
            known = {id(s): at_once(s, same) for s in loops}
            found = self.plans[key] = known, {id(s): lanes_inside(s.body, known) for s in loops}
        return found


class _Machine:
    def __init__(self, code: Vectorized, buffers: Mapping[str, Array], variables: Mapping[str, int]) -> None:
        self.code, self.program = code, code.program
        self.stmt: Stmt | None = None
        self.threads: Stmt | None = None
        self.names: dict[str, Any] = {}
        for v in self.program.variables:
            value = variables.get(v.name)
            if value is None or not v.lo <= value <= v.hi:
                raise self.fail(f"variable {v.name} in {v.lo}..{v.hi} is given as {value}")
            self.names[v.name] = int(value)
        for b in self.program.params:
            data, size = buffers[b.name], int(evaluate(b.size, self.names))
            written = b.name in self.program.writes
            if data.ndim != 1 or data.dtype != to_numpy(b.dtype) or data.size < size:
                raise self.fail(
                    f"parameter {b.name} needs {size} of {b.dtype.name}, got {data.dtype}{data.shape}"
                )
            self.names[b.name] = _Memory(b, data, size, None, written, Strided(0), written)
        same = _same_memory([self.names[b.name] for b in self.program.params])
        self.at_once, self.lanes_inside = code.plan(same)

    def fail(self, rule: str) -> IRError:
        where = show_head(self.stmt) if self.stmt is not None else ""
        return IRError(rule, f"running {self.program.name}", where)

    def run(self) -> None:
        self.block(self.program.body, _Lanes())

    # statements

    def block(self, body: Block, lanes: _Lanes) -> None:
        for s in body:
            self.stmt = s
            match s:
                case Loop():
                    self.loop(s, lanes)
                case If():
                    inside = self.holds(s.guard, lanes, None)
                    if _any(inside.mask):
                        self.block(s.body, inside)
                case Let():
                    self.names[s.name] = self.kept(s.value, lanes)
                case Alloc():
                    self.names[s.buffer.name] = self.alloc(s.buffer, lanes)
                case Store() | Accumulate():
                    inside = self.holds(s.guard, lanes, None)
                    if _any(inside.mask):
                        self.write(s, inside)
                case Prefetch():
                    pass
                case Barrier():
                    self.barrier(lanes)
                case Combine():
                    self.combined(s, lanes)
                case _:
                    raise self.fail(f"not a statement: {type(s).__name__}")

    def loop(self, s: Loop, lanes: _Lanes) -> None:
        extent = self.array(self.index(s.extent, lanes, None), lanes)
        if np.ndim(extent):
            for n, kind in zip(np.shape(extent), lanes.kinds, strict=True):
                if n > 1 and kind in LANE_KINDS:
                    raise self.fail("the extent differs between lanes")
        active = extent if lanes.mask is None else _where(lanes.mask, extent, 0)
        n = int(np.max(active))
        if not self.at_once[id(s)]:
            for i in range(n):
                self.names[s.var.name] = i
                inside = lanes if not np.ndim(extent) else self.masked(lanes, i < extent)
                self.block(s.body, inside)
            return
        axis, around = len(lanes.shape), prod(lanes.shape)
        mask = None if lanes.mask is None else _wider(lanes.mask, axis + 1)
        step = max(1, LANES // (around * self.lanes_inside[id(s)]))
        if s.kind in LANE_KINDS or s.kind is LoopKind.THREAD:
            step = max(1, n)  # these wait for each other
            self.threads = s if s.kind is LoopKind.THREAD else self.threads
        for first in range(0, n, step):
            count = min(step, n - first)
            inner = _Lanes((*lanes.shape, count), (*lanes.kinds, s.kind), mask)
            if np.ndim(extent):
                inner = self.masked(inner, np.arange(first, first + count) < _wider(extent, axis + 1))
            self.names[s.var.name] = Strided(first, (*(0,) * axis, 1))
            self.block(s.body, inner)

    def masked(self, lanes: _Lanes, mask: Array) -> _Lanes:
        """The lanes, of those that are active, where `mask` holds."""
        return lanes.only(mask if lanes.mask is None else np.logical_and(lanes.mask, mask))

    def barrier(self, lanes: _Lanes) -> None:
        """All threads of a block are here, or none."""
        threads = tuple(k for k, kind in enumerate(lanes.kinds) if kind is LoopKind.THREAD)
        if lanes.mask is not None and np.ndim(lanes.mask):
            here = np.broadcast_to(lanes.mask, lanes.shape)
            if np.any(here.any(threads) != here.all(threads)):
                self.stmt = self.threads
                raise self.fail("the threads of a block reach different barriers")

    def combined(self, s: Combine, lanes: _Lanes) -> None:
        """The innermost THREAD loop's elements, as a tree in each group."""
        self.barrier(lanes)
        m = self.memory(s.buffer)
        at = self.place(m, self.index(s.offset, lanes, None), lanes)
        self.check_initialized(m, at, lanes)
        full = np.broadcast_to(self.array(at, lanes), lanes.shape)
        axis = max(k for k, kind in enumerate(lanes.kinds) if kind is LoopKind.THREAD)
        values = np.moveaxis(m.data[full], axis, -1)
        groups = values.reshape(*values.shape[:-1], -1, s.group)
        one = _tree(s.op, m.buffer.dtype, groups, groups.ndim - 1)
        m.data[full] = np.moveaxis(np.broadcast_to(one, groups.shape).reshape(values.shape), -1, axis)

    def alloc(self, b: Buffer, lanes: _Lanes) -> _Memory:
        size = int(evaluate(b.size, {}))
        data = np.zeros(size * prod(lanes.shape), to_numpy(b.dtype))
        return _Memory(b, data, size, np.zeros(data.size, bool), True, row_major(size, lanes.shape), True)

    def write(self, s: Store | Accumulate, lanes: _Lanes) -> None:
        m = self.memory(s.buffer)
        if not m.writable:
            raise self.fail(f"parameter {s.buffer} is not among the program's writes")
        if s.value.dtype is not m.buffer.dtype:
            raise self.fail(f"a value of {s.value.dtype.name} is stored to {s.buffer}")
        if isinstance(s, Store):
            value = self.value(s.value, lanes)
            self.store(m, self.place(m, self.index(s.offset, lanes, None), lanes), value, lanes)
        else:
            self.accumulate(s, m, lanes)

    def store(self, m: _Memory, at: Strided | Array, value: Array, lanes: _Lanes) -> None:
        """Store; of several lanes that store in one element, the last one's value stays."""
        shape = lanes.shape
        if lanes.mask is None and isinstance(at, Strided) and at.distinct(shape):
            view = at.view(m.data, shape)
            view[...] = _last(value, view.shape)
            if m.initialized is not None:
                if view.size == m.data.size:
                    m.initialized = None
                else:
                    at.view(m.initialized, shape)[...] = True
            return
        flat, values = self.active(at, lanes), np.broadcast_to(value, shape)
        values = values.reshape(-1) if lanes.mask is None else values[np.broadcast_to(lanes.mask, shape)]
        m.data[flat] = values
        if m.initialized is not None:
            m.initialized[flat] = True

    def active(self, at: Strided | Array, lanes: _Lanes) -> Array:
        """The places of the active lanes' elements, one after the other."""
        full = np.broadcast_to(self.array(at, lanes), lanes.shape)
        return full.reshape(-1) if lanes.mask is None else full[np.broadcast_to(lanes.mask, lanes.shape)]

    # accumulation

    def accumulate(self, s: Accumulate, m: _Memory, lanes: _Lanes) -> None:
        """The lanes that share an element are combined: VECTOR lanes as a tree, then all in order."""
        shape, rank = lanes.shape, len(lanes.shape)
        factors = self.factors(s, lanes)
        offset = self.index(s.offset, lanes, None)
        at = self.place(m, offset, lanes)
        self.check_initialized(m, at, lanes)
        if isinstance(at, Strided):
            differ = [at.strides[k] != 0 if k < len(at.strides) else False for k in range(rank)]
        else:
            differ = [n > 1 for n in at.shape]
        shared = [k for k in range(rank) if not differ[k] and shape[k] > 1]
        summed = factors is not None and not any(lanes.kinds[k] in LANE_KINDS for k in shared)
        if summed and factors is not None and pays(*factors, shared, shape):
            self.add(m, at, contract(*factors, shared, shape), lanes, shared)
            return
        if factors is not None:
            value = apply(Op.MUL, s.value.dtype, *factors)
        else:
            value = _wider(self.value(s.value, lanes), rank)
        if lanes.mask is not None:
            value = _where(lanes.mask, value, _neutral(s.op, value.dtype))
        value = np.broadcast_to(value, shape)
        tree = [k for k in shared if lanes.kinds[k] in LANE_KINDS]
        for k in tree:
            value = _tree(s.op, m.buffer.dtype, value, k)
        order = [k for k in shared if k not in tree]
        self.combine(s.op, m, at, value, lanes, order)

    def factors(self, s: Accumulate, lanes: _Lanes) -> tuple[Array, Array] | None:
        """The operands of a product that is summed, in a float type; None where it is no such thing or masked."""
        e = s.value
        if (
            s.op is not Op.ADD
            or not isinstance(e, ScalarCall)
            or e.op is not Op.MUL
            or lanes.mask is not None
        ):
            return None
        if e.dtype is not dtypes.float32 and e.dtype is not dtypes.float64:
            return None
        done: dict[Expr, Array] = {}
        a, b = (self.value(x, lanes, done) for x in e.args)
        rank = len(lanes.shape)
        if rank == 0:
            return None
        a, b = (_wider(x, rank) if np.ndim(x) else np.full((1,) * rank, x) for x in (a, b))
        return a, b

    def add(
        self, m: _Memory, at: Strided | Array, terms: Array, lanes: _Lanes, shared: Sequence[int]
    ) -> None:
        """Adds float64 sums to the elements, rounded once."""
        shape = tuple(1 if k in shared else n for k, n in enumerate(lanes.shape))
        if isinstance(at, Strided) and at.distinct(shape):
            view = at.view(m.data, shape)
            view[...] = view + np.broadcast_to(terms, view.shape)
            return
        flat = np.broadcast_to(self.array(at, lanes.only(None)), shape).reshape(-1)
        wide = m.data.astype(np.float64)
        np.add.at(wide, flat, np.broadcast_to(terms, shape).reshape(-1))
        m.data[flat] = wide[flat]

    def combine(
        self, op: Op, m: _Memory, at: Strided | Array, value: Array, lanes: _Lanes, order: Sequence[int]
    ) -> None:
        """data[at] = op(data[at], value), along the axes `order` one after the other."""
        rank = len(lanes.shape)
        shape = tuple(1 if k in order else n for k, n in enumerate(np.shape(value)))
        if isinstance(at, Strided) and at.distinct(shape):
            view = at.view(m.data, shape)
            if not order:
                view[...] = apply(op, m.buffer.dtype, view, value)
                return
            kept = [k for k in range(rank) if k not in order]
            terms = np.transpose(value, [*order, *kept]).reshape(prod(value.shape[k] for k in order), -1)
            first = np.transpose(view, [*order, *kept]).reshape(1, -1)
            view[...] = _in_order(op, np.concatenate([first, terms])).reshape(view.shape)
            return
        flat = np.broadcast_to(self.array(at, lanes), np.shape(value)).reshape(-1)
        _COMBINE[op].at(m.data, flat, value.reshape(-1))

    # accesses

    def memory(self, name: str) -> _Memory:
        m = self.names.get(name)
        if not isinstance(m, _Memory):
            raise self.fail(f"{name} is not a buffer in scope")
        return m

    def place(self, m: _Memory, offset: Strided | Array, lanes: _Lanes) -> Strided | Array:
        """The places of elements in `m.data`; those of inactive lanes may be anywhere inside it."""
        if isinstance(offset, Strided):
            low, high = offset.reach(lanes.shape)
            if low >= 0 and high < m.size:
                return offset.plus(m.base)
            if not lanes.shape:
                raise self.outside(m, low)
        at = self.array(offset, lanes)
        if np.ndim(at) == 0:
            at = np.full((1,) * len(lanes.shape), at, np.int64)
        bad = (at < 0) | (at >= m.size)
        if bad.any():
            wrong = bad if lanes.mask is None else np.logical_and(bad, lanes.mask)
            if wrong.any():
                raise self.outside(m, int(np.broadcast_to(at, wrong.shape)[wrong][0]))
            at = np.where(bad, 0, at)
        return at + m.base.array(lanes.shape)

    def outside(self, m: _Memory, offset: int) -> IRError:
        return self.fail(f"offset {offset} is outside {m.buffer.name}, which has {m.size} elements")

    def check_initialized(self, m: _Memory, at: Strided | Array, lanes: _Lanes) -> None:
        if m.initialized is None:
            return
        ready = at.view(m.initialized, lanes.shape) if isinstance(at, Strided) else m.initialized[at]
        if ready.all():
            return
        missing = ~ready if lanes.mask is None else np.logical_and(~ready, lanes.mask)
        if missing.any():
            bad = np.broadcast_to(self.array(at, lanes), missing.shape)[missing].reshape(-1)[0]
            raise self.fail(f"{m.buffer.name}[{bad % max(1, m.size)}] is read before it is written")

    # values

    def kept(self, e: Expr, lanes: _Lanes) -> Array:
        """The value of an expression, which later stores do not change."""
        x = self.value(e, lanes)
        return x if np.ndim(x) == 0 or x.flags.owndata else x.copy()

    def value(self, e: Expr, lanes: _Lanes, done: dict[Expr, Array] | None = None) -> Array:
        """The value of a scalar expression: each distinct part is computed once."""
        done = {} if done is None else done
        order = self.code.orders.get(e)
        if order is None:
            order = self.code.orders[e] = list(walk([e]))
        for x in order:
            if x in done:
                continue
            match x:
                case Const():
                    done[x] = self.constant(x)
                case FromIndex():
                    i = self.array(self.index(x.index, lanes, done), lanes)
                    done[x] = np.int64(i).astype(to_numpy(x.dtype))
                case Test():
                    mask = self.holds(x.guard, lanes.only(None), done).mask
                    done[x] = np.True_ if mask is None else mask
                case Temp():
                    done[x] = _wider(self.names[x.name], len(lanes.shape))
                case Load():
                    done[x] = self.load(x, lanes, done)
                case ScalarCall():
                    done[x] = apply(x.op, x.dtype, *(done[a] for a in x.args))
                case _:
                    raise self.fail(f"not a scalar expression: {type(x).__name__}")
        return done[e]

    def load(self, x: Load, lanes: _Lanes, done: dict[Expr, Array]) -> Array:
        m = self.memory(x.source)
        if len(x.index) != 1 or x.dtype is not m.buffer.dtype:
            raise self.fail(f"{x!r} does not fit {m.buffer!r}")
        inside = self.holds(x.guard, lanes, done)
        if not _any(inside.mask):
            return np.zeros((), m.data.dtype)[()]
        at = self.place(m, self.index(x.index[0], inside, done), inside)
        self.check_initialized(m, at, inside)
        got = at.view(m.data, lanes.shape) if isinstance(at, Strided) else m.data[at]
        if x.guard and inside.mask is not None:
            return _where(inside.mask, got, np.zeros((), m.data.dtype))
        if not lanes.shape:
            return got[()]
        return got.copy() if m.changes else got

    def constant(self, e: Const) -> Array:
        """A constant as a NumPy scalar."""
        known = self.code.constants.get(e)
        if known is None:
            exact = np.asarray(e.value, np.float64 if e.dtype.is_float else to_numpy(e.dtype))[()]
            known = self.code.constants[e] = cast(exact, e.dtype)
        return known

    def array(self, i: Strided | Array, lanes: _Lanes) -> Array:
        """An index value as an int or an int64 array."""
        return i.array(lanes.shape) if isinstance(i, Strided) else i

    def index(self, i: Int, lanes: _Lanes, done: dict[Expr, Array] | None) -> Strided | Array:
        """The value of an index expression: affine in the lanes, or an int64 array of their rank."""
        if isinstance(i, int):
            return Strided(i)
        values: dict[Expr, Array] = {}
        if i.computed:
            for a in atoms(i):
                if isinstance(a, Opaque) and a.value not in values:
                    x = self.value(a.value, lanes) if done is None else done[a.value]
                    values[a.value] = x = x.astype(np.int64)
                    self.check_promise(a, x, lanes)
        return self.affine(i, lanes, values)

    def affine(self, i: Int, lanes: _Lanes, values: Mapping[Expr, Array]) -> Strided | Array:
        match i:
            case int():
                return Strided(i)
            case Var():
                known = self.names[i.name]
                return Strided(known) if isinstance(known, int) else known
            case Sum():
                exact, rest = Strided(i.const), None
                for a, c in i.terms:
                    x = self.affine(a, lanes, values)
                    if isinstance(x, Strided):
                        exact = exact.plus(x.times(c))
                    else:
                        rest = x * c if rest is None else rest + x * c
                return exact if rest is None else rest + exact.array(lanes.shape)
            case Opaque():
                return _index(values[i.value])
            case Product():
                out: Array = 1
                for f in i.factors:
                    out = out * self.number(f, lanes, values)
                return _index(out)
            case FloorDiv():
                return _index(self.number(i.num, lanes, values) // self.number(i.den, lanes, values))
            case Mod():
                return _index(self.number(i.num, lanes, values) % self.number(i.den, lanes, values))
            case Min():
                return _index(np.minimum(self.number(i.a, lanes, values), self.number(i.b, lanes, values)))
            case Max():
                return _index(np.maximum(self.number(i.a, lanes, values), self.number(i.b, lanes, values)))
            case _:
                raise self.fail(f"not an index: {i!r}")

    def number(self, i: Int, lanes: _Lanes, values: Mapping[Expr, Array]) -> Array:
        return self.array(self.affine(i, lanes, values), lanes)

    def check_promise(self, a: Opaque, got: Array, lanes: _Lanes) -> None:
        """A computed index lies in the bounds that it promises."""
        wrong = (got < a.lo) | (got > a.hi)
        if np.any(wrong) and (lanes.mask is None or np.any(np.logical_and(wrong, lanes.mask))):
            raise self.fail(f"{a!r} leaves its bounds {a.lo}..{a.hi}")

    def holds(self, g: Guard, lanes: _Lanes, done: dict[Expr, Array] | None) -> _Lanes:
        """The lanes, of those that are active, where the guard holds."""
        if not g:
            return lanes
        mask = lanes.mask
        for c in g:
            v = self.array(self.index(c.value, lanes, done), lanes)
            for ok in (
                None if c.lo is None else v >= self.array(self.index(c.lo, lanes, done), lanes),
                None if c.hi is None else v < self.array(self.index(c.hi, lanes, done), lanes),
            ):
                if ok is not None:
                    mask = np.asarray(ok) if mask is None else np.logical_and(mask, ok)
        return lanes.only(None if mask is not None and mask.all() else mask)


def _any(mask: Array | None) -> bool:
    return mask is None or bool(np.any(mask))


def _index(x: Array) -> Strided | Array:
    return x if np.size(x) > 1 else Strided(int(np.asarray(x).item()))


def _wider(x: Array, rank: int) -> Array:
    """A value of outer lanes as one of inner lanes: of that rank, the new axes at the end."""
    x = np.asarray(x)
    if x.ndim == rank or x.ndim == 0:
        return x if x.ndim else x[()]
    return x.reshape(x.shape + (1,) * (rank - x.ndim))


def _last(value: Array, shape: Sequence[int]) -> Array:
    """The value that the last of several lanes stores in one element."""
    if np.ndim(value) == 0:
        return value
    return value[tuple(slice(-1, None) if n == 1 else slice(None) for n in shape)]


def _neutral(op: Op, dtype: Any) -> Array:
    """The identity of `op`."""
    kind = dtype.kind
    match op:
        case Op.ADD:
            return np.asarray(-0.0 if kind == "f" else 0, dtype)
        case Op.MUL:
            return np.asarray(1, dtype)
        case _:
            if kind == "f":
                return np.asarray(-np.inf if op is Op.MAX else np.inf, dtype)
            if kind == "b":
                return np.asarray(op is Op.MIN)
            info = np.iinfo(dtype)
            return np.asarray(info.min if op is Op.MAX else info.max, dtype)


def _tree(op: Op, dtype: dtypes.DType, value: Array, axis: int) -> Array:
    """An axis combined to size 1: the first half with the second half, until one value is left."""
    x = np.moveaxis(value, axis, 0)
    while len(x) > 1:
        half = len(x) // 2
        both = apply(op, dtype, x[:half], x[half : 2 * half])
        x = np.concatenate([both, x[2 * half :]])
    return np.moveaxis(x, 0, axis)


def _in_order(op: Op, terms: Array) -> Array:
    """The rows of a matrix combined from the first to the last."""
    ufunc = _COMBINE[op]
    if terms.shape[1] == 1:  # NumPy's reduce adds a lone column in pairs
        return ufunc.accumulate(terms[:, 0], dtype=terms.dtype)[-1:]
    return ufunc.reduce(
        np.ascontiguousarray(terms), axis=0, dtype=terms.dtype
    )  # and columns that lie along memory


def _same_memory(params: Sequence[_Memory]) -> dict[str, str] | None:
    """Parameter -> the first parameter that is the same memory, where one of them is written; None where two overlap
    in another way."""
    same: dict[str, str] = {}
    for k, b in enumerate(params):
        for a in params[:k]:
            x, y = a.data[: a.size], b.data[: b.size]
            if (a.writable or b.writable) and np.may_share_memory(x, y):
                if x.ctypes.data != y.ctypes.data or x.dtype.itemsize != y.dtype.itemsize:
                    return None
                same[b.buffer.name] = same.get(a.buffer.name, a.buffer.name)
                a.changes = b.changes = True
                break
    return same
