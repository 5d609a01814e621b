"""Small kernels of every kind that schedules must preserve, with what NumPy says they compute."""
# Tests: tests/ir/kernel/test_transforms.py

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.expr import Const, Expr, Load
from weft.ir.index import Var, ceildiv, floordiv, high, in_range, mod
from weft.ir.kernel.algorithm import Algorithm, Axis, ItemValue, Output, Param, Reduce, StoreTo
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

F = dtypes.float32
Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Case:
    """An algorithm, the shapes of its inputs, and its outputs' values."""

    algorithm: Algorithm
    reference: Callable[[Arrays], Arrays]

    def inputs(self, seed: int) -> Arrays:
        """Normally distributed inputs, and small integers."""
        r = np.random.default_rng(seed)

        def values(p: Param) -> np.ndarray[Any, Any]:
            shape = [high(n) for n in p.shape]
            if p.dtype.is_int:
                return r.integers(0 if p.dtype is dtypes.uint8 else -8, 16, shape).astype(p.dtype.name)
            return r.standard_normal(shape).astype(np.float32)

        return {p.name: values(p) for p in self.algorithm.params if not p.written}


def axis(name: str, extent: int) -> Axis:
    """An axis with a variable of that name."""
    return Axis(Var(name, 0, extent - 1), extent)


def mul(a: Expr, b: Expr) -> Expr:
    """a * b."""
    return ex.call(Op.MUL, a, b)


def matmul(m: int, n: int, k: int) -> Case:
    """relu(a @ b + bias)."""
    i, j, l = axis("i", m), axis("j", n), axis("l", k)
    c = ItemValue(
        "c", (i, j), mul(Load(F, "a", (i.var, l.var)), Load(F, "b", (l.var, j.var))), Reduce(Op.ADD, (l,))
    )
    y, x = axis("y", m), axis("x", n)
    e = ex.call(Op.MAX, ex.call(Op.ADD, Load(F, "c", (y.var, x.var)), Load(F, "bias", (x.var,))), Const(F, 0))
    out = Output("out", (y, x), (StoreTo("r", (y.var, x.var), e),))
    params = (
        Param("a", F, (m, k)),
        Param("b", F, (k, n)),
        Param("bias", F, (n,)),
        Param("r", F, (m, n), True),
    )
    return Case(
        Algorithm("matmul", params, (), (c, out)), lambda t: {"r": np.maximum(t["a"] @ t["b"] + t["bias"], 0)}
    )


def softmax(m: int, n: int) -> Case:
    """Softmax of the rows."""
    i, j = axis("i", m), axis("j", n)
    top = ItemValue("top", (i,), Load(F, "x", (i.var, j.var)), Reduce(Op.MAX, (j,)))

    def weight(row: Var, column: Var) -> Expr:
        return ex.call(Op.EXP, ex.call(Op.SUB, Load(F, "x", (row, column)), Load(F, "top", (row,))))

    i2, j2 = axis("i2", m), axis("j2", n)
    total = ItemValue("total", (i2,), weight(i2.var, j2.var), Reduce(Op.ADD, (j2,)))
    y, x = axis("y", m), axis("x", n)
    e = ex.call(Op.DIV, weight(y.var, x.var), Load(F, "total", (y.var,)))
    out = Output("out", (y, x), (StoreTo("r", (y.var, x.var), e),))
    params = (Param("x", F, (m, n)), Param("r", F, (m, n), True))

    def reference(t: Arrays) -> Arrays:
        w = np.exp(t["x"] - t["x"].max(1, keepdims=True))
        return {"r": w / w.sum(1, keepdims=True)}

    return Case(Algorithm("softmax", params, (), (top, total, out)), reference)


