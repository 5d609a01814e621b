"""Scalar expressions of sites: what a frame computes, over its own variables.

Narrow floats are computed in f32 and rounded after each op, as an eager run would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.dtypes import DType
from weft.ir.expr import Const, Expr, FromIndex, Load, ScalarCall
from weft.ir.graph import Fill, Node, ScatterCombine
from weft.ir.index import Guard, Index, Int, Opaque, Var, bounds, high, map_guard, rewrite
from weft.ir.kernel.lower import identity
from weft.ir.ops import COMBINE, Op
from weft.scheduler.kernelize.groups import Kind, Site

_EXACT = frozenset({Op.NEG, Op.ABS, Op.MAX, Op.MIN, Op.WHERE, Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND})
"""Exact ops, which need no rounding: their results are operands, or whole numbers."""


def widen(e: Expr) -> Expr:
    """A narrow float as f32."""
    return ex.cast(e, dtypes.float32) if e.dtype.is_narrow else e


def narrow(e: Expr, dtype: DType) -> Expr:
    """A computed value as an element of `dtype`."""
    if e.dtype is dtype:
        return e
    if isinstance(e, ScalarCall) and e.op is Op.CAST and e.args[0].dtype is dtype:
        return e.args[0]
    bits = (
        _moved_bits(e, dtype) if isinstance(e, ScalarCall) and e.op is Op.WHERE and dtype.is_narrow else None
    )
    return ex.cast(e, dtype) if bits is None else ex.call(Op.BITCAST, bits, dtype=dtype)


_MAX_CHOICES = 16
"""Nested choices that are searched at most for elements that only move."""


def _moved_bits(e: Expr, dtype: DType, depth: int = _MAX_CHOICES) -> Expr | None:
    """The bits of a widened element of `dtype`, or of a choice between such: they need no rounding. None for others."""
    word = dtypes.uint8 if dtype.bits == 8 else dtypes.uint16
    match e:
        case Const():
            small = Const(dtype, e.value)
            return (
                ex.call(Op.BITCAST, small, dtype=word) if ex.bits(small.value) == ex.bits(e.value) else None
            )
        case ScalarCall(op=Op.CAST, args=(x,)) if x.dtype is dtype:
            return ex.call(Op.BITCAST, x, dtype=word)
        case ScalarCall(op=Op.WHERE, args=(c, a, b)) if depth:
            yes = _moved_bits(a, dtype, depth - 1)
            no = None if yes is None else _moved_bits(b, dtype, depth - 1)
            return None if yes is None or no is None else ex.where(c, yes, no)
        case _:
            return None


def converted(e: Expr, dtype: DType) -> Expr:
    """`e` as `dtype`; an index stays one, whose range is known, where the integer type can hold it."""
    if isinstance(e, FromIndex) and dtype.is_int:
        lo, hi = bounds(e.index)
        if dtype.min <= lo and hi <= dtype.max and e.dtype.min <= lo and hi <= e.dtype.max:
            return ex.from_index(e.index, dtype)
    return ex.cast(e, dtype)


class Evaluator:
    """Evaluates the sites of one group for one frame.

    `rename` gives each coordinate over the frame's variables; `load` makes a load of a parameter; `values` gives the
    name and the coordinates of each reduction, by frame number.
    """

    def __init__(
        self,
        stamp: int,
        rename: Mapping[Var, Int],
        markers: Mapping[Opaque, tuple[Site, Int | None]],
        load: Any,
        values: Mapping[int, tuple[str, Sequence[Var]]],
    ) -> None:
        self.stamp, self.rename, self.markers = stamp, rename, markers
        self.make_load, self.values = load, values
        self.memo: dict[Int, Int] = {}

    def run(self, root: Site) -> Expr:
        """The value of `root`; what it is computed from comes first."""
        stamp = self.stamp
        stack = [root]
        while stack:
            site = stack[-1]
            if site.stamp == stamp:
                stack.pop()
                continue
            open_ = [s for s in site.inputs if s.stamp != stamp]
            if open_:
                stack.extend(reversed(open_))
                continue
            site.value = self.value(site)
            site.stamp = stamp
            stack.pop()
        return root.value

    def value(self, site: Site) -> Expr:
        node = site.node
        match site.kind:
            case Kind.CALL:
                return self.call(node, [s.value for s in site.inputs])
            case Kind.LOAD:
                return widen(self.make_load(node, tuple([self.index(i) for i in site.index])))
            case Kind.FORWARD:
                return site.inputs[0].value
            case Kind.CONST:
                return self.constant(site)
            case Kind.REDUCTION:
                return self.reduction(site)
            case Kind.PAD:
                return self.padded(site)
            case Kind.RANGE:
                return widen(converted(ex.from_index(self.index(site.index[0])), node.dtype))
            case Kind.SELECT:
                return self.select(site)
            case Kind.ONE_HOT:
                return self.one_hot(site)
            case _:
                raise AssertionError(f"{node!r} has not been placed")

    def call(self, node: Node, args: list[Expr]) -> Expr:
        op, dtype = node.op, node.dtype
        if op is Op.CAST:
            (x,) = args
            source = node.inputs[0].dtype
            if dtype.is_narrow and not source.is_narrow:
                return widen(ex.cast(x, dtype))
            if dtype.is_narrow:
                return x if source is dtype else widen(narrow(x, dtype))
            return converted(x, dtype)
        if op is Op.BITCAST:
            return widen(ex.call(op, narrow(args[0], node.inputs[0].dtype), dtype=dtype))
        out = ex.call(op, *args)
        return widen(narrow(out, dtype)) if dtype.is_narrow and op not in _EXACT else out

    def constant(self, site: Site) -> Expr:
        node = site.node
        dtype = dtypes.float32 if node.dtype.is_narrow else node.dtype
        if site.fill is None:
            assert isinstance(node.attrs, Fill)
            return Const(dtype, node.attrs.value)
        if isinstance(site.fill, str):
            return identity(COMBINE[node.op], dtype)
        return Const(dtype, ex.normalize(node.dtype, site.fill))

    def reduction(self, site: Site) -> Expr:
        frame = site.frame
        assert frame is not None
        dtype = site.node.dtype
        name, axes = self.values[frame.number]
        e = Load(dtypes.accumulator(dtype), name, tuple([self.index(v) for v in axes]))
        return widen(narrow(e, dtype))

    def padded(self, site: Site) -> Expr:
        x: Expr = site.inputs[0].value
        assert not isinstance(site.fill, str | None)
        guard, fill = self.guard(site.guards[0]), ex.normalize(site.node.dtype, site.fill)
        zero = ex.bits(fill) in (0, ex.bits(0.0))
        if zero and isinstance(x, Load) and all(x.source != name for name, _ in self.values.values()):
            return Load(x.dtype, x.source, x.index, (*x.guard, *(c for c in guard if c not in x.guard)))
        return ex.where(ex.test(guard), x, Const(x.dtype, fill))

    def select(self, site: Site) -> Expr:
        out: Expr | None = None
        for guard, chosen in reversed(list(zip(site.guards, site.inputs, strict=False))):
            out = chosen.value if out is None else ex.where(ex.test(self.guard(guard)), chosen.value, out)
        assert out is not None
        return out

    def one_hot(self, site: Site) -> Expr:
        at, x, src = (s.value for s in site.inputs[:3])  # more follow when the index is computed
        assert isinstance(site.node.attrs, ScatterCombine)
        op = site.node.attrs.op
        here = ex.call(Op.EQ, ex.cast(at, dtypes.int64), ex.from_index(self.index(site.index[site.axis])))
        return ex.where(here, src if op is None else ex.call(op, x, src), x)

    # indices ---------------------------------------------------------------------------------------------------------

    def guard(self, g: Guard) -> Guard:
        """A guard over the frame's variables."""
        return map_guard(g, self.index)

    def index(self, i: Int) -> Int:
        """An index over the frame's variables, computed indices filled in."""
        if isinstance(i, int):
            return i
        found = self.memo.get(i)
        if found is None:
            found = self.memo[i] = rewrite(i, self.leaf)
        return found

    def leaf(self, i: Index) -> Int | None:
        if isinstance(i, Var):
            return self.rename.get(i)
        if isinstance(i, Opaque):
            site, size = self.markers[i]
            return computed_index(site.value, size)
        return None


def computed_index(value: Expr, size: Int | None) -> Int:
    """An integer value as an index; clamped into 0 .. size - 1 if a size is given."""
    if size is None:
        return ex.as_index(ex.cast(value, dtypes.int64), -(1 << 63), (1 << 63) - 1)
    if value.dtype is dtypes.uint64:  # above the signed range is above every size
        top = Const(dtypes.uint64, (1 << 63) - 1)
        value = ex.call(Op.MIN, value, top)
    wide = ex.cast(value, dtypes.int64)
    last = ex.from_index(size - 1)
    clamped = ex.call(Op.MIN, ex.call(Op.MAX, wide, Const(dtypes.int64, 0)), last)
    return ex.as_index(clamped, 0, high(size) - 1)
