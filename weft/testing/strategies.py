"""Hypothesis strategies for random programs over all primitive ops, dtypes, and shapes with sizes 0 and 1.

A program grows by moves: each takes earlier values, so that results branch, meet again, and views are taken of
views. Ops that jump (rounding, comparing, bits) are applied only to values that every correct implementation
computes to the bit, so that a difference is a mistake and never a matter of rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from hypothesis import strategies as st

from weft.ir import dtypes
from weft.ir.dtypes import DTYPES, DType, Kind, to_numpy
from weft.ir.expr import bits, normalize
from weft.ir.graph import Along, Attrs, Axes, Box, Fill, Node, Padding, ScatterCombine, Shape, Target, Window
from weft.ir.ops import COMPARE, CONVERSIONS, ELEMENTWISE, Op
from weft.lazy_dataclass import dataclass
from weft.testing.programs import Array, GraphProgram, ProgramStep, numpy_leaf
from weft.testing.tolerance import exact

T = TypeVar("T")


class Draw(Protocol):
    """Hypothesis's `draw`, typed."""

    def __call__(self, strategy: st.SearchStrategy[T], /) -> T: ...


SIZES = (3, 1, 2, 4, 0, 5, 7, 8, 16, 17, 33)
MAX_ELEMENTS = 4096


def _ops(arity: int, kind: Kind, *, jumps: bool = False) -> tuple[Op, ...]:
    """The elementwise ops on operands of a kind that give results of their dtype, continuous ones or others."""
    ops = ELEMENTWISE - COMPARE - CONVERSIONS
    return tuple(
        op
        for op in Op
        if op in ops and (op.info.arity, op.info.jumps, kind in op.info.kinds) == (arity, jumps, True)
    )


_ROUND, _SMOOTH = _ops(1, Kind.FLOAT, jumps=True), _ops(1, Kind.FLOAT)
_INT_UNARY = (*_ops(1, Kind.INT), *_ROUND)
_FLOAT_BINARY, _FLOAT_JUMPS = _ops(2, Kind.FLOAT), _ops(2, Kind.FLOAT, jumps=True)
_INT_BINARY = (*_ops(2, Kind.INT), *_ops(2, Kind.INT, jumps=True))
_BOOL_BINARY = _ops(2, Kind.BOOL)


def choice(options: Sequence[T]) -> st.SearchStrategy[T]:
    """One of `options`, the first as the simplest. Spread evenly, which `sampled_from` is not in long programs."""
    chosen = tuple(options)
    return st.integers(0, 2**24 - 1).map(lambda k: chosen[(k * 0x9E3779 % 2**24) * len(chosen) >> 24])


def shapes(max_rank: int = 4) -> st.SearchStrategy[Shape]:
    """Shapes of at most MAX_ELEMENTS elements, small ones first."""
    return (
        st.lists(choice(SIZES), max_size=max_rank).map(tuple).filter(lambda s: math.prod(s) <= MAX_ELEMENTS)
    )


def arrays(shape: Shape, dtype: DType) -> st.SearchStrategy[Array]:
    """Values of a dtype: small integers, the whole range, and for floats infinities, NaN and both zeros."""
    styles = ("small", "wide", "special")
    return st.builds(_array, st.just(shape), st.just(dtype), choice(styles), st.integers(0, 2**16))


def _array(shape: tuple[int, ...], dtype: DType, style: str, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    target = to_numpy(dtype)
    if dtype.kind is Kind.BOOL:
        return rng.integers(0, 2, shape).astype(target)
    if dtype.is_int:
        if style == "small":
            return rng.integers(0 if dtype.kind is Kind.UINT else -4, 5, shape).astype(target)
        full = rng.integers(int(dtype.min), int(dtype.max), shape, target.type, endpoint=True)
        return (
            full if style == "wide" else np.where(rng.random(shape) < 0.3, np.array(dtype.max, target), full)
        )
    if style == "small":
        return rng.integers(-4, 5, shape).astype(target)
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 4, shape)
    if style == "special":
        odd = rng.choice(np.array([math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -1.0]), shape)
        values = np.where(rng.random(shape) < 0.2, odd, values)
    return values.astype(np.float32).astype(target)


