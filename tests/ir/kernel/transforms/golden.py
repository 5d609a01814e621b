"""What a transform does to a kernel, as the text of its loops before and after, and what it says when it refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.expr import Const, Expr, Load
from weft.ir.index import Int, Var, high, in_range
from weft.ir.kernel.algorithm import (
    Algorithm,
    Axis,
    Item,
    ItemValue,
    KnownFill,
    Output,
    Param,
    Reduce,
    StoreTo,
    place,
)
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import Kernel, initial
from weft.ir.kernel.transforms.base import Refusal, Transform, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.online import OnlineReduce
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split import Split
from weft.ir.kernel.transforms.stage import Stage
from weft.ir.kernel.transforms.trim import Trim
from weft.ir.kernel.verify import verify as verify_algorithm
from weft.ir.loops_text import show_program
from weft.ir.loops_verify import verify
from weft.ir.ops import Op
from weft.testing.kernels import axis, matmul, mul, softmax, total

F = dtypes.float32

Row: TypeAlias = tuple[Kernel, Transform, str]
"""A kernel, a transform that it refuses, and the whole reason."""


def load(name: str, *index: int | Var) -> Load:
    """An element of a parameter or value of float32."""
    return Load(F, name, index)


def loops(k: Kernel) -> str:
    """The lowered loops, verified, without the kernel's head."""
    p = lower(k)
    verify(p)
    return "\n".join(show_program(p).splitlines()[1:])


def changes(k: Kernel, transform: Transform, before: str, after: str) -> None:
    """The kernel's loops are the first text, and with the transform the second."""
    assert loops(k) == before.strip("\n")
    assert loops(run(k, transform)) == after.strip("\n")


def refuses(rows: Sequence[Row]) -> Callable[[], None]:
    """A test that each kernel refuses its transform for the reason."""

    def test() -> None:
        for k, transform, why in rows:
            assert transform.check(k) == Refusal(why), str(transform)

    return test


def value(k: Kernel, name: str) -> ItemValue:
    """The value called `name`."""
    item = k.algorithm.item(name)
    assert isinstance(item, ItemValue)
    return item


def staged(k: Kernel, name: str, new: str) -> Kernel:
    """The kernel with a value's whole expression as a value of its own."""
    return run(k, Stage(name, value(k, name).expr, new))


def kernel(params: tuple[Param, ...], *items: Item) -> Kernel:
    """The unscheduled kernel of some items."""
    algorithm = Algorithm("k", params, (N,), items)
    verify_algorithm(algorithm)
    return initial(algorithm)


def rows(
    e: Callable[[Var, Var], Expr], n: int = 4, m: Int = 8, op: Op = Op.ADD, **shapes: tuple[Int, ...]
) -> Kernel:
    """r[i] = s(i), and s(i) = reduce j in m: e(i, j), for i in n; the parameters have the `shapes`."""
    i, j, y = axis("i", n), Axis(Var("j", 0, high(m) - 1), m), axis("y", n)
    s = ItemValue("s", (i,), e(i.var, j.var), Reduce(op, (j,)))
    out = Output("out", (y,), (StoreTo("r", (y.var,), load("s", y.var)),))
    return kernel(
        (*(Param(name, F, shape) for name, shape in shapes.items()), Param("r", F, (n,), True)), s, out
    )


def copied(n: int, m: Int, transposed: bool = False) -> Kernel:
    """r[y, x] = t(y, x), or t(x, y), and t(i, j) = a[i, j]."""
    i, j, y = axis("i", n), Axis(Var("j", 0, high(m) - 1), m), axis("y", n)
    x = Axis(Var("x", 0, high(m) - 1), m)
    t = ItemValue("t", (i, j), load("a", i.var, j.var))
    read = load("t", x.var, y.var) if transposed else load("t", y.var, x.var)
    out = Output("out", (y, x), (StoreTo("r", (y.var, x.var), read),))
    return kernel((Param("a", F, (n, m)), Param("r", F, (n, m), True)), t, out)


