"""The reference: what a graph means, in NumPy, one plain function per op.

It is slow and shares nothing with what it checks but `FUNCTIONS`, which names what transcendental ops approximate:
movement ops move data here, they are not index functions.
Narrow floats are computed in float32 and rounded after each op; reductions over them accumulate in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from weft.ir import dtypes, index
from weft.ir.dtypes import DType, convert_array, from_numpy, to_numpy
from weft.ir.graph import Along, Axes, Box, Fill, Node, Padding, ScatterCombine, Window, buffer, toposort
from weft.ir.index import Int
from weft.ir.loop_body import LoopNode, Part
from weft.ir.ops import Op
from weft.ir.reference_ops import FUNCTIONS
from weft.ir.template import GraphTemplate
from weft.lazy_dataclass import dataclass

Array: TypeAlias = np.ndarray[Any, Any]
Bindings: TypeAlias = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Context:
    """The context of a rule beside the input arrays: the node, its sizes as numbers, and the runtime variables."""

    node: Node
    shape: tuple[int, ...]
    bindings: Bindings

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def attrs(self) -> Any:
        return self.node.attrs

    def number(self, x: Int) -> int:
        """A size or offset as a number."""
        return int(index.evaluate(x, self.bindings))


ReferenceRule: TypeAlias = Callable[..., Array]
"""rule(context, *inputs) -> output."""


def evaluate(
    nodes: Sequence[Node], bindings: Bindings | None = None, given: Mapping[Node, Array] | None = None
) -> list[Array]:
    """The values of `nodes`, each computed from the leaves (results that nodes store are not used).

    A leaf's storage is an array or has `.numpy()`. `bindings` gives the runtime variables in shapes by name,
    `given` the values of leaves that have none of their own.
    Raises ValueError where a leaf has no storage, or one of another shape or dtype.
    """
    values: dict[int, Array] = {}
    with np.errstate(all="ignore"):
        for node in toposort(nodes, stop_at_storage=False):
            shape = tuple(int(index.evaluate(n, bindings or {})) for n in node.shape)
            if given is not None and node in given:
                values[id(node)] = given[node]
                continue
            context = Context(node, shape, bindings or {})
            out = np.asarray(REFERENCE[node.op](context, *(values[id(i)] for i in node.inputs)))
            if out.shape != shape or out.dtype != to_numpy(node.dtype):
                raise ValueError(f"{node!r}: the reference made {out.dtype}{list(out.shape)}")
            values[id(node)] = out
    return [np.array(values[id(n)]) for n in nodes]


# --- leaves


def _buffer(c: Context) -> Array:
    storage = c.node.storage
    if storage is None:
        raise ValueError(f"{c.node!r} has no storage")
    values: Array = storage.numpy() if hasattr(storage, "numpy") else storage
    return np.asarray(values).reshape(c.shape)


def _const(c: Context) -> Array:
    fill = c.attrs
    assert isinstance(fill, Fill)
    return np.full(c.shape, cast(np.asarray(fill.value), c.dtype))


def _range(c: Context) -> Array:
    return cast(np.arange(c.shape[0], dtype=np.int64), c.dtype)


# --- elementwise


def cast(x: Array, dtype: DType) -> Array:
    """`x` as `dtype`: float to integer truncates and saturates, NaN is 0; narrow floats are reached by way of f32."""
    if x.dtype == to_numpy(dtype):
        return x
    if dtype.is_narrow:
        return convert_array(x.astype(np.float32), dtype)
    if not dtype.is_int or x.dtype.kind in "iub":
        return x.astype(to_numpy(dtype))
    x = np.trunc(x.astype(np.float64))
    inside = (x >= float(dtype.min)) & (x < float(int(dtype.max) + 1))
    out = np.where(inside, x, 0.0).astype(to_numpy(dtype))
    out = np.where(x < float(dtype.min), np.array(dtype.min, to_numpy(dtype)), out)
    return np.where(x >= float(int(dtype.max) + 1), np.array(dtype.max, to_numpy(dtype)), out)


def _elementwise(f: Callable[..., Any]) -> ReferenceRule:
    """`f` on the inputs, narrow floats widened to f32 first; the result is rounded to the node's dtype."""

    def rule(c: Context, *xs: Array) -> Array:
        return cast(np.asarray(f(*(_wide(x) for x in xs))), c.dtype)

    return rule


def _wide(x: Array) -> Array:
    return x.astype(np.float32) if from_numpy(x.dtype).is_narrow else x