@dataclass(slots=True)
class ProgramValue:
    """An earlier value: its number, its node (for shape and dtype), and whether it is known to the bit."""

    number: int
    node: Node
    exact: bool
    clean: bool  # no NaN can be in it, whose bits are nobody's business

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(n for n in self.node.shape if isinstance(n, int))

    @property
    def dtype(self) -> DType:
        return self.node.dtype


@dataclass(slots=True)
class Builder:
    """A program that grows."""

    draw: Draw
    dtypes: Sequence[DType]
    leaves: list[Array] = field(default_factory=list[Array])
    steps: list[ProgramStep] = field(default_factory=list[ProgramStep])
    leaf_values: list[ProgramValue] = field(default_factory=list[ProgramValue])
    step_values: list[ProgramValue] = field(default_factory=list[ProgramValue])

    @property
    def values(self) -> list[ProgramValue]:
        return [*self.leaf_values, *self.step_values]

    def leaf(self, shape: Shape, dtype: DType) -> ProgramValue:
        return self.given(self.draw(arrays(shape, dtype)))

    def given(self, array: Array) -> ProgramValue:
        """A leaf with these values."""
        self.leaves.append(array)
        clean = array.dtype.kind in "iub" or not bool(np.isnan(array.astype(np.float64)).any())
        value = ProgramValue(-len(self.leaves), numpy_leaf(array), True, clean)
        self.leaf_values.append(value)
        return value

    def step(
        self, op: Op, inputs: Sequence[ProgramValue] = (), attrs: Attrs = None, shape: Shape | None = None,
        dtype: DType | None = None,
    ) -> ProgramValue:  # fmt: skip
        """One more op."""
        step = ProgramStep(op, tuple(v.number for v in inputs), attrs, shape, dtype)
        node = replace(step, inputs=tuple(range(len(inputs)))).apply([v.node for v in inputs])
        moves_only = op not in _MAKES_NAN
        value = ProgramValue(
            len(self.steps),
            node,
            exact(op, node.dtype, [v.exact for v in inputs]),
            not node.dtype.is_float or (moves_only and all(v.clean for v in inputs)),
        )
        self.steps.append(step)
        self.step_values.append(value)
        return value

    def pick(self, suits: Callable[[ProgramValue], bool] = lambda v: True) -> ProgramValue | None:
        """An earlier value, most often one of the last three; None when none suits."""
        found = [v for v in reversed(self.values) if suits(v)]
        if not found:
            return None
        return self.draw(choice(found if self.draw(st.integers(0, 3)) == 3 else found[:3]))

    def partner(self, v: ProgramValue) -> ProgramValue:
        """A value of the shape and dtype of `v`: an earlier one, a broadcast one, a constant or a new leaf."""
        twins = [w for w in self.values if w.shape == v.shape and w.dtype is v.dtype]
        kind = self.draw(choice(("twin", "constant", "broadcast", "leaf")))
        if kind == "twin":
            return self.draw(choice(twins))
        if kind == "constant":
            return self.constant(v.shape, v.dtype)
        if kind == "leaf":
            return self.leaf(v.shape, v.dtype)
        small = tuple(n if self.draw(st.booleans()) else 1 for n in v.shape)
        return self.step(Op.EXPAND, (self.leaf(small, v.dtype),), None, v.shape)

    def constant(self, shape: Shape, dtype: DType) -> ProgramValue:
        number = normalize(dtype, self.draw(choice((1, 0, 2, 3, -1, 0.5))))
        return self.step(Op.CONST, (), Fill(bits(number), number), shape, dtype)

    def finish(self) -> GraphProgram:
        """The program that computes the last value and up to two others, less what these do not need."""
        values = self.values
        outputs = (values[-1], *self.draw(st.lists(choice(values), max_size=2)))
        used = {v.number for v in outputs}
        for k in reversed(range(len(self.steps))):
            if k in used:
                used.update(self.steps[k].inputs)
        leaves = [v.number for v in self.leaf_values if v.number in used]
        steps = [k for k in range(len(self.steps)) if k in used]
        place = {number: k for k, number in enumerate((*leaves, *steps))}
        return GraphProgram(
            tuple(self.leaves[-number - 1] for number in leaves),
            tuple(
                replace(self.steps[k], inputs=tuple(place[i] for i in self.steps[k].inputs)) for k in steps
            ),
            tuple(place[v.number] for v in outputs),
        )


