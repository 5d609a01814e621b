"""Small collectives are joined, large ones are not."""

from __future__ import annotations

import numpy as np

from weft.scheduler.placing.buckets import buckets, worth_joining
from weft.scheduler.placing.links import Collective, Links, Way, fastest, ways


def test_buckets_have_as_many_bytes_as_a_message_costs_to_begin() -> None:
    some = (Way("ring", 100.0, 0.5),)
    assert worth_joining(some) == 200
    assert buckets([50] * 9, some) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert buckets([10, 500, 10, 10], some) == [[0], [1], [2, 3]]
    assert buckets([1, 2], ()) == [[0], [1]]


def test_buckets_take_less_time_than_each_alone() -> None:
    links = Links.uniform(8, 5000, 10e9)
    some = ways(links, np.arange(8)[None], Collective.ALL_REDUCE)
    sizes = [4096] * 200
    alone = sum(fastest(some, n).ns(n) for n in sizes)
    joined = [sum(sizes[k] for k in b) for b in buckets(sizes, some)]
    assert sum(joined) == sum(sizes)
    assert sum(fastest(some, n).ns(n) for n in joined) < alone / 5
