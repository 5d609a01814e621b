"""Outlines: what graphs that differ in sizes and numbers have in common, and graphs made anew from them."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import pytest

import weft
import weft.nn.functional as F
from weft import Tensor
from weft.ir.calls import expand_calls
from weft.ir.graph import toposort
from weft.ir.graph_text import show_graph
from weft.scheduler import outline as outlining
from weft.scheduler.outline import (
    Padded,
    Role,
    Share,
    Total,
    count_of,
    followed,
    outline,
    outline_like_before,
    rebuilt,
    roles,
)
from weft.scheduler.signature import Signature, signature


def signed(*tensors: Tensor) -> Signature:
    return signature(expand_calls([t.value.node for t in tensors]))


def graph(n: int, start: int, c: float) -> Tensor:
    x, w = weft.zeros(n, 8).contiguous().realize(), weft.zeros(8, 4).contiguous().realize()
    return F.pad((x @ w)[start : start + 2] * c, (1, 2)).softmax(-1).sum(0)


def test_sizes_starts_and_numbers_are_no_part_of_an_outline() -> None:
    one, other = (outline(signed(graph(*a)).key.rows) for a in ((5, 1, 0.3), (9, 4, 0.7)))
    assert one.key == other.key
    assert one.sizes != other.sizes
    assert set(one.numbers) - set(other.numbers) == {weft.tensor(0.3).item()}


def test_nodes_are_counted_with_those_inside_of_calls() -> None:
    x = weft.ones(40, 6).contiguous().realize()
    for y in (F.softmax(x, -1), F.softmax(x, -1).exp(), x + x):
        rows = signature([y.value.node]).key.rows
        assert count_of(rows) == len(toposort(expand_calls([y.value.node])))


def test_an_outline_that_follows_from_the_one_before_is_that_of_the_rows() -> None:
    x, n = weft.ones(40, 6).contiguous().realize(), weft.ones(40, dtype=weft.int64).contiguous().realize()

    def graphs() -> Iterator[Tensor]:
        for k in (3, 5, 3, 9):
            yield (x[k : k + 4] * (k / 7) + k).exp()
            yield (x[k : k + 4] * (k / 7) + 1).exp()  # a number that is part of the structure
            yield (x[k : k + 1] * (k / 7) + k).exp()  # a size that is
            yield (x[k : k + 4] * (k / 7) + k).sin()
            yield F.pad(x[:k], (0, 0, k, 1)) - k
            yield x[:k].softmax(-1).sum() + k  # a call, which has sizes and numbers inside
            yield n[k:].cumsum(0) * k

    keys: dict[object, object] = {}
    for t in graphs():
        rows = signature([t.value.node]).key.rows
        found, own = outline_like_before(rows), outline(rows)
        assert (found.key, found.sizes, found.numbers) == (own.key, own.sizes, own.numbers)
        assert [x.__class__ for x in found.numbers] == [x.__class__ for x in own.numbers]
        assert outline_like_before(rows) is found
        keys.setdefault(found.key, found.key)
    assert found.key is keys[found.key], "the key of the one before is taken"


def test_graphs_that_others_are_compared_with_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlining, "WALKS_KEPT", 3)
    monkeypatch.setattr(outlining, "_walks", {})
    x = weft.ones(5).contiguous().realize()
    for k in range(1, 8):
        y = x
        for _ in range(k):
            y = y.sin()
        outline_like_before(signed(y).key.rows)
    assert len(outlining._walks) == 3


@pytest.mark.parametrize(
    ("change"),
    [
        lambda x: x[:1],  # an axis of one element broadcasts
        lambda x: x[:0],
        lambda x: x[::2],
        lambda x: x * 2.0,  # a number that rules simplify by
        lambda x: x * float("inf"),
        lambda x: x.double(),
        lambda x: x.T,
    ],
)
def test_what_changes_the_meaning_is_part_of_an_outline(change) -> None:  # type: ignore[no-untyped-def]
    x = weft.ones(6, 6).contiguous().realize()
    plain = outline(signed(x[:4] * 3.0 + 1).key.rows)
    assert outline(signed(x[:5] * 4.0 + 1).key.rows).key == plain.key
    assert outline(signed(change(x)[:4] * 3.0 + 1).key.rows).key != plain.key
    assert outline(signed(change(x)[:4] + 1).key.rows).key != plain.key


def test_a_graph_made_anew_from_its_own_sizes_is_the_same() -> None:
    sig = signed(graph(7, 2, 0.4), graph(7, 3, 0.6).exp())
    made = rebuilt(sig.key.rows, outline(sig.key.rows).sizes, frozenset(), "cpu:0")
    assert signature(made.outputs).key == sig.key


def test_lifted_numbers_are_leaves() -> None:
    x = weft.ones(3).realize()
    sig = signed(x * 0.3 + 0.7)
    own = outline(sig.key.rows)
    which = own.numbers.index(weft.tensor(0.3).item())
    made = rebuilt(sig.key.rows, own.sizes, frozenset({which}), "cpu:0")
    assert [n.shape for n in made.numbers.values()] == [()]
    text = show_graph(made.outputs)
    assert "const 0.3" not in text
    assert "const 0.69" in text


def test_a_result_that_is_a_lifted_number_is_computed() -> None:
    sig = signed(weft.full((), 0.3))
    made = rebuilt(sig.key.rows, outline(sig.key.rows).sizes, frozenset({0}), "cpu:0")
    assert made.outputs[0] not in made.numbers.values()


def test_each_size_has_a_role() -> None:
    rows = signed(graph(5, 1, 0.3)).key.rows
    found = list(roles(rows))
    assert len(found) == len(outline(rows).sizes)
    assert {Role.LEAF, Role.CHOSEN, Role.START, Role.PADDING, Role.DERIVED} == set(found)


@pytest.mark.parametrize("called", [False, True])
def test_what_sizes_follow_from_is_what_their_ops_make_of_them(called: bool) -> None:
    x = weft.zeros(37, 5).contiguous().realize()
    padded = weft.cat(
        [F.pad(x, (1, 2, 0, 3)).reshape(8, 5, 8), F.pad(x[:14], (0, 3, 1, 1)).reshape(2, 8, 8)[:, 1:6]]
    )
    w = x.detach().requires_grad_()
    (w[1::3] * w[1::3]).sum().backward()  # each row is put three apart
    assert w.grad is not None
    padded = padded + w.grad.sum()
    out = (padded * 0.7).cumsum(0) if called else padded
    rows = signature([out.value.node]).key.rows if called else signed(out).key.rows
    sizes, found = outline(rows).sizes, followed(rows)
    kinds = {type(rule) for rule in found.values()}
    assert kinds == {Padded, Total, Share}
    for place, rule in found.items():
        match rule:
            case Total(parts, step):
                assert sizes[place] == sum(sizes[k] for k in parts) + (step - 1) * (sizes[parts[0]] - 1)
            case Share(whole, others):
                assert sizes[place] * prod(sizes[k] for k in others) == prod(sizes[k] for k in whole)
            case Padded(inner, step):
                made = [t for t in found.values() if isinstance(t, Total) and place in t.parts]
                assert all(set(inner) <= set(t.parts) and t.step == step for t in made) and made
    assert {r.step for r in found.values() if isinstance(r, Padded)} == {1, 3}


def test_the_number_of_steps_of_a_loop_is_a_size() -> None:
    def loop(n: int) -> Tensor:
        xs = weft.ones(n, 3).contiguous().realize()
        return weft.scan(lambda h, x: (h * 0.5 + x, h), weft.zeros(3).contiguous().realize(), xs)[1]

    one, other = (signed(loop(n)) for n in (17, 23))
    assert outline(one.key.rows).key == outline(other.key.rows).key
    made = rebuilt(one.key.rows, outline(other.key.rows).sizes, frozenset(), "cpu:0")
    assert signature(made.outputs).key == other.key