_NO_NAN = frozenset({Op.MAX, Op.MIN})
_MAKES_NAN = CONVERSIONS | {*_SMOOTH, *_FLOAT_BINARY, *_FLOAT_JUMPS, Op.SUM, Op.PROD, Op.SCATTER} - _NO_NAN


Move: TypeAlias = Callable[[Builder], object]
"""Adds a step or a few; does nothing when no value suits."""


def _rest(b: Builder) -> None:
    """Nothing: what any move shrinks to."""


def _unary(b: Builder) -> None:
    v = b.pick(lambda v: v.dtype.kind is not Kind.BOOL)
    if v is None:
        return
    if v.dtype.is_float:
        b.step(b.draw(choice(_SMOOTH + (_ROUND if v.exact else ()))), (v,))
    else:
        b.step(b.draw(choice(_INT_UNARY)), (v,))


def _binary(b: Builder) -> None:
    v = b.pick()
    assert v is not None
    w = b.partner(v)
    ops: tuple[Op, ...] = _BOOL_BINARY if v.dtype.kind is Kind.BOOL else _INT_BINARY
    if v.dtype.is_float:
        ops = (*_FLOAT_BINARY, *_FLOAT_JUMPS) if v.exact and w.exact else _FLOAT_BINARY
    pair = (v, w) if b.draw(st.booleans()) else (w, v)
    b.step(b.draw(choice(ops)), pair)


def _compare(b: Builder) -> None:
    v = b.pick(lambda v: v.exact)
    if v is None:
        return
    w = b.partner(v)
    if w.exact:
        b.step(b.draw(choice(sorted(COMPARE, key=lambda op: op.name))), (v, w))


def _where(b: Builder) -> None:
    v = b.pick()
    assert v is not None
    conditions = [c for c in b.values if c.dtype.kind is Kind.BOOL and c.shape == v.shape]
    c = b.draw(choice(conditions)) if conditions else b.leaf(v.shape, dtypes.bool_)
    b.step(Op.WHERE, (c, v, b.partner(v)))


def _logical_not(b: Builder) -> None:
    v = b.pick(lambda v: not v.dtype.is_float)
    if v is not None:
        b.step(Op.NOT, (v,))


def _cast(b: Builder) -> None:
    v = b.pick()
    assert v is not None
    targets = [d for d in b.dtypes if v.exact or d.is_float]
    if targets:
        b.step(Op.CAST, (v,), dtype=b.draw(choice(targets)))


def _bitcast(b: Builder) -> None:
    v = b.pick(lambda v: v.exact and v.clean and v.dtype.kind is not Kind.BOOL)
    if v is None:
        return
    targets = [d for d in b.dtypes if d.itemsize == v.dtype.itemsize and d.kind is not Kind.BOOL]
    if targets:
        b.step(Op.BITCAST, (v,), dtype=b.draw(choice(targets)))


def _threefry(b: Builder) -> None:
    v = b.pick(lambda v: v.dtype is dtypes.uint32)
    counter = v or b.leaf(b.draw(shapes(2)), dtypes.uint32)
    b.step(Op.THREEFRY, (counter, b.partner(counter), b.partner(counter)))


def _reduce(b: Builder) -> None:
    v = b.pick(lambda v: len(v.shape) > 0)
    if v is None:
        return
    axes = tuple(k for k in range(len(v.shape)) if b.draw(st.booleans())) or (0,)
    ops = [Op.SUM, Op.PROD] if v.dtype.kind is not Kind.BOOL else []
    if all(v.shape[a] for a in axes):
        ops += [Op.REDUCE_MAX, Op.REDUCE_MIN]
    if ops:
        b.step(b.draw(choice(ops)), (v,), Axes(axes))


def _reshape(b: Builder) -> None:
    v = b.pick()
    assert v is not None
    b.step(Op.RESHAPE, (v,), None, _some_shape(b.draw, math.prod(v.shape)))


