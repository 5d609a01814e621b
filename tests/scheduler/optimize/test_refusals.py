"""Schedule rules say why not: each reason, and a kernel that it is given for."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import weft
from weft import Tensor
from weft.autograd.value import Value as GraphValue
from weft.backends.cuda.matrix import units
from weft.backends.llvm import scalar
from weft.backends.protocol import DeviceInfo
from weft.core.args.handle import wrap
from weft.ir import expr as ex
from weft.ir import graph
from weft.ir.expr import Load
from weft.ir.index import Int, floordiv
from weft.ir.kernel.algorithm import Algorithm, Axis, ItemValue, Output, Param, Reduce, StoreTo
from weft.ir.kernel.schedule import initial
from weft.ir.kernel.transforms.base import Refusal
from weft.ir.loops import LoopKind
from weft.ir.numerics import Tree
from weft.ir.ops import ELEMENTWISE, Op
from weft.scheduler import optimize
from weft.scheduler.kernelize.cost import NO_LIMIT
from weft.scheduler.kernelize.kernels import kernelize_all, kernels
from weft.scheduler.optimize.gpu_rules import BLOCKS
from weft.scheduler.optimize.rule import Chosen, Rule
from weft.scheduler.optimize.rules import AFTER_CORES, CORES, PINNED
from weft.testing.kernels import (
    F,
    attention,
    axis,
    byte_sums,
    depthwise,
    depthwise_taps,
    depthwise_taps_last,
    gated_blocks,
    matmul,
    mul,
    scaled_blocks,
    softmax,
    total,
)

WIDE = DeviceInfo(
    name="test:0", kind="test", description="", cores=2, vector_bytes=64, vector_registers=32,
    l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20, memory_bytes=1 << 34, local_bytes=1 << 20,
    bandwidth=4e10, flops=2e11, launch_ns=20.0,
)  # fmt: skip
SMALL = replace(WIDE, l1_bytes=1 << 10, l2_bytes=8 << 10)
GPU = replace(
    WIDE, task_kind=LoopKind.BLOCK, cores=4, vector_registers=255, l1_bytes=228 << 10, local_bytes=227 << 10,
    native=ELEMENTWISE & scalar.NATIVE, warp=32, shuffles=True,
)  # fmt: skip
NOT_SHARED = replace(GPU, scratchpad=False, warp=8, shuffles=False)
HOPPER, AMPERE = replace(GPU, matrix_units=units((9, 0))), replace(GPU, matrix_units=units((8, 0)))
N = weft.Variable("n", 1, 1_000_000)


def leaf(*shape: Int, dtype: weft.DType = weft.float32) -> Tensor:
    """A tensor of which nothing but the shape exists."""
    return wrap(GraphValue(graph.buffer(shape, dtype, "cpu:0", object())))


def of(*tensors: Tensor) -> Algorithm:
    """The first kernel of some tensors."""
    return kernels(kernelize_all([t.value.node for t in tensors], NO_LIMIT))[0].algorithm


def halves(m: int, n: int, k: int, dtype: weft.DType = weft.float16) -> Algorithm:
    return of(leaf(m, k, dtype=dtype) @ leaf(k, n, dtype=dtype))


def stored(a: Algorithm, change: Callable[[Output], Output]) -> Algorithm:
    """The algorithm with its output changed."""
    return replace(a, items=tuple(change(i) if isinstance(i, Output) else i for i in a.items))


def combined(out: Output) -> Output:
    return replace(out, stores=tuple(replace(s, combine=Op.ADD) for s in out.stores))


def square(read: Callable[[Axis, Axis], ex.Expr], n: int = 32) -> Algorithm:
    """A product c of square matrices, of which the output stores what `read` says."""
    i, j, l, y, x = (axis(name, n) for name in "ijlyx")
    c = ItemValue(
        "c", (i, j), mul(Load(F, "a", (i.var, l.var)), Load(F, "b", (l.var, j.var))), Reduce(Op.ADD, (l,))
    )
    out = Output("out", (y, x), (StoreTo("r", (y.var, x.var), read(y, x)),))
    params = (Param("a", F, (n, n)), Param("b", F, (n, n)), Param("r", F, (n, n), True))
    return Algorithm("square", params, (), (c, out))


def normed(blocks: Tensor) -> Algorithm:
    """Rows in blocks over their root mean square."""
    x = blocks.reshape(blocks.shape[0], -1)
    return of(x * x.square().mean(-1, keepdim=True).rsqrt())


def at(*index: Any) -> ex.Expr:
    return Load(F, "c", index)


def plain(shape: tuple[int, int] = (4, 32)) -> Algorithm:
    """A value that is no reduction, and its output."""
    i, j, y, x = axis("i", shape[0]), axis("j", shape[1]), axis("y", shape[0]), axis("x", shape[1])
    v = ItemValue("v", (i, j), Load(F, "a", (i.var, j.var)), None)
    out = Output("out", (y, x), (StoreTo("r", (y.var, x.var), Load(F, "v", (y.var, x.var))),))
    return Algorithm("plain", (Param("a", F, shape), Param("r", F, shape, True)), (), (v, out))


def prefixes(m: int, n: int) -> Algorithm:
    return of(leaf(m, n).cumsum(1))


def changed(name: str, change: Callable[[ItemValue], ItemValue]) -> Algorithm:
    """Attention (s: scores, m: their maximum, l: the sum of weights, o: the product) with one value changed."""
    a = attention(1, 12, 8, False).algorithm
    return replace(
        a, items=tuple(change(i) if isinstance(i, ItemValue) and i.name == name else i for i in a.items)
    )


def first_scores_beside() -> Algorithm:
    """Attention, and beside its rows the first score of each."""
    a = attention(1, 12, 8, False).algorithm
    *values, out = a.items
    assert isinstance(out, Output)
    b, i = axis("b5", 1), axis("i5", 12)
    at = (b.var, i.var)
    rows = Output("rows", (b, i), (StoreTo("z", at, Load(F, "s", (*at, 0))),))
    carry = Load(F, "rows", tuple(x.var for x in out.axes[:2]))
    items = (*values, rows, replace(out, carries=(carry,)))
    return replace(a, params=(*a.params, Param("z", F, (1, 12), True)), items=items)


def bytes_with(change: Callable[[Any], Any], rows: int = 2, groups: int = 2, lanes: int = 4) -> Algorithm:
    """Sums of sums of bytes, with each item changed; None leaves one out."""
    a = byte_sums(rows, groups, 2, 2, lanes).algorithm
    return replace(a, items=tuple(x for i in a.items for x in change(i)))


def maximum_of_bytes(i: Any) -> Any:
    return (replace(i, reduce=replace(i.reduce, op=Op.MAX)),) if i.name == "dot" else (i,)


def product_of_sums(i: Any) -> Any:
    return (replace(i, reduce=replace(i.reduce, op=Op.MUL)),) if i.name == "total" else (i,)


def mean_beside(i: Any) -> Any:
    """Another sum, which the output reads too."""
    if not isinstance(i, Output):
        return (i,)
    r, (s,) = axis("more", 2), i.stores
    more = ItemValue("more", (), Load(F, "scale", (0, r.var, 0)), Reduce(Op.ADD, (r,)))
    return more, replace(i, stores=(replace(s, expr=mul(s.expr, Load(F, "more", ()))),))


def copied_beside(i: Any) -> Any:
    """A copy of the scaled sums, which the output reads in place of them."""
    if not isinstance(i, Output):
        return (i,)
    axes, (s,) = tuple(axis(f"{a.var.name}_c", a.extent) for a in i.axes), i.stores
    copy = ItemValue("copy", axes, Load(F, "total", tuple(a.var for a in axes)))
    return copy, replace(i, stores=(replace(s, expr=Load(F, "copy", s.expr.index)),))


def backward(i: Any) -> Any:
    """The output reads the lanes from the last to the first."""
    if not isinstance(i, Output):
        return (i,)
    (s,) = i.stores
    return (
        replace(i, stores=(replace(s, expr=Load(F, "total", (*s.expr.index[:2], 3 - s.expr.index[2]))),)),
    )


def minimum(v: ItemValue) -> ItemValue:
    assert v.reduce is not None
    return replace(v, reduce=replace(v.reduce, op=Op.MIN))


def sines(v: ItemValue) -> ItemValue:
    assert isinstance(v.expr, ex.ScalarCall)
    return replace(v, expr=ex.call(Op.SIN, v.expr.args[0]))


def first_factor(v: ItemValue) -> ItemValue:
    assert isinstance(v.expr, ex.ScalarCall)
    return replace(v, expr=v.expr.args[0])


def product_beside() -> Algorithm:
    """Attention, and an output of its rows: the first result of each."""
    a = attention(1, 12, 8, False).algorithm
    *values, out = a.items
    assert isinstance(out, Output)
    rows = out.axes[:2]
    at = tuple(x.var for x in rows)
    stored = StoreTo("first", at, Load(F, "o", (*at, 0)))
    first = Output("first_out", rows, (stored,))
    carrying = replace(out, carries=(Load(F, first.name, at),))
    return replace(a, params=(*a.params, Param("first", F, (1, 12), True)), items=(*values, first, carrying))


def depthwise_turned() -> Algorithm:
    """Images with channels first, results with channels last."""
    y = weft.nn.functional.conv2d(leaf(1, 32, 20, 20), leaf(32, 1, 3, 3), groups=32)
    return of(y.permute(0, 2, 3, 1).contiguous())


def long_keys() -> Algorithm:
    k = leaf(1, 2, 1_000_000, 8)[:, :, :N]
    return of(weft.nn.functional.scaled_dot_product_attention(leaf(1, 2, 16, 8), k, k))


def moments() -> Algorithm:
    return of((leaf(8, 32)[:, None, :] * leaf(4, 32)).sum(-1))


def twice(y: Axis, x: Axis) -> ex.Expr:
    return ex.call(Op.ADD, at(y.var, x.var), at(x.var, y.var))


def two_dots(change: Callable[[Any], Any]) -> Algorithm:
    """The products p and q of a matrix with two vectors, added; each item changed."""
    y, axes = axis("y", 8), {"p": (axis("ip", 8), axis("lp", 64)), "q": (axis("iq", 8), axis("lq", 64))}
    dots = [
        ItemValue(
            n,
            (i,),
            mul(Load(F, "a", (i.var, l.var)), Load(F, n + "x", (l.var,))),
            Reduce(Op.ADD, (l,), Tree.PRODUCTS),
        )
        for n, (i, l) in axes.items()
    ]
    out = Output(
        "out",
        (y,),
        (StoreTo("r", (y.var, 0), ex.call(Op.ADD, Load(F, "p", (y.var,)), Load(F, "q", (y.var,)))),),
    )
    params = (
        Param("a", F, (8, 64)),
        Param("px", F, (64,)),
        Param("qx", F, (64,)),
        Param("r", F, (8, 8), True),
    )
    return Algorithm("two_dots", params, (), tuple(x for i in (*dots, out) for x in change(i)))


def stored_before(i: Any) -> Any:
    """An output of its own before the sum q."""
    if i.name != "q":
        return (i,)
    y = axis("y1", 8)
    return Output("first", (y,), (StoreTo("r", (y.var, 0), Load(F, "p", (y.var,))),)), i


def by_result(i: Any) -> Any:
    """p with a factor for each result, one beside the other."""
    if i.name != "p":
        return (i,)
    return (replace(i, expr=mul(Load(F, "px", (i.axes[0].var,)), i.expr)),)


def of_the_other(i: Any) -> Any:
    """q with results of p among its terms."""
    if i.name != "q":
        return (i,)
    return (replace(i, expr=mul(Load(F, "p", (i.axes[0].var,)), i.expr)),)


def of_all_pairs(i: Any) -> Any:
    """Each of p and each of q added."""
    if not isinstance(i, Output):
        return (i,)
    y, x = i.axes[0], axis("x", 8)
    read = ex.call(Op.ADD, Load(F, "p", (y.var,)), Load(F, "q", (x.var,)))
    return (Output("out", (y, x), (StoreTo("r", (y.var, x.var), read),)),)


def by_unit(number: int) -> DeviceInfo:
    """A GPU with one kind of matrix units: of bfloat16, or of float16."""
    return replace(GPU, matrix_units=(units((9, 0))[number],))


TINY = replace(SMALL, l2_bytes=256)
ROWS: list[tuple[str, Callable[[], Algorithm], DeviceInfo, str]] = [
    ("online", lambda: softmax(4, 32).algorithm, WIDE, "2 reductions and 1 output; a chain has 4 and 1"),
    ("online", lambda: changed("m", minimum), WIDE,
     "0 of 4 reductions take a maximum over one axis; in a chain one does"),
    ("online", lambda: changed("s", first_factor), WIDE, "m is the maximum of no sum of products"),
    ("online", lambda: changed("o", first_factor), WIDE,
     "1 sums and 0 sums of products read m; a chain has one of each"),
    ("online", product_beside, WIDE, "o is read by an output of rows; these may read m and l"),
    ("online", lambda: changed("l", sines), WIDE, "l adds no exponentials of differences to m"),
    ("online", first_scores_beside, WIDE, "s is read by an output of rows; these may read m and l"),
    ("online", lambda: attention(1, 8, 300, False).algorithm, WIDE, "300 results in a row; pays up to 256"),
    ("online", lambda: attention(5, 3, 1, True).algorithm, WIDE, "out has no loop along d3 of o"),
    ("contraction", lambda: softmax(4, 32).algorithm, WIDE, "top is no sum"),
    ("contraction", lambda: total(8, 32, "j").algorithm, WIDE, "s sums no products"),
    ("contraction", lambda: attention(1, 8, 4, False).algorithm, WIDE, "s is computed beside o"),
    ("contraction", lambda: changed("o", first_factor), WIDE, "s is read by m, l, o, not by one output alone"),
    ("contraction", lambda: stored(matmul(32, 32, 32).algorithm, combined), WIDE, "out combines with what is there"),
    ("contraction", lambda: square(twice), WIDE, "out reads c 2 times"),
    ("contraction", lambda: square(lambda y, x: at(floordiv(y.var, 2), x.var)), WIDE,
     "out reads c at other places than its own axes"),
    ("contraction", lambda: of(leaf(8, 32) @ leaf(32)), WIDE,
     "a factor of sum has no axis of its own: there is nothing to reuse"),
    ("dots", lambda: matmul(1024, 1024, 1024).algorithm, WIDE, "1,024 x 1,024 results; 77 % more cycles than tiles"),
    ("dots", lambda: matmul(16, 16, 20_000).algorithm, WIDE, "20,000 products in a sum; pays up to 12,288"),
    ("dots", lambda: matmul(32, 32, 7).algorithm, WIDE, "7 products in a row; pays from 32, two vectors"),
    ("depth", lambda: matmul(1024, 1024, 1024).algorithm, WIDE,
     "1,024 products in a sum, for which a panel of the whole depth is taken"),
    ("depth", lambda: of(leaf(4, 16, 8192) @ leaf(4, 8192, 16)), SMALL, "3 axes of results; it is for two"),
    ("depth", lambda: matmul(512, 512, 1024).algorithm, SMALL,
     "1,024 products for 512 results; pays from 4 times as many"),
    ("depth", lambda: matmul(16, 16, 8192).algorithm, replace(SMALL, l3_bytes=1 << 10),
     "2 tasks; the cache holds the results of 0, the depth has steps for 5"),
    ("blocks", lambda: total(8, 32, "i").algorithm, WIDE, "no factor that blocks of i share"),
    ("blocks", lambda: depthwise(1, 2, 20, 3, 1).algorithm, WIDE, "conv is no sum over one axis"),
    ("blocks", lambda: normed(leaf(4, 2, 32, dtype=weft.int8) * leaf(4, 2, 1)), WIDE,
     "results have more axes than the sum: their lanes are not its own"),
    ("blocks", lambda: scaled_blocks(2, 64 * 800, 32).algorithm, WIDE,
     "800 additions in sequence; at most 768 are as accurate"),
    ("blocks", lambda: scaled_blocks(17, 160, 32).algorithm, WIDE, "neither 2 nor 3 divides 5 blocks"),
    ("blocks", lambda: scaled_blocks(3, 8, 2).algorithm, WIDE,
     "blocks of 2 of 8; they are to be two vectors of 16 or more, and whole"),
    ("blocks", lambda: scaled_blocks(3, 96, 32).algorithm, replace(WIDE, vector_bytes=4),
     "scale is not read in order along l"),
    ("blocks", lambda: gated_blocks(4, 512, 32).algorithm, WIDE,
     "square has 512 terms before sums of 2,048; pays up to an eighth of these"),
    ("blocks", lambda: gated_blocks(40, 512, 32, 64).algorithm, WIDE, "its sums have blocks of several sizes"),
    ("scaled_sums", lambda: stored(byte_sums(2, 2, 2, 2, 4).algorithm, combined), WIDE,
     "the last item is no output that just stores"),
    ("scaled_sums", lambda: matmul(4, 4, 4).algorithm, WIDE, "nothing sums products of bytes in int32"),
    ("scaled_sums", lambda: bytes_with(mean_beside), WIDE, "more is computed beside dot"),
    ("scaled_sums", lambda: bytes_with(backward), WIDE,
     "out reads its sums at other places than its own axes"),
    ("scaled_sums", lambda: byte_sums(1, 1, 2, 2, 4).algorithm, WIDE, "out has no loop but that of its lanes"),
    ("scaled_sums", lambda: bytes_with(maximum_of_bytes), WIDE, "dot is no sum"),
    ("scaled_sums", lambda: bytes_with(product_of_sums), WIDE, "dot is not read by one other sum alone"),
    ("scaled_sums", lambda: bytes_with(copied_beside), WIDE, "total is not read by out alone"),
    ("scaled_sums", lambda: byte_sums(2, 2, 2, 2, 1).algorithm, WIDE,
     "the operands of dot do not lie in lanes of 4 bytes"),
    ("pinned_dots", lambda: total(8, 32, "j").algorithm, WIDE, "s sums no products of a contraction"),
    ("pinned_dots", lambda: two_dots(by_result), WIDE, "lanes run along an axis of p"),
    ("pinned_dots", lambda: two_dots(stored_before), WIDE, "first is a second output"),
    ("pinned_dots", lambda: two_dots(of_the_other), WIDE, "q is made of another value"),
    ("pinned_dots", lambda: two_dots(of_all_pairs), WIDE, "the sums are read at several places"),
    ("windows", lambda: softmax(4, 32).algorithm, WIDE, "2 values and 1 output; it is for one of each"),
    ("windows", plain, WIDE, "v is no reduction"),
    ("windows", lambda: stored(total(4, 32, "j").algorithm, combined), WIDE, "out combines with what is there"),
    ("windows", lambda: of(leaf(1_000_000, 8)[:N].sum(0)), WIDE, "the size of r1 is only known at run time"),
    ("windows", lambda: square(twice), WIDE, "out reads c at 2 places"),
    ("windows", lambda: total(8, 32, "ij").algorithm, WIDE, "out reads s at other places than its own axes"),
    ("windows", lambda: total(8, 3200, "j").algorithm, WIDE, "3,200 terms for a result; windows have up to 128"),
    ("windows", lambda: total(8, 32, "j").algorithm, WIDE, "no windows: s reads nothing at the sum of two axes"),
    ("windows", lambda: depthwise_taps(2, 2, 4, 3, 1).algorithm, WIDE, "no window slides along the summed n"),
    ("windows", lambda: depthwise(1, 2, 20, 3, 3).algorithm, WIDE,
     "an element of a window is used 1.0 times; copying it pays from 5"),
    ("windows", depthwise_turned, WIDE,
     "what windows reach does not lie along k, as the results do"),
    ("windows", lambda: depthwise(1, 2, 200, 3, 1).algorithm, TINY,
     "the windows of one tile reach 720 bytes; 64 may stay in the cache"),
    ("prefixes", lambda: prefixes(1, 32), WIDE, "there is a single row; several are independent additions"),
    ("prefixes", lambda: of(leaf(32, 8).cumsum(0)), WIDE,
     "results are not stored side by side along i, where lanes would run"),
    ("prefixes", lambda: prefixes(8, 24), WIDE, "24 results of a row are no whole vectors of 16"),
    ("prefixes", lambda: of(leaf(8, 32) @ leaf(32)), WIDE,
     "sum has 0 axes that only a condition tells apart; it is for one"),
    ("prefixes", lambda: of((leaf(8, 4, 32)[:, :, None, :] * weft.ones(32, 32).tril()).sum((1, 3))), WIDE,
     "sum reduces over 2 axes; it is for one"),
    ("prefixes", lambda: of(weft.where(weft.arange(4)[:, None] > leaf(3, 1, N), leaf(3, 1, N), 0.0).sum(2)), WIDE,
     "rows of sum have a size that is only known at run time"),
    ("taps", lambda: of(weft.nn.functional.avg_pool1d(leaf(1, 16, 16), 3, 1)), SMALL,
     "every operand has the axes of the taps: none is used for the next tap again"),
    ("taps", lambda: depthwise_taps(2, 16, 12, 3, 1).algorithm, WIDE,
     "operands do not lie side by side along channels, where lanes would run"),
    ("taps", lambda: depthwise_taps_last(1, 16, 64, 27, 1).algorithm, WIDE,
     "27 taps in a row; registers hold 26"),
    ("small_outputs", lambda: total(8, 32, "j").algorithm, WIDE, "s reads 1 operand; it is for two or more"),
    ("small_outputs", moments, WIDE, "32 results share what they read; pays from 2 to 26, which registers hold"),
    ("small_outputs", lambda: of(leaf(4, 100_000) @ leaf(100_000)), WIDE, "100,000 terms along r1; pays up to 1,024"),
    ("small_outputs", lambda: of(leaf(4, 32) @ leaf(32)), WIDE, "no windows: sum reads nothing at the sum of two axes"),
    ("small_outputs", lambda: depthwise_taps(3, 1, 35, 3, 1).algorithm, WIDE, "there is one group of results only"),
    ("small_outputs", lambda: depthwise_taps(2, 3, 40, 3, 1).algorithm, SMALL,
     "the windows over grad reach 4,400 bytes; 2,048 may stay in the cache"),
    ("scatters", lambda: total(8, 32, "j").algorithm, WIDE, "no output combines with what is there"),
    ("scatters", lambda: stored(total(1, 32, "j").algorithm, combined), WIDE,
     "no loop of out stores elements side by side that never meet"),
    ("levels", lambda: matmul(8, 8, 8).algorithm, WIDE,
     "no sum adds more than 128 terms, or 768 products, in sequence"),
    ("gpu_online", lambda: attention(2, 16, 8, False).algorithm, NOT_SHARED, "the device's threads share no memory"),
    ("gpu_online", long_keys, GPU, "the size of k1 is only known at run time"),
    ("gpu_online", lambda: attention(1, 8, 300, False).algorithm, GPU, "300 results in a row; pays up to 256"),
    ("gpu_online", lambda: attention(2, 16, 8, False).algorithm, replace(GPU, local_bytes=64),
     "no tile fits into 64 bytes of local memory"),
    ("gpu_online", lambda: changed("l", sines), GPU, "l adds no exponentials of differences to m"),
    ("gpu_contraction", lambda: of(leaf(1_000_000, 64)[:N] @ leaf(64, 64)), GPU,
     "the size of i1 is only known at run time"),
    ("gpu_contraction", lambda: matmul(32, 36, 3).algorithm, GPU,
     "32 x 36 results of 3 products; pays from 64 results of 4"),
    ("gpu_shared_tiles", lambda: matmul(32, 36, 8).algorithm, NOT_SHARED, "the device's threads share no memory"),
    ("gpu_matrix", lambda: matmul(32, 36, 8).algorithm, GPU, "the device has no matrix units"),
    ("gpu_matrix", lambda: matmul(64, 64, 64).algorithm, by_unit(0), "m16n8k16 bfloat16: a factor is float32"),
    ("gpu_matrix", lambda: halves(128, 128, 64), by_unit(0), "m16n8k16 bfloat16: a factor is float16"),
    ("gpu_matrix", lambda: halves(128, 128, 64, weft.float64), by_unit(1),
     "m16n8k16 float16 adds up float32, not float64"),
    ("gpu_matrix", lambda: halves(128, 128, 24), by_unit(1), "24 products in a sum are no whole steps of 16"),
    ("gpu_rows", lambda: of(leaf(4, 4).relu()), GPU, "0 values and 1 output; rows have values, and one output"),
    ("gpu_rows", lambda: total(20, 30, "ij").algorithm, GPU, "s is no reduction of each row"),
    ("gpu_rows", lambda: of(leaf(1_000_000, 64)[:N].softmax(1)), GPU, "the size of i is only known at run time"),
    ("gpu_rows", lambda: stored(total(20, 32, "j").algorithm, combined), GPU,
     "an output combines with what is there"),
    ("gpu_rows", lambda: matmul(1, 1, 1).algorithm, GPU, "values that out reads are not all of the same rows"),
    ("gpu_rows", lambda: total(200, 30, "i").algorithm, GPU, "s is not contiguous along what it reduces over"),
    ("gpu_rows", lambda: total(2, 1_000_000, "j").algorithm, GPU,
     "2 rows of 1,000,000 elements for 4 multiprocessors; a grid shares each out"),
    ("gpu_rows", lambda: softmax(9, 70).algorithm, NOT_SHARED,
     "9 rows of 70 elements, a thread for each; pays up to 64 elements, or from 32 rows on"),
    ("gpu_rows", lambda: of((leaf(8, 16, 16) - leaf(8, 16, 16).sum((1, 2), keepdim=True)).sum(2)), NOT_SHARED,
     "a row's threads would have to share sum, and share no memory"),
]  # fmt: skip

RULES: dict[str, Rule[Any, Any]] = {r.name: r for r in (*CORES, *PINNED, *BLOCKS, *AFTER_CORES)}
COMPARED_BY = {"dots": "contraction", "depth": "contraction"} | dict.fromkeys(
    ("gpu_matrix", "gpu_shared_tiles"), "gpu_contraction"
)
"""Ways to compute a form that are not rules of their own, and the rules that compare them."""


@pytest.mark.parametrize(
    "rule, algorithm, info, why", ROWS, ids=[f"{rule}: {why}" for rule, _, _, why in ROWS]
)
def test_a_rule_says_why_not(
    rule: str, algorithm: Callable[[], Algorithm], info: DeviceInfo, why: str
) -> None:
    made = RULES[COMPARED_BY.get(rule, rule)].schedule(initial(algorithm()), info)
    if rule in COMPARED_BY:
        assert isinstance(made, Chosen)
        assert dict(made.choice.refused)[rule].why == why
    else:
        assert made == Refusal(why)


WITHOUT_A_ROW = {
    # helpers that turn a form down whose reason is not the rule's: what is tried instead is chosen
    "abreast": 1, "rows": 7, "staging": 2,
    # forms that neither the kernelizer nor a small edit of an algorithm makes; a transform's own reason
    "contraction": 2, "contraction_form": 3, "depth": 1, "gpu_matrix": 4, "gpu_online": 8, "online": 4,
    "prefixes": 2, "rule": 1, "scatters": 1, "small_outputs": 2, "windows": 2,
}  # fmt: skip
"""Of each module, the number of reasons that no row gives."""


def refusals(module: Path) -> list[str]:
    """A pattern for each reason in a module's text."""
    found: list[str] = []
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refusal":
            found.append(pattern(node.args[0]))
    return found