def _precise(f: Callable[..., Any]) -> ReferenceRule:
    """`f` computed in float64 and rounded once."""

    def rule(c: Context, *xs: Array) -> Array:
        return cast(np.asarray(f(*(x.astype(np.float64) for x in xs))), c.dtype)

    return rule


def _integral(f: Callable[[Array], Any]) -> ReferenceRule:
    """A rounding function: integers are as they should be already."""

    def rule(c: Context, x: Array) -> Array:
        return cast(np.asarray(f(_wide(x))), c.dtype) if c.dtype.is_float else x

    return rule


def _cast(c: Context, x: Array) -> Array:
    return cast(x, c.dtype)


def _bitcast(c: Context, x: Array) -> Array:
    return np.ascontiguousarray(x).view(to_numpy(c.dtype)).reshape(c.shape)


def _floordiv(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0, a // np.where(b == 0, 1, b).astype(b.dtype)).astype(a.dtype)


def _mod(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.fmod(a, b)
    return np.where(b == 0, 0, a % np.where(b == 0, 1, b).astype(b.dtype)).astype(a.dtype)


def _pow(c: Context, a: Array, b: Array) -> Array:
    if c.dtype.is_float:
        return _precise(FUNCTIONS[Op.POW])(c, a, b)
    modulus = 1 << c.dtype.bits
    signed = modulus if c.dtype.min == 0 else modulus // 2  # values from here on stand for negative ones

    def power(x: int, y: int) -> int:
        if y < 0:
            return 1 if x == 1 else (-1 if y % 2 else 1) if x == -1 else 0
        r = pow(x, y, modulus)
        return r - modulus if r >= signed else r

    flat = [power(x, y) for x, y in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)]
    return np.array(flat, a.dtype).reshape(a.shape)


def _max(a: Array, b: Array) -> Array:
    """NaN if either is; 0.0 is larger than -0.0."""
    if a.dtype.kind != "f":
        return np.maximum(a, b)
    return np.where((a == 0) & (b == 0), a + b, np.maximum(a, b))  # 0.0 + -0.0 is 0.0


def _min(a: Array, b: Array) -> Array:
    """NaN if either is; -0.0 is smaller than 0.0."""
    return -_max(-a, -b) if a.dtype.kind == "f" else np.minimum(a, b)


def _shl(a: Array, b: Array) -> Array:
    fits = (b >= 0) & (b < 8 * a.dtype.itemsize)
    return np.where(fits, np.left_shift(a, np.where(fits, b, 0).astype(b.dtype)), 0).astype(a.dtype)


def _shr(a: Array, b: Array) -> Array:
    fits = (b >= 0) & (b < 8 * a.dtype.itemsize)
    shifted = np.right_shift(a, np.where(fits, b, 0).astype(b.dtype))
    return np.where(fits, shifted, np.where(a < 0, -1, 0).astype(a.dtype))


def _where(c: Context, condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


def _threefry(counter: Array, key0: Array, key1: Array) -> Array:
    return threefry_block(counter, np.zeros_like(counter), key0, key1)[0]


def threefry_block(x0: Array, x1: Array, key0: Array, key1: Array) -> tuple[Array, Array]:
    """Both words of Threefry-2x32 with 20 rounds on block (x0, x1). Source: Salmon et al., SC 2011, section 4."""
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(0x1BD11BDA))
    rotations = (13, 15, 26, 6, 17, 29, 16, 24)
    x0, x1 = x0 + key0, x1 + key1
    for r in range(20):
        left = np.uint32(rotations[r % 8])
        x0 = x0 + x1
        x1 = (x1 << left | x1 >> (np.uint32(32) - left)) ^ x0
        if r % 4 == 3:
            n = r // 4 + 1
            x0, x1 = x0 + keys[n % 3], x1 + keys[(n + 1) % 3] + np.uint32(n)
    return x0, x1


def _fma(c: Context, a: Array, b: Array, x: Array) -> Array:
    raise ValueError("FMA is made by a pass over kernels: a graph has none")


# --- reductions


def _reduce(c: Context, x: Array, ufunc: np.ufunc, accumulator: np.dtype[Any]) -> Array:
    """`ufunc` over the node's axes; rows are made contiguous so that NumPy adds them pairwise."""
    axes: Axes = c.attrs
    kept = [k for k in range(x.ndim) if k not in axes.axes]
    count = math.prod(x.shape[a] for a in axes.axes)
    rows = np.ascontiguousarray(x.astype(accumulator).transpose(*kept, *axes.axes)).reshape(*c.shape, count)
    return ufunc.reduce(rows, axis=-1, dtype=accumulator)


def _sum(c: Context, x: Array) -> Array:
    exact = to_numpy(dtypes.float64 if c.dtype is dtypes.float32 else dtypes.accumulator(c.dtype))
    return cast(np.asarray(_reduce(c, x, np.add, exact)), c.dtype)


def _prod(c: Context, x: Array) -> Array:
    return cast(np.asarray(_reduce(c, x, np.multiply, to_numpy(dtypes.accumulator(c.dtype)))), c.dtype)


def _reduce_max(c: Context, x: Array) -> Array:
    return cast(np.asarray(_reduce(c, x, np.maximum, to_numpy(dtypes.accumulator(c.dtype)))), c.dtype)


def _reduce_min(c: Context, x: Array) -> Array:
    return cast(np.asarray(_reduce(c, x, np.minimum, to_numpy(dtypes.accumulator(c.dtype)))), c.dtype)


# --- movement


def _reshape(c: Context, x: Array) -> Array:
    return x.reshape(c.shape)


def _permute(c: Context, x: Array) -> Array:
    axes: Axes = c.attrs
    return x.transpose(axes.axes)


def _expand(c: Context, x: Array) -> Array:
    return np.broadcast_to(x, c.shape)


def _pad(c: Context, x: Array) -> Array:
    p: Padding = c.attrs
    out = np.full(c.shape, np.asarray(p.fill).astype(x.dtype))
    inside: list[slice] = []
    for n, low, gap in zip(x.shape, p.low, p.interior, strict=True):
        inside.append(_steps(c.number(low), gap + 1, n))
    out[tuple(inside)] = x
    return out


def _steps(start: int, step: int, count: int) -> slice:
    """`count` positions from `start` on, `step` apart."""
    return slice(start, start + (count - 1) * step + 1 if count else start, step)


def _box(c: Context, box: Box, size: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(_steps(c.number(s), step, n) for s, step, n in zip(box.start, box.step, size, strict=True))


def _shrink(c: Context, x: Array) -> Array:
    return x[_box(c, c.attrs, c.shape)]


def _flip(c: Context, x: Array) -> Array:
    axes: Axes = c.attrs
    return np.flip(x, axes.axes)


def _shear(c: Context, x: Array) -> Array:
    w: Window = c.attrs
    out = np.zeros(c.shape, x.dtype)
    x, windows = np.moveaxis(x, (w.axis, w.window), (0, 1)), np.moveaxis(out, (w.axis, w.window), (0, 1))
    for k in range(windows.shape[1]):
        windows[:, k] = x[_steps(k * w.dilation, w.stride, len(windows)), k]
    return out


def _unshear(c: Context, x: Array) -> Array:
    w: Window = c.attrs
    out = np.zeros(c.shape, x.dtype)
    windows, slid = np.moveaxis(x, (w.axis, w.window), (0, 1)), np.moveaxis(out, (w.axis, w.window), (0, 1))
    for k in range(windows.shape[1]):
        slid[_steps(k * w.dilation, w.stride, len(windows)), k] = windows[:, k]
    return out


# --- data-dependent and structural


def _gather(c: Context, x: Array, indices: Array) -> Array:
    along: Along = c.attrs
    if indices.size == 0:
        return np.zeros(c.shape, x.dtype)
    last = x.shape[along.axis] - 1
    clamped = [min(max(i, 0), last) for i in indices.ravel().tolist()]
    return np.take_along_axis(x, np.array(clamped, np.int64).reshape(indices.shape), along.axis)


_COMBINE: dict[Op | None, Callable[[Any, Any], Any]] = {
    None: lambda old, new: new,
    Op.ADD: lambda old, new: old + new,
    Op.MUL: lambda old, new: old * new,
    Op.MAX: _max,
    Op.MIN: _min,
}


def _scatter(c: Context, x: Array, indices: Array, src: Array) -> Array:
    how: ScatterCombine = c.attrs
    out, combine = _wide(x).copy(), _COMBINE[how.op]
    for at in np.ndindex(*indices.shape):
        i = int(indices[at])
        if 0 <= i < x.shape[how.axis]:
            to = (*at[: how.axis], i, *at[how.axis + 1 :])
            out[to] = combine(out[to], _wide(src[at]))
    return cast(out, c.dtype)


def _concat(c: Context, *xs: Array) -> Array:
    along: Along = c.attrs
    return np.concatenate(xs, along.axis)


def _update(c: Context, x: Array, src: Array) -> Array:
    out = x.copy()
    out[_box(c, c.attrs, src.shape)] = src
    return out


def _same(c: Context, x: Array) -> Array:
    return x


def _loop(c: Context, *inputs: Array) -> Array:
    loop: LoopNode = c.attrs
    body, k = loop.body, loop.number
    carry, rest = list(inputs[: len(body.carries)]), inputs[len(body.carries) :]
    sliced, fixed = rest[: len(body.slices)], rest[len(body.slices) :]
    out = np.zeros(c.shape, to_numpy(c.dtype))
    length = int(index.evaluate(body.length, c.bindings))
    if loop.part is Part.HISTORY:
        out[length if body.reverse else 0] = carry[k]
    for step in range(length):
        t = length - 1 - step if body.reverse else step
        rows = [x[t + at] for x, at in zip(sliced, body.offsets, strict=True)]
        given = dict(zip((*body.carries, *body.slices, *body.fixed), (*carry, *rows, *fixed), strict=True))
        found = evaluate((*body.nexts, *body.outs), c.bindings, given)
        carry, outs = found[: len(carry)], found[len(carry) :]
        if loop.part is Part.HISTORY:
            out[t + body.after] = carry[k]
        elif loop.part is Part.STACK:
            out[t] = outs[k]
    return carry[k] if loop.part is Part.FINAL else out


def _call(c: Context, *inputs: Array) -> Array:
    template: GraphTemplate = c.attrs
    leaves = [buffer(shape, dtype, None, None) for shape, dtype in template.placeholders]
    (out,) = evaluate(template.build(leaves), c.bindings, dict(zip(leaves, inputs, strict=True)))
    return out


REFERENCE: dict[Op, ReferenceRule] = {
    Op.BUFFER: _buffer,
    Op.CONST: _const,
    Op.RANGE: _range,
    **{op: _precise(f) for op, f in FUNCTIONS.items()},
    Op.NEG: _elementwise(np.negative),
    Op.ABS: _elementwise(np.abs),
    Op.RECIP: _elementwise(np.reciprocal),
    Op.SQRT: _elementwise(np.sqrt),
    Op.FLOOR: _integral(np.floor),
    Op.CEIL: _integral(np.ceil),
    Op.TRUNC: _integral(np.trunc),
    Op.ROUND: _integral(np.rint),
    Op.NOT: _elementwise(np.invert),
    Op.CAST: _cast,
    Op.BITCAST: _bitcast,
    Op.ADD: _elementwise(np.add),
    Op.SUB: _elementwise(np.subtract),
    Op.MUL: _elementwise(np.multiply),
    Op.DIV: _elementwise(np.divide),
    Op.FLOORDIV: _elementwise(_floordiv),
    Op.MOD: _elementwise(_mod),
    Op.MAX: _elementwise(_max),
    Op.MIN: _elementwise(_min),
    Op.POW: _pow,
    Op.LT: _elementwise(np.less),
    Op.LE: _elementwise(np.less_equal),
    Op.EQ: _elementwise(np.equal),
    Op.NE: _elementwise(np.not_equal),
    Op.AND: _elementwise(np.bitwise_and),
    Op.OR: _elementwise(np.bitwise_or),
    Op.XOR: _elementwise(np.bitwise_xor),
    Op.SHL: _elementwise(_shl),
    Op.SHR: _elementwise(_shr),
    Op.WHERE: _where,
    Op.THREEFRY: _elementwise(_threefry),
    Op.FMA: _fma,
    Op.SUM: _sum,
    Op.PROD: _prod,
    Op.REDUCE_MAX: _reduce_max,
    Op.REDUCE_MIN: _reduce_min,
    Op.RESHAPE: _reshape,
    Op.PERMUTE: _permute,
    Op.EXPAND: _expand,
    Op.PAD: _pad,
    Op.SHRINK: _shrink,
    Op.FLIP: _flip,
    Op.SHEAR: _shear,
    Op.UNSHEAR: _unshear,
    Op.GATHER: _gather,
    Op.SCATTER: _scatter,
    Op.CONCAT: _concat,
    Op.UPDATE: _update,
    Op.CONTIGUOUS: _same,
    Op.COPY: _same,
    Op.LOOP: _loop,
    Op.CALL: _call,
}
