"""The table of nodes: it is swept, and whoever watches its growth is told of new nodes."""

from __future__ import annotations

import threading

import pytest

from weft.ir import dtypes, graph
from weft.ir.graph import Node
from weft.ir.ops import Op


def chain(n: int) -> Node:
    node = graph.buffer((4,), dtypes.float32, "cpu:0", None)
    for _ in range(n):
        node = graph.apply(Op.NEG, (graph.apply(Op.EXP, (node,)),))
    return node


def test_watchers_are_called_after_as_many_new_nodes_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(graph, "_watchers", [lambda: calls.append(0)])
    graph.watch_after(100)
    held = chain(49)
    assert not calls
    also = chain(2)
    assert calls == [0]
    assert held is not also
    graph.watch_after(graph.GROWTH)


def test_nodes_in_place_of_dead_ones_count_as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(graph, "_watchers", [lambda: (calls.append(0), graph.watch_after(1000))])
    x = graph.buffer((4,), dtypes.float32, "cpu:0", None)
    graph.watch_after(1000)
    for _ in range(3 * 1001):
        graph.apply(Op.EXP, (x,))
    assert 2 <= len(calls) <= 3
    graph.watch_after(graph.GROWTH)


def test_the_table_is_swept_when_it_has_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "_nodes", {})  # however large earlier tests let it become
    monkeypatch.setattr(graph, "_sweep_at", 4096)
    graph.watch_after(graph.GROWTH)
    for _ in range(3):
        chain(graph._sweep_at)  # twice as many nodes
        assert len(graph._nodes) <= graph._sweep_at + 1
    monkeypatch.undo()
    graph.watch_after(graph.GROWTH)


def test_devices_that_are_gone_take_dead_nodes_with_them_and_watchers_are_called_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(graph, "_nodes", {})
    monkeypatch.setattr(graph, "_watchers", [lambda: calls.append(0)])
    held = graph.apply(Op.EXP, (graph.buffer((4,), dtypes.float32, "cpu:0", None),))
    graph.watch_after(1000)
    for _ in range(600):
        graph.apply(Op.EXP, (held,))
    graph.forget(lambda name: name == "cpu:9")
    assert [entry() for entry in graph._nodes.values()] == [held] and not calls
    for _ in range(410):
        graph.apply(Op.EXP, (held,))
    assert len(calls) == 1
    graph.forget(lambda name: name == "cpu:0")
    assert not graph._nodes
    monkeypatch.undo()
    graph.watch_after(graph.GROWTH)


def test_nodes_in_place_of_dead_ones_bring_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "_nodes", {})
    monkeypatch.setattr(graph, "_sweep_at", 4096)
    sweeps: list[int] = []
    monkeypatch.setattr(graph, "_sweep", lambda: sweeps.append(len(graph._nodes)))
    graph.watch_after(graph.GROWTH)
    x = graph.buffer((4,), dtypes.float32, "cpu:0", None)
    for _ in range(3 * 4096):
        graph.apply(Op.EXP, (x,))  # dead at once, and of the same key
    assert sweeps == [] and len(graph._nodes) == 1
    monkeypatch.undo()
    graph.watch_after(graph.GROWTH)


def test_threads_get_the_same_nodes_while_the_table_is_swept() -> None:
    x = graph.buffer((4,), dtypes.float32, "cpu:0", None)
    start = threading.Barrier(5)
    made: list[list[Node]] = [[] for _ in range(4)]

    def work(k: int) -> None:
        start.wait()
        node = x
        for n in range(5_000):
            node = graph.apply(Op.ADD, (node, graph.const(float(n), dtypes.float32, (4,))))
            made[k].append(node)
            graph.apply(Op.EXP, (node,))  # dead at once

    def sweep() -> None:
        start.wait()
        for _ in range(50):
            graph._sweep()

    threads = [*(threading.Thread(target=work, args=(k,)) for k in range(4)), threading.Thread(target=sweep)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(a is b for others in made[1:] for a, b in zip(made[0], others, strict=True))
