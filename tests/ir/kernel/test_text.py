"""Algorithms and kernels as text and DOT."""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.expr import Const, Load
from weft.ir.index import Var, in_range
from weft.ir.kernel.algorithm import Algorithm, Axis, ItemValue, Output, Param, Reduce, StoreTo
from weft.ir.kernel.dot import dot_algorithm
from weft.ir.kernel.schedule import initial
from weft.ir.kernel.text import show_algorithm, show_kernel
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.split import Split
from weft.ir.kernel.verify import verify
from weft.ir.ops import Op

F = dtypes.float32


def axis(name: str, extent: int) -> Axis:
    return Axis(Var(name, 0, extent - 1), extent)


def matmul() -> Algorithm:
    i, j, k, i2, j2 = axis("i", 4), axis("j", 8), axis("k", 6), axis("i2", 4), axis("j2", 8)
    product = ex.call(Op.MUL, Load(F, "a", (i.var, k.var)), Load(F, "b", (k.var, j.var)))
    shifted = Load(F, "a", (i2.var, j2.var - 1), in_range(j2.var, 1, 7))
    stored = ex.call(Op.ADD, Load(F, "c", (i2.var, j2.var)), shifted)
    return Algorithm(
        "mm",
        (Param("a", F, (4, 6)), Param("b", F, (6, 8)), Param("y", F, (4, 8), True)),
        (),
        (
            ItemValue("c", (i, j), product, Reduce(Op.ADD, (k,))),
            Output("out", (i2, j2), (StoreTo("y", (i2.var, j2.var), stored),)),
        ),
    )


def test_text() -> None:
    verify(matmul())
    assert show_algorithm(matmul()) == "\n".join(
        [
            "algorithm mm(a: f32[4, 6], b: f32[6, 8], y: f32[4, 8] out)",
            "  c(i in 4, j in 8) = sum k in 6: a[i, k] * b[k, j]",
            "  out(i2 in 4, j2 in 8):",
            "    y[i2, j2] = c[i2, j2] + (a[i2, j2 - 1] if 1 <= j2 < 7 else 0)",
        ]
    )


def test_kernel_text_shows_the_schedule() -> None:
    assert show_kernel(run(initial(matmul()), Split("j2", 4))).splitlines()[4:] == [
        "schedule",
        "  c: [i<4 j<8 k<6+] [4, 8] in local",
        "  out: [i2<4 j2o<2 j2i<4] with j2=4*j2o + j2i",
        "by",
        "  split(j2, 4)",
    ]


def test_long_expressions_are_cut_and_shared_parts_named() -> None:
    i = axis("i", 4)
    e: ex.Expr = Load(F, "x", (i.var,))
    for k in range(30):
        e = ex.call(Op.ADD, ex.call(Op.MUL, e, e), Const(F, float(k + 1)))
    out = Output("out", (i,), (StoreTo("y", (i.var,), e),))
    a = Algorithm("deep", (Param("x", F, (4,)), Param("y", F, (4,), True)), (), (out,))
    lines = show_algorithm(a).splitlines()
    assert lines[2].startswith("    %1 = ")
    assert max(map(len, lines)) < 200
    assert len(lines) < 80


def test_dot_has_an_arrow_per_dependence() -> None:
    source = dot_algorithm(matmul())
    for arrow in ('"a" -> "c"', '"b" -> "c"', '"c" -> "out"', '"a" -> "out"', '"out" -> "y"'):
        assert arrow in source
