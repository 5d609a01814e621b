"""Precedence of groups: paths from producers to consumers, against a plain search."""

from __future__ import annotations

import numpy as np
import pytest

from weft.scheduler.kernelize.groups import Group
from weft.scheduler.kernelize.precedence import Precedence


def test_a_producer_reaches_its_consumers_and_theirs() -> None:
    first, second, third, other = (Group(k) for k in range(4))
    p = Precedence()
    p.add(second, [first])
    p.add(third, [second, other])
    assert p.reaches(second, first) and p.reaches(third, first) and p.reaches(third, other)
    assert not p.reaches(first, third) and not p.reaches(second, other) and not p.reaches(other, first)
    assert p.reaches(first, first)
    assert list(p.consumers(third)) == [second, other] and not p.consumers(first)


@pytest.mark.parametrize("seed", range(8))
def test_paths_are_those_that_a_plain_search_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = [Group(k) for k in range(24)]
    edges = [(a, b) for a in range(24) for b in range(a) if rng.random() < 0.08]
    paths = np.eye(24, dtype=bool)
    p = Precedence()
    for k in rng.permutation(len(edges)):
        a, b = edges[k]
        p.add(groups[a], [groups[b]])
        paths |= np.outer(paths[:, a], paths[b])
        found = [[p.reaches(x, y) for y in groups] for x in groups]
        np.testing.assert_array_equal(found, paths)


def test_a_search_that_takes_too_long_presumes_a_path() -> None:
    first, second, third, user, lone, top = (Group(k) for k in range(6))
    p = Precedence()
    p.add(second, [first])
    p.add(third, [second])
    p.add(lone, [user])
    p.add(top, [lone])
    assert not p.reaches(top, first, limit=3)  # visits first, second and third
    assert p.reaches(top, first, limit=2)
