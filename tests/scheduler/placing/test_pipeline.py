"""Stages are the best ones, and microbatches keep all of them busy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from weft.errors import MemoryPlanError
from weft.scheduler.placing.links import Links
from weft.scheduler.placing.pipeline import Layer, cut, one_forward_one_backward, run_ns


def test_four_microbatches_over_two_stages_take_little_more_than_the_ideal() -> None:
    layers = [Layer((1e6, 1e6), sent_bytes=1000)] * 8
    p = cut(layers, Links.uniform(2, 1000, 1e9), 4)
    assert p.ends == (4, 8)
    ideal = (4 + 1) * 4e6
    assert p.ns <= 1.05 * ideal


def test_stages_are_those_of_all_that_run_fastest() -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        n, groups, m = int(rng.integers(3, 8)), 3, int(rng.integers(1, 6))
        links = Links.uniform(groups, 5, 1e9)
        speed = rng.uniform(1, 3, groups)
        layers = []
        for _ in range(n):
            work = rng.integers(10, 100)
            ahead = tuple(float(work * x) for x in speed)
            layers.append(Layer(ahead, tuple(2 * x for x in ahead), 0, 0, int(rng.integers(0, 50))))
        found = cut(layers, links, m)
        best = math.inf
        for count in range(1, groups + 1):
            for inner in itertools.combinations(range(1, n), count - 1):
                spans = list(zip((0, *inner), (*inner, n), strict=True))
                forward = [sum(x.forward_ns[s] for x in layers[i:j]) for s, (i, j) in enumerate(spans)]
                sends = [
                    links.send_ns(s, s + 1, layers[j - 1].sent_bytes) for s, (_, j) in enumerate(spans[:-1])
                ]
                order = one_forward_one_backward(count, m)
                best = min(best, run_ns(order, forward, [2 * x for x in forward], sends))
        assert found.ns <= best * 1.05 + 1e-9
        assert found.ns >= best - 1e-6


def test_faster_groups_get_more_layers() -> None:
    p = cut([Layer((1.0, 3.0))] * 16, Links.uniform(2, 0, 1e9), 64)
    assert p.ends == (12, 16)


def test_a_stage_keeps_as_many_microbatches_as_are_behind_it() -> None:
    order = one_forward_one_backward(3, 8)
    for s, some in enumerate(order):
        assert sorted(some) == sorted((m, back) for m in range(8) for back in (False, True))
        held = most = 0
        for _, back in some:
            held += -1 if back else 1
            most = max(most, held)
        assert most == 3 - s


def test_memory_moves_layers_to_other_stages() -> None:
    layers = [Layer((1.0, 1.0), (1.0, 1.0), weight_bytes=10, kept_bytes=5)] * 8
    even = cut(layers, Links.uniform(2, 0, 1e9), 4)
    assert (even.ends, even.nbytes) == ((4, 8), (4 * 20, 4 * 15))
    tight = cut(layers, Links.uniform(2, 0, 1e9), 4, limits=(70, 200))
    assert (tight.ends, tight.nbytes) == ((3, 8), (60, 75))
    everything = cut(layers, Links.uniform(2, 0, 1e9), 4, limits=(120, 200), keeps_all=True)
    assert (everything.ends, everything.nbytes) == ((4, 8), (4 * 30, 4 * 30))
    assert cut(layers, Links.uniform(2, 0, 1e9), 4, limits=(100, 200), keeps_all=True).ends == (3, 8)
    sent = [Layer((1.0, 1.0), (1.0, 1.0), weight_bytes=10, kept_bytes=5, sent_bytes=2)] * 8
    passing = cut(sent, Links.uniform(2, 0, 1e9), 4, keeps_all=True)
    assert passing.nbytes == (4 * 30 + 4 * 2, 4 * 30 + 4 * 2 + 2 * 4 * 2)
    used = [Layer((1.0, 1.0), weight_bytes=10, sent_bytes=2)] * 8
    assert cut(used, Links.uniform(2, 0, 1e9), 4, stages=2, keeps_all=True).nbytes == (40, 40)
    with pytest.raises(
        MemoryPlanError, match="8 layers in 4 microbatches do not fit on 2 groups with limits of 30, 30"
    ):
        cut(layers, Links.uniform(2, 0, 1e9), 4, limits=(30, 30))


def test_one_stage_runs_alone_where_links_are_slow() -> None:
    layers = [Layer((10.0, 10.0), sent_bytes=1000)] * 2
    assert cut(layers, Links.uniform(2, 1e6, 1e9), 2).ends == (2,)


def test_an_order_that_waits_for_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="waits for itself"):
        run_ns([[(0, True), (0, False)], [(0, False), (0, True)]], [1, 1], [1, 1], [0])
