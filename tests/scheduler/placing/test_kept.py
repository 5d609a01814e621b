"""Layouts that were chosen before are read from disk: the same choice, and only for the same problem."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.scheduler.placing.test_layouts import S0, S1, R, mesh_of, stored, training_step
from weft import disk_cache
from weft.ir.calls import expand_calls
from weft.ir.graph import Node, toposort
from weft.scheduler.placing import kept
from weft.scheduler.placing.kept import chosen
from weft.scheduler.placing.layouts import Chosen, Rates
from weft.scheduler.placing.links import Links

RATES = [Rates(1e12, 1e12)] * 4
LINKS = Links.uniform(4, 1000, 50e9)


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    entries: dict[str, bytes] = {}
    monkeypatch.setattr(kept, "MIN_NODES", 0)
    monkeypatch.setattr(kept, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(disk_cache, "get", lambda kind, key: entries.get(kind + key))
    monkeypatch.setattr(disk_cache, "put", lambda kind, key, data: entries.__setitem__(kind + key, data))
    return entries


def step(rows: int = 4096) -> tuple[list[Node], list[tuple[Node, Node]]]:
    names, updates = training_step(rows, 128, 128)
    return [names["loss"], *(new for new, _ in updates)], updates


def described(nodes: Sequence[Node], found: Chosen) -> list[Any]:
    """The choice by places in the graph: nodes of another process are others."""
    place = {n: k for k, n in enumerate(toposort(nodes))}
    decisions = [(place[d.node], d.form, d.ns, d.others) for d in found.decisions]
    layouts = {place[n]: layout for n, layout in found.layouts.items()}
    return [decisions, layouts, {place[n]: s for n, s in found.splits.items()}, found.choice]


def search(
    nodes: Sequence[Node], updates: Any = (), rates: Any = RATES, between: Links = LINKS, **more: Any
) -> Chosen:
    return chosen(nodes, mesh_of(4), rates, between, updates=updates, **more)


def test_what_was_chosen_is_read_again(disk: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, updates = step()
    first = described(nodes, search(nodes, updates))
    assert len(disk) == 1

    def refuse(*_: Any) -> Chosen:
        raise AssertionError("searched again")

    monkeypatch.setattr(kept, "choose", refuse)
    nodes, updates = step()  # other nodes of the same structure
    assert described(nodes, search(nodes, updates)) == first


def test_states_of_blocks_and_terms_are_read_again() -> None:
    q, k, v = (stored(1, 512, 32) for _ in range(3))
    scores = (q @ k.transpose(1, 2)).softmax(-1) @ v
    nodes = expand_calls(
        [(scores + stored(1, 512, 64) @ stored(64, 32) + scores @ stored(32, 32)).value.node]
    )
    given = {n: (S1,) for n in toposort(nodes) if n.storage is not None and n.shape == (1, 512, 32)}
    first = search(nodes, given=given)
    again = search(nodes, given=given)
    assert again is not first and described(nodes, again) == described(nodes, first)
    forms = [f for d in first.decisions for f in (d.form, *(f for f, _ in d.others))]
    assert {type(s).__name__ for f in forms for s in f.split} >= {"Running", "Shard"}


def test_another_problem_is_searched(disk: dict[str, bytes]) -> None:
    nodes, updates = step()
    leaf = updates[0][1]
    search(nodes, updates)
    others: list[dict[str, Any]] = [
        {"rates": [*RATES[:3], Rates(2e12, 1e12)]}, {"between": Links.uniform(4, 1000, 10e9)},
        {"limit": 1 << 30}, {"given": {leaf: (R,)}}, {"given": {leaf: (S0,)}}, {"reassociates": False},
    ]  # fmt: skip
    for count, other in enumerate(others, 2):
        search(nodes, updates, **other)
        assert len(disk) == count, other
    search(nodes)
    search(*step(8192))
    assert len(disk) == len(others) + 3


@pytest.mark.parametrize("fault", ["no JSON", "a form", "a place", "a shape", "a row", "a placement"])
def test_an_entry_that_does_not_fit_counts_as_absent(disk: dict[str, bytes], fault: str) -> None:
    nodes, updates = step()
    first = described(nodes, search(nodes, updates))
    ((key, data),) = disk.items()
    entry = json.loads(data)
    match fault:
        case "a form":
            entry["rows"][0][3] = 10_000
        case "a place":
            entry["rows"][0][0] = 10_000
        case "a shape":
            entry["rows"][0][2] = [7]
        case "a row":
            entry["rows"][0] = []
        case "a placement":
            entry["forms"][0][0] = [["shard"]]
        case _:
            entry = None
    disk[key] = b"{" if entry is None else json.dumps(entry).encode()
    assert described(nodes, search(nodes, updates)) == first
    assert disk[key] == data


def test_small_graphs_and_quick_searches_are_not_kept(
    disk: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, updates = step()
    monkeypatch.setattr(kept, "MIN_SECONDS", 1e9)
    search(nodes, updates)
    monkeypatch.setattr(kept, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(kept, "MIN_NODES", 10_000)
    search(nodes, updates)
    assert not disk