def attention(batch: int, t: int, d: int, causal: bool) -> Case:
    """softmax(q k^T / sqrt(d)) v, masked above the diagonal if `causal`."""
    b, i, j, k = axis("b", batch), axis("i", t), axis("j", t), axis("k", d)
    s = ItemValue(
        "s",
        (b, i, j),
        mul(Load(F, "q", (b.var, i.var, k.var)), Load(F, "key", (b.var, j.var, k.var))),
        Reduce(Op.ADD, (k,)),
    )

    def score(b: Var, i: Var, j: Var) -> Expr:
        e = mul(Load(F, "s", (b, i, j)), Const(F, d**-0.5))
        return ex.where(ex.test(in_range(i - j, 0, None)), e, Const(F, -np.inf)) if causal else e

    def weight(b: Var, i: Var, j: Var) -> Expr:
        return ex.call(Op.EXP, ex.call(Op.SUB, score(b, i, j), Load(F, "m", (b, i))))

    b1, i1, j1 = axis("b1", batch), axis("i1", t), axis("j1", t)
    m = ItemValue("m", (b1, i1), score(b1.var, i1.var, j1.var), Reduce(Op.MAX, (j1,)))
    b2, i2, j2 = axis("b2", batch), axis("i2", t), axis("j2", t)
    l = ItemValue("l", (b2, i2), weight(b2.var, i2.var, j2.var), Reduce(Op.ADD, (j2,)))
    b3, i3, j3, d3 = axis("b3", batch), axis("i3", t), axis("j3", t), axis("d3", d)
    share = ex.call(Op.DIV, weight(b3.var, i3.var, j3.var), Load(F, "l", (b3.var, i3.var)))
    o = ItemValue(
        "o", (b3, i3, d3), mul(share, Load(F, "v", (b3.var, j3.var, d3.var))), Reduce(Op.ADD, (j3,))
    )
    b4, i4, d4 = axis("b4", batch), axis("i4", t), axis("d4", d)
    at = (b4.var, i4.var, d4.var)
    out = Output("out", (b4, i4, d4), (StoreTo("r", at, Load(F, "o", at)),))
    params = tuple(Param(n, F, (batch, t, d), n == "r") for n in ("q", "key", "v", "r"))

    def reference(x: Arrays) -> Arrays:
        scores = (x["q"].astype(np.float64) @ x["key"].transpose(0, 2, 1)) * d**-0.5
        if causal:
            scores = np.where(np.tri(t, dtype=bool), scores, -np.inf)
        w = np.exp(scores - scores.max(-1, keepdims=True))
        return {"r": (w / w.sum(-1, keepdims=True)) @ x["v"]}

    return Case(Algorithm("attention", params, (), (s, m, l, o, out)), reference)