def pattern(e: ast.expr) -> str:
    match e:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.JoinedStr(values=parts):
            return "".join(".+" if isinstance(p, ast.FormattedValue) else pattern(p) for p in parts)
        case _:
            return "(?!)"


def modules() -> list[Path]:
    return sorted(Path(str(optimize.__file__)).parent.glob("*.py"))


def test_every_reason_has_a_row() -> None:
    given = [why for *_, why in ROWS]
    missing = {
        m.stem: [p for p in refusals(m) if not any(re.fullmatch(p, why) for why in given)] for m in modules()
    }
    assert {m: len(found) for m, found in missing.items() if found} == WITHOUT_A_ROW, missing


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_no_part_of_a_rule_returns_none(rule: Rule[Any, Any]) -> None:
    for part in (rule.recognise, rule.choose, rule.apply):
        returned = get_type_hints(part)["return"]
        assert returned is not type(None) and type(None) not in get_args(returned), part


def test_no_function_returns_a_kernel_or_none() -> None:
    """Nor a form or a choice: what is not there is named by its type, a `Refusal`."""
    found: list[str] = []
    for module in modules():
        for f in ast.walk(ast.parse(module.read_text())):
            if isinstance(f, ast.FunctionDef) and f.returns is not None:
                kinds = [ast.unparse(x) for x in alternatives(f.returns)]
                if "None" in kinds and not {"int", "Load", "Expr", "Int", "str", "Refusal"} & {*kinds}:
                    found += [f"{module.stem}.{f.name}"] if kinds != ["None"] else []
    assert found == ["contraction.divisible", "dots._steps"]


def alternatives(e: ast.expr) -> Sequence[ast.expr]:
    """The members of a union."""
    match e:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return [*alternatives(left), *alternatives(right)]
        case _:
            return [e]


def test_a_transform_that_does_not_apply_is_the_reason() -> None:
    from weft.ir.kernel.transforms.base import run
    from weft.ir.kernel.transforms.split import Split

    rule = Rule("test", lambda k, _: k, lambda k, _: k, lambda k, *_: run(k, Split("i", 0, "o", "i")))
    made = rule.schedule(initial(matmul(4, 4, 4).algorithm), WIDE)
    assert isinstance(made, Refusal) and made.why.startswith("split(i, 0, o, i) on kernel matmul: ")
