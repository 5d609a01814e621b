"""Graphs are split where what stays meets what changes, if that is worth the memory."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
import weft.ir.graph
from weft import Tensor
from weft.backends.registry import open_device
from weft.ir.dtypes import from_numpy
from weft.ir.graph import Node
from weft.ir.ops import Op
from weft.scheduler import invariants, panels
from weft.scheduler.invariants import FREE_BYTES, Split, split
from weft.scheduler.keeping import nbytes
from weft.testing.programs import GraphProgram
from weft.testing.reference import evaluate
from weft.testing.strategies import programs, reduction_programs

INFO = open_device("dummy:0").info


def _leaf(*shape: int, dtype: weft.DType = weft.float32) -> Tensor:
    return weft.zeros(*shape, dtype=dtype).realize()


def _placeholder(t: Tensor) -> Node:
    """The node of a tensor, as a leaf without a value: so leaves are while a function is traced."""
    t.value.node.storage = None
    return t.value.node


def _split(result: Tensor, *staying: Tensor) -> Split | None:
    return split([result.value.node], {t.value.node for t in staying}, INFO)


def _shapes(found: Split | None) -> list[tuple[object, ...]]:
    return [] if found is None else [n.shape for n in found.kept]


def _leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    found = [_leaf(*s) for s in shapes]
    for t in found:
        _placeholder(t)
    return found


def test_what_depends_on_what_stays_is_kept_and_the_rest_reads_it_as_a_leaf() -> None:
    x, scale = _leaves((8, 4), (4,))
    found = _split(x * scale.exp() + 1, scale)
    assert found is not None
    assert [n.op.symbol for n in found.kept] and found.kept[0].shape == (4,)
    below = set(weft.ir.graph.toposort(found.outputs))
    assert found.stand_ins[0] in below and x.value.node in below and scale.value.node not in below


def test_views_of_what_stays_are_not_kept() -> None:
    x, w = _leaves((8, 4), (4, 4))
    assert _split(x @ w.T, w) is None
    assert _split(x * w.reshape(2, 8)[1, 4:], w) is None


def test_what_is_expanded_is_kept_before() -> None:
    x, a = _leaves((64, 4, 8), (4,))
    assert _shapes(_split(x * a.exp().reshape(4, 1).expand(64, 4, 8), a)) == [(4,)]


def test_of_what_is_too_large_the_parts_are_kept() -> None:
    n = 2048
    x, a, b = _leaves((n, n), (n, 1), (1, n))
    assert set(_shapes(_split(x * (a.exp() * b.exp()), a, b))) == {(n, 1), (1, n)}


def test_a_small_table_that_takes_long_is_kept() -> None:
    x, a, b = _leaves((64, 32), (64, 1), (1, 32))
    assert _shapes(_split(x * (a * b).cos(), a, b)) == [(64, 32)]
    assert _shapes(_split(x * (a * b), a, b)) == []


def test_a_root_for_each_channel_is_kept() -> None:
    """What a batch norm multiplies by, which takes as long as thirty products in each element otherwise."""
    x, variance, weight = _leaves((8, 4, 6), (4,), (4,))
    factor = (variance + 1e-5).rsqrt().reshape(4, 1)
    assert _shapes(_split(x * factor * weight.reshape(4, 1), variance, weight)) == [(4,)]
    assert _shapes(_split(x * (variance + 1e-5).reshape(4, 1), variance)) == []


def test_weights_divided_by_a_constant_are_not_kept_twice() -> None:
    x, w = _leaves((8, 64), (64, 64))
    assert _shapes(_split(x @ (w / 3.0), w)) == []


def test_weights_that_are_stored_in_few_bits_stay_so() -> None:
    x = _leaf(1, 1024)
    w = _leaf(1024, 1024, dtype=weft.int8)
    for t in (x, w):
        _placeholder(t)
    assert _split(x @ w.float(), w) is None


def test_results_are_not_kept() -> None:
    x, a = _leaves((4,), (4,))
    y = a.exp()
    found = split([y.value.node, (x * y).value.node], {a.value.node}, INFO)
    assert found is None


def test_all_that_is_kept_has_a_bound() -> None:
    n = FREE_BYTES // 4
    x, *many = _leaves((n,), *[(n,)] * 8)
    y = x
    for t in many:
        y = y * t.exp() + y.sin()
    found = _split(y, *many)
    assert found is not None and len(found.kept) == 3 and sum(map(nbytes, found.kept)) == 3 * FREE_BYTES


def test_nothing_is_kept_of_what_changes() -> None:
    x, a = _leaves((4,), (4,))
    assert _split((x * a).exp(), a) is None


def test_a_table_that_constants_make_is_kept_if_that_takes_long() -> None:
    (x,) = _leaves((128, 64))
    angles = weft.arange(128).reshape(128, 1) * weft.arange(64).float()
    assert _shapes(_split(x * angles.cos())) == [(128, 64)]
    assert _split(x * angles) is None
    assert _split(x.where(weft.arange(128).reshape(128, 1) > weft.arange(64), 0.0)) is None
    assert _split(x[:4, :4] * weft.arange(4).float().exp()) is None
    assert _split(x * weft.full((64,), 2.0).exp()) is None


@settings(
    max_examples=80, derandomize=True, suppress_health_check=list(HealthCheck), deadline=None, database=None
)
@given(programs() | reduction_programs(), st.integers(0, 2**20))
def test_both_parts_of_random_graphs_compute_what_the_graph_does(program: GraphProgram, seed: int) -> None:
    """Bit for bit, in the reference; whatever stays is kept, and weights of any size are laid out in panels."""
    arrays: dict[Node, Any] = {}

    def leaf(array: Any) -> Node:
        node = weft.ir.graph.buffer(array.shape, from_numpy(array.dtype), "home", None)
        arrays[node] = array
        return node

    nodes = program.build(leaf, {"home": "home", "away": "home"})
    changing = Random(seed).choice([None, *arrays])
    staying = {n for n in arrays if n is not changing}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panels, "MIN_BYTES", 0)
        patch.setattr(panels, "MIN_ROWS", 1)
        patch.setattr(invariants, "MIN_TABLE_BYTES", 0)
        patch.setattr(invariants, "_LONG", frozenset(Op))
        found = split(nodes, staying, replace(INFO, name="home", vector_bytes=4))
    if found is None:
        return
    used = set(weft.ir.graph.toposort(found.kept)) & arrays.keys()
    assert used <= staying
    kept = dict(zip(found.stand_ins, evaluate(found.kept, given=arrays), strict=True))
    for got, want in zip(
        evaluate(found.outputs, given=arrays | kept), evaluate(nodes, given=arrays), strict=True
    ):
        assert got.tobytes() == want.tobytes()