def _some_shape(draw: Draw, count: int) -> Shape:
    """A shape with `count` elements."""
    out: list[int] = []
    if count == 0:
        out = draw(st.lists(choice((0, 1, 3)), min_size=1, max_size=3))
        return tuple(out) if 0 in out else (*out, 0)
    while count > 1 and len(out) < 4:
        factor = draw(choice([f for f in range(1, count + 1) if count % f == 0]))
        out.append(factor)
        count //= factor
    return (*out, count) if count > 1 or draw(st.booleans()) else tuple(out)


def _permute(b: Builder) -> None:
    v = b.pick(lambda v: len(v.shape) > 1)
    if v is not None:
        b.step(Op.PERMUTE, (v,), Axes(tuple(b.draw(st.permutations(range(len(v.shape)))))))


def _expand(b: Builder) -> None:
    v = b.pick(lambda v: 1 in v.shape)
    if v is None:
        return
    shape = tuple(b.draw(choice(SIZES[:7])) if n == 1 else n for n in v.shape)
    if math.prod(shape) <= MAX_ELEMENTS:
        b.step(Op.EXPAND, (v,), None, shape)


def _pad(b: Builder) -> None:
    v = b.pick(lambda v: len(v.shape) > 0)
    if v is None:
        return
    amounts = st.lists(choice((0, 1, 2, 5)), min_size=len(v.shape), max_size=len(v.shape)).map(tuple)
    gaps = st.lists(choice((0, 0, 1, 2)), min_size=len(v.shape), max_size=len(v.shape)).map(tuple)
    fill = normalize(v.dtype, b.draw(choice((0, 1, 3)) if not v.dtype.is_float else _fills))
    low, high, interior = b.draw(amounts), b.draw(amounts), b.draw(gaps)
    sizes = zip(v.shape, low, high, interior, strict=True)
    if math.prod(lo + hi + n + max(n - 1, 0) * gap for n, lo, hi, gap in sizes) <= MAX_ELEMENTS:
        b.step(Op.PAD, (v,), Padding(low, high, interior, fill))


_fills = choice((0.0, 1.0, -2.5, -math.inf))


def _some_box(draw: Draw, shape: tuple[int, ...]) -> tuple[Box, tuple[int, ...]]:
    """A strided box within `shape`, and its size."""
    start: list[int] = []
    step: list[int] = []
    size: list[int] = []
    for n in shape:
        first = draw(st.integers(0, n))
        by = draw(choice((1, 1, 2, 3)))
        most = (n - first + by - 1) // by
        start.append(first)
        step.append(by)
        size.append(most if draw(st.booleans()) else draw(st.integers(0, most)))
    return Box(tuple(start), tuple(step)), tuple(size)


def _shrink(b: Builder) -> None:
    v = b.pick(lambda v: len(v.shape) > 0)
    if v is not None:
        box, size = _some_box(b.draw, v.shape)
        b.step(Op.SHRINK, (v,), box, size)


def _update(b: Builder) -> None:
    v = b.pick(lambda v: len(v.shape) > 0)
    if v is None:
        return
    box, size = _some_box(b.draw, v.shape)
    same = [w for w in b.values if w.shape == size and w.dtype is v.dtype]
    src = b.draw(choice(same)) if same and b.draw(st.booleans()) else b.leaf(size, v.dtype)
    b.step(Op.UPDATE, (v, src), box)


def _flip(b: Builder) -> None:
    v = b.pick(lambda v: len(v.shape) > 0)
    if v is not None:
        axes = tuple(k for k in range(len(v.shape)) if b.draw(st.booleans()))
        b.step(Op.FLIP, (v,), Axes(axes or (0,)))


