"""Which outputs may take the memory of an input: the pairs found are safe, and the ordinary ones are found."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.backends.registry import open_device
from weft.ir import graph
from weft.ir.dtypes import float32, int32
from weft.ir.expr import Const, Expr, Load, Temp, as_index, call
from weft.ir.graph import Node
from weft.ir.index import Int, Var, in_range
from weft.ir.loops import Accumulate, Buffer, If, Let, Loop, Program, Scope, Stmt, Store
from weft.ir.ops import Op
from weft.scheduler.inplace import in_place_pairs
from weft.scheduler.kernelize.kernels import kernelize
from weft.scheduler.programs import compiled


def pairs(*outputs: weft.Tensor) -> frozenset[tuple[str, str]]:
    """The (written, read) parameter names of the only kernel for these tensors."""
    (spec,) = kernelize([t.value.node for t in outputs])
    (kernel,) = compiled([spec.algorithm], open_device("dummy:0"))
    names = [p.name for p in spec.algorithm.params]
    return frozenset((names[w], names[r]) for w, r in kernel.in_place)


def leaf(*shape: int) -> weft.Tensor:
    t = weft.zeros(1)
    t.value.node = _buffer(shape)
    return t


def _buffer(shape: tuple[int, ...]) -> Node:
    return graph.buffer(shape, float32, "dummy:0", object())


def test_elementwise_results_may_replace_an_operand() -> None:
    a, b = leaf(37), leaf(37)
    found = pairs(a * 2 + b)
    assert {r for _, r in found} == {"p0", "p1"}


def test_a_moved_operand_may_not_be_replaced() -> None:
    a = leaf(37)
    assert not pairs(a.flip(0) + a)
    assert not pairs(a.reshape(37, 1) * a)


def test_a_row_of_softmax_reads_everything_before_it_writes() -> None:
    x = leaf(8, 64)
    found = pairs(x.softmax(-1))
    data = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    t = weft.tensor(data)
    step = weft.compile(lambda t: t.copy_(t.softmax(-1)))
    step(t)  # in place if, and only if, the pair was found safe
    want = np.exp(data - data.max(-1, keepdims=True))
    np.testing.assert_allclose(t.numpy(), want / want.sum(-1, keepdims=True), rtol=1e-5)
    assert found <= {("y0", "p0")}


def test_what_is_over_before_the_store_begins_may_have_read_anywhere() -> None:
    x, count = leaf(37), leaf()
    # the scalar's store comes after the loop that reads it for each element
    assert ("y1", "p1") in pairs(x * (count + 1), count + 1)
    assert ("y0", "p0") in pairs(x * x.sum())
    # here the loop over rows is around both, and a row is read at other places than it is written at
    rows = leaf(6, 37)
    assert ("y0", "p0") not in pairs(rows.flip(1) * rows.sum(1, keepdim=True))


N = 8
SIZES = {"x": N, "y": N, "z": N, "short": 4, "p": N, "q": N}
J, K = Var("j", 0, N - 1), Var("k", 0, N - 1)


def read(name: str = "x", at: Int = J) -> Load:
    return Load(int32 if name in "pq" else float32, name, (at,))


def chosen(at: Int = J) -> Int:
    """An index that is read from p."""
    return as_index(read("p", at), 0, N - 1)


def each(*body: Stmt, var: Var = J) -> Loop:
    return Loop(var, N, body)


def to(name: str = "y", at: Int = J, value: Expr | None = None) -> Store:
    return Store(name, at, read() if value is None else value)


ONE, ZERO = Const(float32, 1), Const(int32, 0)
BY_P = in_range(chosen(), None, 4)

P_IN_FLOAT = call(Op.CAST, read("p"), dtype=float32)
FROM_P = Store("short", 0, call(Op.CAST, read("p", 0), dtype=float32))
AROUND = in_range(Var("n", 0, 9), 4, None)

PROGRAMS: dict[str, tuple[tuple[Stmt, ...], str]] = {
    "the same element": ((each(to()),), "yx"),
    "another element": ((each(to(value=read(at=N - 1 - J))),), ""),
    "bound before, in the same body": ((each(Let("t", read()), to(value=Temp(float32, "t"))),), "yx"),
    "read after it is stored": ((each(to(value=ONE), to("z")),), "zx"),
    "read once more elsewhere": ((each(to(value=call(Op.ADD, read(), read(at=0)))),), ""),
    "stored in two places": ((each(to()), each(to())), ""),
    "added to what is there": ((each(Accumulate("y", J, Op.ADD, read())),), ""),
    "the output is read, too": ((each(to(value=call(Op.ADD, read(), read("y")))),), ""),
    "the input is written, too": ((each(to(), to("x", value=ONE)),), ""),
    "of another size": ((each(to(value=ONE)), Store("short", 0, read(at=0))), ""),
    "of another dtype": ((each(to(value=P_IN_FLOAT)),), ""),
    "over before": ((each(to("z", value=read(at=N - 1 - J))), each(to(value=read("z")))), "yx"),
    "over after": ((each(to(value=ONE)), each(to("z", value=read(at=N - 1 - J)))), ""),
    "over before, in a branch": ((If(AROUND, (each(to("z", K, read(at=K)), var=K), each(to()))),), "yx"),
    "over before, in one iteration": (
        (each(each(to("z", K, read(at=N - 1 - K)), var=K), to(value=ONE)),),
        "",
    ),
    "bound before, used in a loop": ((Let("t", read(at=3)), each(to(value=Temp(float32, "t")))), ""),
    "where it is stored is read from it": (
        (each(to("q", value=read("p"))), each(to("z", J), Store("p", chosen(), ZERO))),
        "zx",
    ),
    "an index is read from it": ((FROM_P, each(Store("q", chosen(), ZERO))), ""),
    "a guard is read from it": ((FROM_P, each(Store("q", 7 - J, ZERO, BY_P))), ""),
    "a branch is taken by it": ((each(If(BY_P, (Store("q", J, ZERO),))),), ""),
    "a branch was taken by it before": ((each(If(BY_P, (FROM_P,))), each(Store("q", J, ZERO))), "qp"),
    "added to something else": ((each(to("q", value=ZERO), Accumulate("y", 0, Op.ADD, P_IN_FLOAT)),), ""),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_pairs_of_loops(name: str) -> None:
    """(written, read) as two letters each: exactly those that are safe."""
    body, want = PROGRAMS[name]
    params = tuple(Buffer(b, int32 if b in "pq" else float32, n, Scope.GLOBAL) for b, n in SIZES.items())
    program = Program("k", params, frozenset(SIZES), (Var("n", 0, 9),), body)
    names = [b.name for b in params]
    found = {names[w] + names[r] for w, r in in_place_pairs(program)}
    assert found == set(want.split())
