"""Which outputs may take the memory of an input: the pairs found are safe, and the ordinary ones are found."""

from __future__ import annotations

import numpy as np

import weft
from weft.backends.registry import open_device
from weft.ir import graph
from weft.ir.dtypes import float32
from weft.ir.graph import Node
from weft.scheduler.kernelize import kernelize
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
