"""Graphs of programs whose graphs change are computed by segments that share plans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import weft
from weft.backends.registry import open_device
from weft.ir.graph import Node, toposort
from weft.scheduler import realize as realization
from weft.scheduler import repeats

LENGTHS = (14, 17, 15, 20, 19, 22)


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> repeats.Memory:
    """What is known of changing programs: nothing at first, and no plan of theirs."""
    known = repeats.Memory()
    monkeypatch.setattr(realization, "_plans", {})
    monkeypatch.setattr(realization, "_memory", known)
    monkeypatch.setattr(realization, "_came", {})
    return known


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of segments of the graphs that were cut so far."""
    found: list[int] = []
    compute = realization._by_segments

    def counting(segments, nodes, device):
        found.append(len(segments))
        return compute(segments, nodes, device)

    monkeypatch.setattr(realization, "_by_segments", counting)
    return found


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of the graphs that got plans so far."""
    found: list[int] = []
    build = realization._from_disk_or_built

    def counting(device, sig, replaces):
        found.append(len(sig.key.rows))
        return build(device, sig, replaces)

    monkeypatch.setattr(realization, "_from_disk_or_built", counting)
    return found


def unrolled(steps: int, seed: int = 0) -> tuple[weft.Tensor, np.ndarray]:
    """A recurrence of so many steps, and what it gives."""
    rng = np.random.default_rng(seed)
    w, h = rng.standard_normal((2, 5, 5)) * 0.4
    xs = rng.standard_normal((steps, 5, 5))
    a, y = weft.tensor(w, dtype=weft.float32), weft.tensor(h, dtype=weft.float32)
    inputs = [weft.tensor(x, dtype=weft.float32) for x in xs]
    for x, given in zip(inputs, xs, strict=True):
        y = (y @ a + x).tanh() * x.sigmoid() + 0.25 * y
        h = np.tanh(h @ w + given) / (1 + np.exp(-given)) + 0.25 * h
    return y, h


def test_a_program_whose_graphs_change_is_cut_and_plans_less_and_less(
    cut: list[int], built: list[int]
) -> None:
    planned = []
    for steps in LENGTHS:
        y, expected = unrolled(steps)
        before = sum(built)
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)
        planned.append(sum(built) - before)
    assert len(cut) == len(LENGTHS) - repeats.MANY_STRUCTURES + 1
    assert planned[-1] < min(planned[: repeats.MANY_STRUCTURES - 1]) / 2


def test_what_repeats_is_not_cut(cut: list[int]) -> None:
    for _ in range(3):
        for steps in LENGTHS[: repeats.MANY_STRUCTURES - 1]:
            unrolled(steps)[0].realize()
    assert not cut


def test_a_graph_that_comes_back_has_a_plan_of_its_own(cut: list[int]) -> None:
    for steps in LENGTHS:
        unrolled(steps)[0].realize()
    before = len(cut)
    for _ in range(2 * realization.COMES_BACK):
        unrolled(LENGTHS[-1])[0].realize()
    assert (
        len(cut) - before == realization.COMES_BACK - 2
    )  # it came once before, and the last time has a plan


def test_a_very_large_graph_is_cut_when_it_first_comes(
    cut: list[int], built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "OWN_PLAN_AFTER", 3)
    for runs in range(1, 5):
        y, expected = unrolled(150)
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)
        if runs < 3:
            assert len(cut) == runs and max(built) < repeats.MANY_NODES
    assert len(cut) == 2 and max(built) > repeats.MANY_NODES


def test_a_very_large_graph_takes_its_plan_from_disk(
    cut: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_VERIFY", "0")
    with monkeypatch.context() as patch:
        patch.setattr(repeats, "MANY_NODES", 1 << 20)
        unrolled(150)[0].realize()
    realization._plans.clear()
    y, expected = unrolled(150)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert not cut
    y, expected = unrolled(151)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert len(cut) == 1


def test_what_does_not_repeat_is_no_cheaper_in_segments(memory: repeats.Memory) -> None:
    y = weft.ones(4, 4).contiguous().realize()
    for k in range(repeats.MANY_NODES):
        y = [y.sin, y.cos, y.exp, y.sqrt, y.tanh, y.abs][(k * k + k // 7) % 6]() + weft.full((4, 4), k + 2.0)
        y = y.T if k % 5 == k % 7 else y
    order = repeats.candidates([y.value.node])
    distinct = [k * 7919 for k in range(len(order))]
    assert repeats.segments([y.value.node], order, distinct, memory, changes=False) is None


def test_a_segment_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    y, expected = unrolled(LENGTHS[0])
    node = (y * 2).value.node
    order = repeats.candidates([y.value.node, node])
    halves = repeats._read_elsewhere(
        [y.value.node, node], order, [(0, len(order) - 1), (len(order) - 1, len(order))]
    )
    assert halves[-1] == (node,) and y.value.node in halves[0]
    planned, cpu = realization.planned, open_device("cpu")

    def failing(sig, device):
        if len(sig.results()) == 1:
            raise weft.DeviceError("lost")
        return planned(sig, device)

    with monkeypatch.context() as patch:
        patch.setattr(realization, "planned", failing)
        with pytest.raises(weft.DeviceError):
            realization._by_segments(halves, [y.value.node, node], cpu)
    assert all(n.storage is None for n in order)
    realization._by_segments(halves, [y.value.node, node], cpu)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_modes_that_pin_results_do_not_cut(cut: list[int]) -> None:
    weft.use_deterministic_algorithms(True)
    try:
        for steps in LENGTHS[:4]:
            unrolled(steps)[0].realize()
    finally:
        weft.use_deterministic_algorithms(False)
    with weft.numerics("same"):
        for steps in LENGTHS[:4]:
            unrolled(steps)[0].realize()
    assert not cut


def test_large_values_and_small_graphs_are_left_alone() -> None:
    assert not repeats.candidates([unrolled(2)[0].value.node])
    big = weft.ones(200, 200)
    for k in range(repeats.MIN_NODES):
        big = (big * (k + 0.5)).sin()
    assert not repeats.candidates([big.value.node])


def a_graph(rng: np.random.Generator) -> tuple[list[weft.Tensor], list[np.ndarray]]:
    """Some results of a random program, in a few kinds of steps that come again and again."""
    data = [rng.uniform(-1, 1, (4, 4)) for _ in range(4)]
    pairs = [(weft.tensor(d, dtype=weft.float64), d) for d in data]
    steps = [
        lambda t, n: (t[0] + t[1], n[0] + n[1]),
        lambda t, n: (t[0].T * 0.5, n[0].T * 0.5),
        lambda t, n: (t[0] @ t[1] / 4, n[0] @ n[1] / 4),
        lambda t, n: (weft.cat([t[0][1:], t[1][:1]]).sin(), np.sin(np.concatenate([n[0][1:], n[1][:1]]))),
        lambda t, n: (t[0] - t[1].mean(0), n[0] - n[1].mean(0)),
    ]
    pattern = rng.integers(0, len(steps), int(rng.integers(2, 5)))
    for k in range(100):
        step = steps[int(pattern[k % len(pattern)] if rng.random() < 0.8 else rng.integers(len(steps)))]
        chosen = [pairs[int(i)] for i in rng.integers(max(0, len(pairs) - 6), len(pairs), 2)]
        pairs.append(step([t for t, _ in chosen], [n for _, n in chosen]))
    results = [pairs[-1], *(pairs[int(i)] for i in rng.integers(4, len(pairs), 3))]
    return [t for t, _ in results], [n for _, n in results]


@pytest.mark.parametrize("seed", range(3))
def test_segments_read_what_came_before_and_compute_the_same(seed: int, memory: repeats.Memory) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(2):
        tensors, expected = a_graph(rng)
        nodes = list(dict.fromkeys(t.value.node for t in tensors))
        order = repeats.candidates(nodes)
        kinds = repeats.kinds_of(order)
        for k in rng.choice(len(kinds), 3):  # whatever the ends are
            memory.keep(frozenset({kinds[int(k)]}), [])
        memory.segments.update(dict.fromkeys((k,) for k in kinds))
        ends = rng.choice(len(kinds), 3).tolist()
        cuts = repeats._joined(kinds, repeats._after(kinds, frozenset(kinds[k] for k in ends)), order)
        assert [a for a, _ in cuts] == [0, *(b for _, b in cuts[:-1])] and cuts[-1][1] == len(order)
        found = repeats._read_elsewhere(nodes, order, cuts)
        _check_order(found, nodes)
        realization._by_segments(found, nodes, open_device("cpu"))
        assert {n for n in order if n.storage is not None} == set(nodes)
        for t, e in zip(tensors, expected, strict=True):
            np.testing.assert_allclose(t.numpy(), e, rtol=1e-9, atol=1e-12)


def _check_order(found: list[tuple[Node, ...]], nodes: list[Node]) -> None:
    """Each node is asked for in one segment, and what is asked for is among them."""
    flat = [n for segment in found for n in segment]
    assert len(set(flat)) == len(flat) and set(nodes) <= set(flat)
    done: set[Node] = set()
    for segment in found:
        for n in segment:
            later = set(flat) - done - set(segment)
            assert not later & set(toposort([n]))
        done.update(segment)


@pytest.mark.parametrize("turns", [5, 50, 61])
def test_long_runs_are_cut_into_blocks_that_any_length_has(turns: int) -> None:
    kinds = [7, 8, *([1, 2] * turns), 9, *([3] * turns), *range(20, 60)]
    ends = list(repeats._at_runs(kinds, [len(kinds)]))
    cuts = repeats._joined(kinds, ends)
    assert [a for a, _ in cuts] == [0, *(b for _, b in cuts[:-1])] and cuts[-1][1] == len(kinds)
    segments = [kinds[a:b] for a, b in cuts]
    assert segments[0] == [7, 8] and [9] in segments and segments[-1] == [*range(20, 60)]
    assert {tuple(p) for p in segments[1:-1]} - {(9,)} <= {
        unit * 2**k
        for unit in ((1, 2), (3,))
        for k in range(6)
        if len(unit) * 2**k <= repeats.MAX_SEGMENT_NODES
    }


def test_runs_of_several_kinds_are_cut_in_short_segments_too() -> None:
    unit = [1, 2, 3, 4, 5, 6, 7]
    for turns in (4, 5, 13):
        kinds = [20, *(unit * turns), 21, 22]
        cuts = repeats._joined(kinds, list(repeats._at_runs(kinds, [len(kinds)])))
        blocks = [kinds[a:b] for a, b in cuts]
        assert blocks[0] == [20] and blocks[-1] == [21, 22]
        assert [k for block in blocks for k in block] == kinds
        assert all(b in (unit, unit * 2, unit * 4) for b in blocks[1:-1])


def test_graphs_of_two_programs_are_told_apart() -> None:
    memory = repeats.Memory()
    one, other = frozenset(range(20)), frozenset(range(100, 120))
    assert [memory.changes(one if k % 2 else other, k) for k in range(8)] == [False] * 6 + [True] * 2
    assert not any(memory.changes(frozenset(range(k, k + 9)), 0) for k in range(1000, 3000, 9))
    assert len(memory.programs) == repeats.PROGRAMS_KEPT


def test_what_has_a_plan_for_all_sizes_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    candidates = repeats.candidates
    monkeypatch.setattr(repeats, "candidates", lambda nodes: (looked.append(1), candidates(nodes))[1])
    for n in (50, 61, 73, 97):
        x = weft.tensor(np.linspace(0, 1, n, dtype=np.float32))
        for k in range(60):
            x = (x * (1 + k / 64)).sin() + 0.25
        assert x.sum().isfinite()
    assert len(looked) == 2