def scattered() -> Kernel:
    """r[p[i]] += x[i], then q[k] = x[k]."""
    i, k = axis("i", 8), axis("k", 8)
    at = ex.as_index(Load(dtypes.int32, "p", (i.var,)), 0, 7)
    first = Output("first", (i,), (StoreTo("r", (at,), load("x", i.var), combine=Op.ADD),))
    out = Output("out", (k,), (StoreTo("q", (k.var,), load("x", k.var)),), (load("first", k.var),))
    written = (Param(name, F, (8,), True) for name in "rq")
    return kernel((Param("x", F, (8,)), Param("p", dtypes.int32, (8,)), *written), first, out)


def masked_weights() -> Kernel:
    """s(i) = sum j: p[i, j] * v[j], where p is known to be 0 right of its diagonal."""
    k = rows(lambda i, j: mul(load("p", i, j), load("v", j)), 8, 8, p=(8, 8), v=(8,))
    fill = KnownFill(in_range(place(0, 8) - place(1, 8), 0, None), 0.0)
    p, *others = k.algorithm.params
    return replace(k, algorithm=replace(k.algorithm, params=(replace(p, fill=fill), *others)))


def weighed() -> Kernel:
    """A maximum of each row of x, and the row's sum times that: no weights relative to it."""
    i, j, i2, j2, y = axis("i", 4), axis("j", 8), axis("i2", 4), axis("j2", 8), axis("y", 4)
    top = ItemValue("top", (i,), load("x", i.var, j.var), Reduce(Op.MAX, (j,)))
    term = mul(load("x", i2.var, j2.var), load("top", i2.var))
    total = ItemValue("total", (i2,), term, Reduce(Op.ADD, (j2,)))
    out = Output("out", (y,), (StoreTo("r", (y.var,), load("total", y.var)),))
    return kernel((Param("x", F, (4, 8)), Param("r", F, (4,), True)), top, total, out)


N = Var("n", 8, 64)
LOWEST = Const(F, float("-inf"))
ROWS = rows(lambda i, j: load("x", i, j), x=(4, 8))
QUOTIENTS = rows(
    lambda i, j: mul(ex.call(Op.DIV, load("x", i, j), load("c", i)), load("v", j)), x=(4, 8), c=(4,), v=(8,)
)
MASKED = rows(
    lambda i, j: ex.where(ex.test(in_range(i - j, 0, None)), load("x", i, j), LOWEST), 8, 8, Op.MAX, x=(8, 8)
)
TAPS = rows(
    lambda i, k: mul(Load(F, "x", (i + k - 1,), in_range(i + k - 1, 0, 4)), load("w", k)), m=3, x=(4,), w=(3,)
)
PRODUCTS = rows(lambda i, j: mul(mul(load("x", i, j), load("v", j)), load("c", i)), x=(4, 8), c=(4,), v=(8,))
SHIFTED = rows(
    lambda i, j: ex.where(ex.test(in_range(j - i, 0, None)), load("x", i, j), Const(F, 1)), x=(4, 8)
)
TWO = rows(lambda i, j: mul(load("x", i), load("v", j)), x=(4,), v=(8,))
LONG = rows(lambda i, j: load("x", i, j), m=512, x=(4, 512))
ANY_ROW = rows(lambda i, j: load("x", i, j), m=N, x=(4, N))
ANY_SIZE = rows(lambda i, j: load("x", i), x=(N,))
COPIED_ROWS, TRANSPOSED, SCATTERED = copied(4, N), copied(4, 4, True), scattered()
TRIMMED = run(MASKED, Trim("s", "j"))
MATMUL = initial(matmul(4, 6, 8).algorithm)
SOFTMAX = initial(softmax(4, 8).algorithm)
COLUMNS_FIRST = run(SOFTMAX, Permute("top", ("j", "i")))
ONLINE = run(COLUMNS_FIRST, OnlineReduce("top", "total", "j", "j2"))
ONLINE_BLOCKS = run(
    SOFTMAX,
    Split("j", 2),
    Split("j2", 2),
    Permute("top", ("jo", "ji", "i")),
    OnlineReduce("top", "total", "jo", "j2o"),
)
INSIDE = run(staged(ROWS, "s", "t"), ComputeAt("t", "s", "j"))
NOT_WEIGHTED = run(weighed(), Permute("top", ("j", "i")))
FILLED = masked_weights()
TOTAL = initial(total(4, 6, "ij").algorithm)
