"""Far: the inputs of plans that read much, and what is written into them."""

from __future__ import annotations

import weft
from weft.autograd.value import Value
from weft.core.args.handle import wrap
from weft.ir.dtypes import float32
from weft.ir.graph import buffer, toposort
from weft.ir.index import Int, Var
from weft.scheduler.kernelize.far import FAR_BYTES, MIN_BYTES, find_far
from weft.scheduler.kernelize.kernels import kernelize

LARGE = FAR_BYTES // 4


def far(*outputs: weft.Tensor) -> frozenset[int]:
    return find_far(toposort([t.value.node for t in outputs]))


def held(*shape: Int) -> weft.Tensor:
    """A tensor of which nothing but the shape exists."""
    return wrap(Value(buffer(shape, float32, "cpu:0", object())))


def test_inputs_of_a_plan_that_reads_much_are_far_but_for_small_ones() -> None:
    one, large, small = held(MIN_BYTES // 4), held(LARGE), held(MIN_BYTES // 4 - 1)
    found = far(large + 1, one + 1, small + 1)
    assert {id(t.value.node) in found for t in (large, one)} == {True}
    assert id(small.value.node) not in found
    assert not far(one + 1, small + 1)
    assert not far(large + 1), "no more than the limit"


def test_what_is_computed_is_near() -> None:
    x, y = held(LARGE), held(LARGE)
    assert far(x + y) == {id(x.value.node), id(y.value.node)}


def test_what_is_written_into_a_far_tensor_is_far() -> None:
    x, y = held(4096, LARGE // 4096), held(1, LARGE // 4096)
    written = weft.slice_scatter(x, y, 0, 7, 8)
    assert id(written.value.node) in far(written)
    assert id(written.value.node) not in find_far([x.value.node, y.value.node, (x + 1).value.node])


def test_sizes_known_at_run_time_do_not_count() -> None:
    n = Var("n", 1, 1 << 24)
    assert not find_far([held(n).value.node])


def test_kernels_that_differ_in_it_are_two() -> None:
    x, y = held(300, 300), held(LARGE)
    alone = kernelize([(x.sum(1)).value.node])
    beside = kernelize([(x.sum(1)).value.node, (y + 1).value.node])
    assert [p.far for k in alone for p in k.algorithm.params] == [False, False]
    assert [p.far for p in beside[0].algorithm.params] == [True, False]