def _windows(b: Builder) -> None:
    """Sliding windows as convolutions take them: x expanded along a window axis, then SHEAR; or back again."""
    v = b.pick(lambda v: len(v.shape) > 0 and max(v.shape) > 0)
    if v is None:
        return
    axis = b.draw(choice([k for k, n in enumerate(v.shape) if n > 0]))
    stride, dilation = b.draw(choice((1, 2, 3))), b.draw(choice((1, 2)))
    window = len(v.shape)
    if b.draw(st.booleans()):
        count = b.draw(st.integers(1, 1 + (v.shape[axis] - 1) // dilation))
        x = b.step(Op.EXPAND, (b.step(Op.RESHAPE, (v,), None, (*v.shape, 1)),), None, (*v.shape, count))
        room = v.shape[axis] - (count - 1) * dilation
        shape = (*x.shape[:axis], (room - 1) // stride + 1, *x.shape[axis + 1 :])
        if math.prod(x.shape) <= MAX_ELEMENTS:
            b.step(Op.SHEAR, (x,), Window(axis, window, stride, dilation), shape)
    elif len(v.shape) > 1:
        window = b.draw(choice([k for k in range(len(v.shape)) if k != axis]))
        last = (v.shape[axis] - 1) * stride + max(v.shape[window] - 1, 0) * dilation
        size = last + 1 + b.draw(choice((0, 1, 3)))
        shape = (*v.shape[:axis], size, *v.shape[axis + 1 :])
        if math.prod(shape) <= MAX_ELEMENTS:
            b.step(Op.UNSHEAR, (v,), Window(axis, window, stride, dilation), shape)


def _index(b: Builder, v: ProgramValue, axis: int) -> ProgramValue:
    """Indices along `axis` of `v`, some of them out of range."""
    shape = (*v.shape[:axis], b.draw(choice(SIZES[:7])), *v.shape[axis + 1 :])
    dtype = b.draw(choice((dtypes.int64, dtypes.int32, dtypes.uint8)))
    rng = np.random.default_rng(b.draw(st.integers(0, 2**16)))
    n = v.shape[axis]
    return b.given(
        rng.integers(0 if dtype is dtypes.uint8 else -2, max(n, 1) + 2, shape).astype(to_numpy(dtype))
    )


def _gather(b: Builder) -> None:
    v = b.pick(lambda v: len(v.shape) > 0 and max(v.shape) > 0)
    if v is not None:
        axis = b.draw(choice([k for k, n in enumerate(v.shape) if n > 0]))
        b.step(Op.GATHER, (v, _index(b, v, axis)), Along(axis))


def _scatter(b: Builder) -> None:
    v = b.pick(lambda v: len(v.shape) > 0)
    if v is None:
        return
    axis = b.draw(st.integers(0, len(v.shape) - 1))
    index = _index(b, v, axis)
    ops = (None, Op.ADD, Op.MUL, Op.MAX, Op.MIN) if v.dtype.kind is not Kind.BOOL else (None, Op.MAX, Op.MIN)
    b.step(Op.SCATTER, (v, index, b.leaf(index.shape, v.dtype)), ScatterCombine(axis, b.draw(choice(ops))))


def _concat(b: Builder) -> None:
    v = b.pick(lambda v: len(v.shape) > 0)
    if v is None:
        return
    axis = b.draw(st.integers(0, len(v.shape) - 1))
    beside = [
        w for w in b.values
        if w.dtype is v.dtype and len(w.shape) == len(v.shape)
        and all(k == axis or n == m for k, (n, m) in enumerate(zip(v.shape, w.shape, strict=True)))
    ]  # fmt: skip
    parts = b.draw(st.lists(choice(beside), min_size=1, max_size=2))
    if sum(math.prod(w.shape) for w in (v, *parts)) <= MAX_ELEMENTS:
        b.step(Op.CONCAT, (v, *parts), Along(axis))


def _contiguous(b: Builder) -> None:
    v = b.pick()
    assert v is not None
    b.step(Op.CONTIGUOUS, (v,))


def _copy(b: Builder) -> None:
    v = b.pick()
    assert v is not None
    away = b.step(Op.COPY, (v,), Target("away"))
    b.step_values.pop()  # what is away is out of reach of other moves
    b.step(Op.COPY, (away,), Target("home"))


def _leaf(b: Builder) -> None:
    b.leaf(b.draw(shapes()), b.draw(choice(list(b.dtypes))))


def _range(b: Builder) -> None:
    numbers = [d for d in b.dtypes if d.kind is not Kind.BOOL]
    if numbers:
        b.step(Op.RANGE, (), None, (b.draw(choice(SIZES)),), b.draw(choice(numbers)))


def _matmul(b: Builder) -> None:
    """x @ y as it is composed: expand both, multiply, sum."""
    v = b.pick(lambda v: len(v.shape) == 2 and v.dtype.kind is not Kind.BOOL)
    if v is None:
        return
    (m, k), n = v.shape, b.draw(choice(SIZES[:8]))
    if m * k * n > 4 * MAX_ELEMENTS:
        return
    w = b.leaf((k, n), v.dtype)
    left = b.step(Op.EXPAND, (b.step(Op.RESHAPE, (v,), None, (m, k, 1)),), None, (m, k, n))
    right = b.step(Op.EXPAND, (b.step(Op.RESHAPE, (w,), None, (1, k, n)),), None, (m, k, n))
    b.step(Op.SUM, (b.step(Op.MUL, (left, right)),), Axes((1,)))


def _softmax(b: Builder) -> None:
    """exp(x - max x) / sum(exp(x - max x)) along the last axis: two reductions, one of which needs the other."""
    v = b.pick(lambda v: v.dtype.is_float and len(v.shape) > 0 and v.shape[-1] > 0)
    if v is None:
        return
    axes, kept = Axes((len(v.shape) - 1,)), (*v.shape[:-1], 1)

    def along(op: Op, x: ProgramValue) -> ProgramValue:
        return b.step(Op.EXPAND, (b.step(Op.RESHAPE, (b.step(op, (x,), axes),), None, kept),), None, v.shape)

    e = b.step(Op.EXP, (b.step(Op.SUB, (v, along(Op.REDUCE_MAX, v))),))
    b.step(Op.DIV, (e, along(Op.SUM, e)))


MOVES: tuple[Move, ...] = (
    *(_unary, _binary) * 4, _compare, _where, _logical_not, _cast, _bitcast, _threefry, _reduce, _reshape, _permute,
    _expand, _pad, _shrink, _update, _flip, _windows, _gather, _scatter, _concat, _contiguous, _copy, _leaf, _range,
    _matmul, _softmax,
)  # fmt: skip

_ELEMENTWISE_MOVES: tuple[Move, ...] = (_unary, _binary, _compare, _where, _cast)
_VIEW_MOVES: tuple[Move, ...] = (_reshape, _permute, _expand, _pad, _shrink, _flip, _windows)
_REDUCE_MOVES: tuple[Move, ...] = (_reduce, _matmul, _softmax)


def elementwise_programs(
    max_steps: int = 12, allowed: Sequence[DType] | None = None
) -> st.SearchStrategy[GraphProgram]:
    """Elementwise ops only: what becomes one kernel."""
    return programs(max_steps, allowed, _ELEMENTWISE_MOVES)


def view_programs(
    max_steps: int = 12, allowed: Sequence[DType] | None = None
) -> st.SearchStrategy[GraphProgram]:
    """Mostly views of views, and arithmetic on them."""
    return programs(max_steps, allowed, (*_VIEW_MOVES, *_VIEW_MOVES, _binary, _where))


def reduction_programs(
    max_steps: int = 10, allowed: Sequence[DType] | None = None
) -> st.SearchStrategy[GraphProgram]:
    """Reductions of elementwise ops of reductions."""
    return programs(max_steps, allowed, (*_REDUCE_MOVES, *_ELEMENTWISE_MOVES, _reshape, _permute, _expand))


@st.composite
def programs(
    draw: Draw, max_steps: int = 10, allowed: Sequence[DType] | None = None, moves: Sequence[Move] = MOVES
) -> GraphProgram:
    """Programs of up to about `max_steps` ops over the dtypes `allowed` (all of them when None)."""
    b = Builder(draw, tuple(DTYPES.values()) if allowed is None else tuple(allowed))
    usual = [d for d in (dtypes.float32, dtypes.float64, dtypes.float32) if d in b.dtypes]
    dtype = draw(choice([*usual, *b.dtypes]))
    b.leaf(draw(shapes()), dtype)
    for _ in range(draw(st.integers(max_steps // 2, max_steps))):
        draw(choice((_rest, *moves)))(b)
    return b.finish()