def convolution(images: int, channels: int, size: int, filters: int) -> Case:
    """A 3x3 convolution that keeps the image's size."""
    n, o, y, x = axis("n", images), axis("o", filters), axis("y", size), axis("x", size)
    c, u, v = axis("c", channels), axis("u", 3), axis("v", 3)
    row, column = y.var + u.var - 1, x.var + v.var - 1
    inside = (*in_range(row, 0, size), *in_range(column, 0, size))
    image = Load(F, "image", (n.var, c.var, row, column), inside)
    e = mul(image, Load(F, "w", (o.var, c.var, u.var, v.var)))
    conv = ItemValue("conv", (n, o, y, x), e, Reduce(Op.ADD, (c, u, v)))
    axes = tuple(axis(f"{a}2", s) for a, s in (("n", images), ("o", filters), ("y", size), ("x", size)))
    at = tuple(a.var for a in axes)
    out = Output("out", axes, (StoreTo("r", at, Load(F, "conv", at)),))
    params = (
        Param("image", F, (images, channels, size, size)),
        Param("w", F, (filters, channels, 3, 3)),
        Param("r", F, (images, filters, size, size), True),
    )

    def reference(t: Arrays) -> Arrays:
        padded = np.pad(t["image"], ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        return {"r": np.einsum("ncyxuv,ocuv->noyx", windows, t["w"])}

    return Case(Algorithm("convolution", params, (), (conv, out)), reference)


def _windows(stride: int, size: int, taps: int, of: tuple[Axis, ...]) -> Expr:
    """relu of an image (n, c, size, size), and zeros around it, at windows (n, c, y, x) and places (u, v) in them."""
    n, c, y, x, u, v = (a.var for a in of)
    row, column = stride * y + u - taps // 2, stride * x + v - taps // 2
    inside = (*in_range(row, 0, size), *in_range(column, 0, size))
    return ex.call(Op.MAX, Load(F, "image", (n, c, row, column), inside), Const(F, 0))


def _slid(t: Arrays, stride: int, taps: int) -> np.ndarray[Any, Any]:
    edge = (taps // 2, taps // 2)
    padded = np.maximum(np.pad(t["image"], ((0, 0), (0, 0), edge, edge)), 0)
    return np.lib.stride_tricks.sliding_window_view(padded, (taps, taps), (2, 3))[:, :, ::stride, ::stride]


def _window_last(stride: int, size: int, taps: int, of: tuple[Axis, ...]) -> Expr:
    """An image (n, size, size, c), and zeros around it, at windows (n, y, x, c) and places (u, v) in them."""
    n, y, x, c, u, v = (a.var for a in of)
    row, column = stride * y + u - taps // 2, stride * x + v - taps // 2
    inside = (*in_range(row, 0, size), *in_range(column, 0, size))
    return Load(F, "image", (n, row, column, c), inside)


def _slid_last(image: np.ndarray[Any, Any], stride: int, taps: int) -> np.ndarray[Any, Any]:
    edge = (taps // 2, taps // 2)
    padded = np.pad(image, ((0, 0), edge, edge, (0, 0)))
    return np.lib.stride_tricks.sliding_window_view(padded, (taps, taps), (1, 2))[:, ::stride, ::stride]


def depthwise(images: int, channels: int, size: int, taps: int, stride: int) -> Case:
    """A convolution of each channel with taps of its own."""
    sizes = images, channels, ceildiv(size, stride), ceildiv(size, stride)
    axes = tuple(axis(*a) for a in zip("ncyx", sizes, strict=True))
    u, v = axis("u", taps), axis("v", taps)
    e = mul(_windows(stride, size, taps, (*axes, u, v)), Load(F, "w", (axes[1].var, u.var, v.var)))
    conv = ItemValue("conv", axes, e, Reduce(Op.ADD, (u, v)))
    own = tuple(axis(*a) for a in zip(("n2", "c2", "y2", "x2"), sizes, strict=True))
    at = tuple(a.var for a in own)
    out = Output("out", own, (StoreTo("r", at, Load(F, "conv", at)),))
    image = Param("image", F, (images, channels, size, size))
    params = (image, Param("w", F, (channels, taps, taps)), Param("r", F, sizes, True))
    return Case(
        Algorithm("depthwise", params, (), (conv, out)),
        lambda t: {"r": np.einsum("ncyxuv,cuv->ncyx", _slid(t, stride, taps), t["w"])},
    )


def depthwise_last(
    images: int, channels: int, size: int, taps: int, stride: int, clipped: bool = False
) -> Case:
    """The same with the channels of images and results side by side, and each channel's taps still together; of what is
    positive in images if `clipped`."""
    rows = ceildiv(size, stride)
    sizes = images, rows, rows, channels
    *_, c = axes = tuple(axis(*a) for a in zip("nyxc", sizes, strict=True))
    u, v = axis("u", taps), axis("v", taps)
    image: Expr = _window_last(stride, size, taps, (*axes, u, v))
    if clipped:
        image = ex.where(ex.call(Op.LE, image, Const(F, 0)), Const(F, 0), image)
    conv = ItemValue("conv", axes, mul(image, Load(F, "w", (c.var, u.var, v.var))), Reduce(Op.ADD, (u, v)))
    own = tuple(axis(*a) for a in zip(("n2", "y2", "x2", "c2"), sizes, strict=True))
    at = tuple(a.var for a in own)
    out = Output("out", own, (StoreTo("r", at, Load(F, "conv", at)),))
    whole = Param("image", F, (images, size, size, channels))
    params = (whole, Param("w", F, (channels, taps, taps)), Param("r", F, sizes, True))

    def reference(t: Arrays) -> Arrays:
        image = np.maximum(t["image"], 0) if clipped else t["image"]
        return {"r": np.einsum("nyxcuv,cuv->nyxc", _slid_last(image, stride, taps), t["w"])}

    return Case(Algorithm("depthwise_last", params, (), (conv, out)), reference)


def depthwise_taps(images: int, channels: int, size: int, taps: int, stride: int) -> Case:
    """The gradient of those taps."""
    sizes = images, channels, ceildiv(size, stride), ceildiv(size, stride)
    n, c, y, x = axes = tuple(axis(*a) for a in zip("ncyx", sizes, strict=True))
    u, v = axis("u", taps), axis("v", taps)
    e = mul(_windows(stride, size, taps, (*axes, u, v)), Load(F, "g", tuple(a.var for a in axes)))
    grad = ItemValue("grad", (c, u, v), e, Reduce(Op.ADD, (n, y, x)))
    own = axis("c2", channels), axis("u2", taps), axis("v2", taps)
    at = tuple(a.var for a in own)
    out = Output("out", own, (StoreTo("r", at, Load(F, "grad", at)),))
    image = Param("image", F, (images, channels, size, size))
    params = (image, Param("g", F, sizes), Param("r", F, (channels, taps, taps), True))
    return Case(
        Algorithm("depthwise_taps", params, (), (grad, out)),
        lambda t: {"r": np.einsum("ncyxuv,ncyx->cuv", _slid(t, stride, taps), t["g"])},
    )


def depthwise_taps_last(images: int, channels: int, size: int, taps: int, stride: int) -> Case:
    """The same with the channels of both operands side by side; the taps of each channel are still together."""
    rows = ceildiv(size, stride)
    sizes = images, rows, rows, channels
    n, y, x, c = axes = tuple(axis(*a) for a in zip("nyxc", sizes, strict=True))
    u, v = axis("u", taps), axis("v", taps)
    image = _window_last(stride, size, taps, (*axes, u, v))
    e = mul(image, Load(F, "g", tuple(a.var for a in axes)))
    grad = ItemValue("grad", (c, u, v), e, Reduce(Op.ADD, (n, y, x)))
    own = axis("c2", channels), axis("u2", taps), axis("v2", taps)
    at = tuple(a.var for a in own)
    out = Output("out", own, (StoreTo("r", at, Load(F, "grad", at)),))
    whole = Param("image", F, (images, size, size, channels))
    params = (whole, Param("g", F, sizes), Param("r", F, (channels, taps, taps), True))

    def reference(t: Arrays) -> Arrays:
        return {"r": np.einsum("nyxcuv,nyxc->cuv", _slid_last(t["image"], stride, taps), t["g"])}

    return Case(Algorithm("depthwise_taps_last", params, (), (grad, out)), reference)


def scaled_blocks(m: int, n: int, block: int) -> Case:
    """A matrix with a scale for each `block` of a row, times a vector."""
    i, l = axis("i", m), axis("l", n)
    scaled = mul(Load(F, "q", (i.var, l.var)), Load(F, "scale", (i.var, floordiv(l.var, block))))
    total = ItemValue("total", (i,), mul(Load(F, "x", (l.var,)), scaled), Reduce(Op.ADD, (l,)))
    y = axis("y", m)
    out = Output("out", (y,), (StoreTo("r", (y.var,), Load(F, "total", (y.var,))),))
    sizes = {"x": (n,), "q": (m, n), "scale": (m, ceildiv(n, block))}
    params = (*(Param(name, F, shape) for name, shape in sizes.items()), Param("r", F, (m,), True))
    return Case(
        Algorithm("scaled_blocks", params, (), (total, out)),
        lambda t: {"r": (t["q"] * np.repeat(t["scale"], block, 1)[:, :n]) @ t["x"]},
    )


def offset_blocks(m: int, n: int, block: int) -> Case:
    """A matrix with a scale and an offset for each `block` of a row, in groups of 8, times a vector."""
    i, l = axis("i", m), axis("l", n)
    place = floordiv(l.var, 8 * block), mod(floordiv(l.var, block), 8)
    scaled = mul(Load(F, "q", (i.var, l.var)), Load(F, "scale", (i.var, *place)))
    value = ex.call(Op.ADD, scaled, Load(F, "offset", (i.var, *place)))
    total = ItemValue("total", (i,), mul(Load(F, "x", (l.var,)), value), Reduce(Op.ADD, (l,)))
    y = axis("y", m)
    out = Output("out", (y,), (StoreTo("r", (y.var,), Load(F, "total", (y.var,))),))
    few = (m, ceildiv(n, 8 * block), 8)
    sizes: dict[str, tuple[int, ...]] = {"x": (n,), "q": (m, n), "scale": few, "offset": few}
    params = (*(Param(name, F, shape) for name, shape in sizes.items()), Param("r", F, (m,), True))

    def wide(t: Arrays, name: str) -> np.ndarray[Any, Any]:
        return np.repeat(t[name].reshape(m, -1), block, 1)[:, :n]

    return Case(
        Algorithm("offset_blocks", params, (), (total, out)),
        lambda t: {"r": (t["q"] * wide(t, "scale") + wide(t, "offset")) @ t["x"]},
    )


def scaled_rows(rows: int, m: int, n: int, block: int) -> Case:
    """A matrix with a scale for each `block` of a row, times a few vectors."""
    i, j, l = axis("i", rows), axis("j", m), axis("l", n)
    scale = mul(Load(F, "scale", (j.var, floordiv(l.var, block))), Const(F, 0.5))
    scaled = mul(scale, Load(F, "q", (j.var, l.var)))
    total = ItemValue("total", (i, j), mul(Load(F, "x", (i.var, l.var)), scaled), Reduce(Op.ADD, (l,)))
    s, y = axis("s", rows), axis("y", m)
    out = Output("out", (s, y), (StoreTo("r", (s.var, y.var), Load(F, "total", (s.var, y.var))),))
    sizes = {"x": (rows, n), "q": (m, n), "scale": (m, ceildiv(n, block))}
    params = (*(Param(name, F, shape) for name, shape in sizes.items()), Param("r", F, (rows, m), True))
    return Case(
        Algorithm("scaled_rows", params, (), (total, out)),
        lambda t: {"r": t["x"] @ (t["q"] * np.repeat(t["scale"] / 2, block, 1)[:, :n]).T},
    )


def gated_blocks(m: int, n: int, *blocks: int) -> Case:
    """Two matrices with a scale for each block of a row, of one size or two, times a vector that is normed (RMS),
    and the products of both."""
    i, l, s = axis("i", m), axis("l", n), axis("s", n)
    square = ItemValue(
        "square", (), mul(Load(F, "x", (s.var,)), Load(F, "x", (s.var,))), Reduce(Op.ADD, (s,))
    )
    mean = ex.call(Op.ADD, mul(Load(F, "square", ()), Const(F, 1 / n)), Const(F, 1e-6))
    norm = ex.call(Op.RECIP, ex.call(Op.SQRT, mean))
    x = mul(mul(Load(F, "x", (l.var,)), norm), Load(F, "w", (l.var,)))

    def total(name: str, q: str, scale: str, block: int) -> ItemValue:
        scaled = mul(Load(F, q, (i.var, l.var)), Load(F, scale, (i.var, floordiv(l.var, block))))
        return ItemValue(name, (i,), mul(x, scaled), Reduce(Op.ADD, (l,)))

    y = axis("y", m)
    e = mul(Load(F, "gate", (y.var,)), Load(F, "up", (y.var,)))
    out = Output("out", (y,), (StoreTo("r", (y.var,), e),))
    scales = [(m, ceildiv(n, block)) for block in (blocks[0], blocks[-1])]
    sizes = {"x": (n,), "w": (n,), "q": (m, n), "a": scales[0], "p": (m, n), "b": scales[1]}
    params = (*(Param(name, F, shape) for name, shape in sizes.items()), Param("r", F, (m,), True))

    def reference(t: Arrays) -> Arrays:
        x = t["x"] / np.sqrt((t["x"] ** 2).mean() + 1e-6) * t["w"]
        pairs = ("q", "a", blocks[0]), ("p", "b", blocks[-1])
        wide = [t[q] * np.repeat(t[scale], block, 1)[:, :n] for q, scale, block in pairs]
        return {"r": (wide[0] @ x) * (wide[1] @ x)}

    items = (square, total("gate", "q", "a", blocks[0]), total("up", "p", "b", blocks[-1]), out)
    return Case(Algorithm("gated_blocks", params, (), items), reference)


def byte_sums(rows: int, groups: int, blocks: int, steps: int, lanes: int) -> Case:
    """Rows of int8 times a matrix of uint8 in lanes of four bytes, with a scale for each block of 4 * `steps` terms."""
    i, g, l = axis("i", rows), axis("g", groups), axis("l", lanes)
    b, r, k = axis("b", blocks), axis("r", steps), axis("k", 4)
    wide = [
        ex.cast(Load(dtype, name, tuple(a.var for a in axes)), dtypes.int32)
        for dtype, name, axes in ((dtypes.int8, "x", (i, b, r, k)), (dtypes.uint8, "q", (g, b, r, l, k)))
    ]
    dot = ItemValue("dot", (i, g, l, b), mul(wide[0], wide[1]), Reduce(Op.ADD, (r, k)))
    j, h, m, c = axis("i2", rows), axis("g2", groups), axis("l2", lanes), axis("b2", blocks)
    part = ex.cast(Load(dtypes.int32, "dot", (j.var, h.var, m.var, c.var)), F)
    scaled = mul(part, Load(F, "scale", (h.var, c.var, m.var)))
    total = ItemValue("total", (j, h, m), scaled, Reduce(Op.ADD, (c,)))
    y, z, x = axis("y", rows), axis("z", groups), axis("x2", lanes)
    at = (y.var, z.var, x.var)
    out = Output("out", (y, z, x), (StoreTo("r", at, Load(F, "total", at)),))
    params = (
        Param("x", dtypes.int8, (rows, blocks, steps, 4)), Param("q", dtypes.uint8, (groups, blocks, steps, lanes, 4)),
        Param("scale", F, (groups, blocks, lanes)), Param("r", F, (rows, groups, lanes), True),
    )  # fmt: skip

    def reference(t: Arrays) -> Arrays:
        dots = np.einsum("ibrk,gbrlk->igbl", t["x"].astype(np.int32), t["q"].astype(np.int32))
        return {"r": (dots.astype(np.float32) * t["scale"]).sum(2)}

    return Case(Algorithm("byte_sums", params, (), (dot, total, out)), reference)


def gated(m: int, n: int, k: int) -> Case:
    """x / (1 + (w @ a) ** 2): what is done to each column is known from a sum of its own."""
    j, l = axis("j", n), axis("l", k)
    s = ItemValue("s", (j,), mul(Load(F, "w", (j.var, l.var)), Load(F, "a", (l.var,))), Reduce(Op.ADD, (l,)))
    y, x = axis("y", m), axis("x", n)
    found = Load(F, "s", (x.var,))
    divisor = ex.call(Op.ADD, mul(found, found), Const(F, 1))
    gate = ex.call(Op.RECIP, divisor)
    out = Output("out", (y, x), (StoreTo("r", (y.var, x.var), mul(Load(F, "x", (y.var, x.var)), gate)),))
    params = (Param("x", F, (m, n)), Param("w", F, (n, k)), Param("a", F, (k,)), Param("r", F, (m, n), True))
    algorithm = Algorithm("gated", params, (), (s, out))
    return Case(algorithm, lambda t: {"r": t["x"] / (1 + (t["w"] @ t["a"]) ** 2)})


def columns(m: int, n: int) -> Case:
    """Two results of different rank: the mean of each column, and what is left without it."""
    j, i = axis("j", n), axis("i", m)
    total = ItemValue("total", (j,), Load(F, "x", (i.var, j.var)), Reduce(Op.ADD, (i,)))

    def mean(column: Var) -> Expr:
        return ex.call(Op.DIV, Load(F, "total", (column,)), Const(F, m))

    k = axis("k", n)
    means = Output("means", (k,), (StoreTo("mean", (k.var,), mean(k.var)),))
    y, x = axis("y", m), axis("x2", n)
    rest = ex.call(Op.SUB, Load(F, "x", (y.var, x.var)), mean(x.var))
    carried = (Load(F, "means", (x.var,)),)
    out = Output("out", (y, x), (StoreTo("rest", (y.var, x.var), rest),), carried)
    params = (Param("x", F, (m, n)), Param("mean", F, (n,), True), Param("rest", F, (m, n), True))
    return Case(
        Algorithm("columns", params, (), (total, means, out)),
        lambda t: {"mean": t["x"].mean(0), "rest": t["x"] - t["x"].mean(0)},
    )


def total(m: int, n: int, over: str) -> Case:
    """The sum of a matrix over its axes `over`: of "i" (columns' sums), "j" (rows' sums) or both."""
    i, j = axis("i", m), axis("j", n)
    summed = tuple(a for a in (i, j) if a.var.name in over)
    kept = tuple(a for a in (i, j) if a.var.name not in over)
    s = ItemValue("s", kept, Load(F, "x", (i.var, j.var)), Reduce(Op.ADD, summed))
    axes = tuple(Axis(Var(f"{a.var.name}2", 0, a.var.hi), a.extent) for a in kept)
    at = tuple(a.var for a in axes)
    out = Output("out", axes, (StoreTo("r", at, Load(F, "s", at)),))
    params = (Param("x", F, (m, n)), Param("r", F, tuple(a.extent for a in kept), True))
    numbers = tuple("ij".index(a) for a in over)
    return Case(
        Algorithm("total", params, (), (s, out)),
        lambda t: {"r": np.asarray(t["x"].sum(numbers, dtype=np.float64))},
    )


CASES: dict[str, Case] = {
    "matmul": matmul(7, 9, 5),
    "softmax": softmax(5, 7),
    "attention": attention(2, 6, 3, False),
    "causal": attention(1, 7, 2, True),
    "convolution": convolution(1, 2, 5, 3),
    "columns": columns(6, 5),
    "depthwise": depthwise(1, 2, 5, 3, 1),
    "depthwise taps": depthwise_taps(2, 2, 4, 3, 1),
    "scaled blocks": scaled_blocks(3, 8, 2),
    "gated blocks": gated_blocks(3, 8, 2),
    "byte sums": byte_sums(3, 2, 2, 2, 4),
}
