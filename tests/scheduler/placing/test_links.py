"""Collectives take what the fastest algorithm takes."""

from __future__ import annotations

import numpy as np
import pytest

from weft.scheduler.placing.links import NOTHING, Collective, Links, Way, fastest, ways


def everyone(links: Links) -> np.ndarray:
    return np.arange(links.count)[None]


def test_a_message_takes_latency_and_bytes() -> None:
    links = Links.islands([2, 1], (10, 1e9), (100, 1e8))
    assert links.send_ns(0, 1, 50) == 10 + 50
    assert links.send_ns(1, 2, 50) == 100 + 500
    assert links.send_ns(1, 1, 50) == 0


def test_small_all_reduces_are_sent_at_once_and_large_ones_in_pieces() -> None:
    links = Links.uniform(8, 1000, 1e9)
    some = ways(links, everyone(links), Collective.ALL_REDUCE)
    assert [w.algorithm for w in some] == ["at once", "in two"]
    assert fastest(some, 8) == Way("at once", 1000, 7)
    assert fastest(some, 1 << 30) == Way("in two", 2 * 1000, 14 / 8)


def test_rings_are_for_fast_neighbours() -> None:
    links = Links.uniform(8, 1000, 1e8)
    for k in range(8):
        links.ns_per_byte[k, (k + 1) % 8] = 1
    some = ways(links, everyone(links), Collective.ALL_REDUCE)
    assert fastest(some, 1 << 30) == Way("ring", 14 * 1000, 14 / 8)


@pytest.mark.parametrize("kind", Collective)
def test_no_algorithm_beats_what_a_device_must_send_or_wait_for(kind: Collective) -> None:
    for count in (2, 3, 5, 8, 13):
        links = Links.uniform(count, 700, 2e9)
        sent = (count - 1) / count * 0.5 * (2 if kind is Collective.ALL_REDUCE else 1)
        for w in ways(links, everyone(links), kind):
            assert w.fixed_ns >= 700 - 1e-9, w
            assert w.ns_per_byte >= sent - 1e-9, w


def test_fast_islands_are_reduced_within_before_slow_links_are_used() -> None:
    links = Links.islands([4, 4], (1000, 100e9), (5000, 1e9))
    some = ways(links, everyone(links), Collective.ALL_REDUCE)
    best = fastest(some, 1 << 30)
    assert best.algorithm == "hierarchical"
    assert best.ns_per_byte == pytest.approx(2 * 3 / 4 / 100 + 1 / 4)  # within twice, a quarter of it across
    ring = 14 / 8
    assert best.ns_per_byte < ring / 5


def test_a_group_waits_for_its_slowest_link() -> None:
    links = Links.uniform(4, 100, 1e9)
    slow = Links(links.latency_ns.copy(), links.ns_per_byte.copy())
    slow.ns_per_byte[2, 3] = 10
    groups = np.array([[0, 1], [2, 3]])
    assert fastest(ways(links, groups, Collective.ALL_GATHER), 1e6).ns(1e6) == pytest.approx(100 + 0.5e6)
    assert fastest(ways(slow, groups, Collective.ALL_GATHER), 1e6).ns(1e6) == pytest.approx(100 + 5e6)


def test_one_device_exchanges_nothing() -> None:
    links = Links.uniform(3, 100, 1e9)
    assert ways(links, np.arange(3)[:, None], Collective.ALL_REDUCE) == ()
    assert fastest((), 1e6) == NOTHING
