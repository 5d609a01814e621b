"""Graphs are split where what stays meets what changes, if that is worth the memory."""

from __future__ import annotations

import weft
import weft.ir.graph
from weft import Tensor
from weft.backends.registry import open_device
from weft.ir.graph import Node
from weft.scheduler.invariants import FREE_BYTES, Split, split

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
    assert found is not None and len(found.kept) == 3 and found.nbytes == 3 * FREE_BYTES


def test_nothing_is_kept_of_what_changes_or_of_constants_alone() -> None:
    x, a = _leaves((4,), (4,))
    assert _split((x * a).exp(), a) is None
    assert _split(x * weft.arange(4).float().exp()) is None
