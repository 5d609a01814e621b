"""Keys that are read in one go come to what reading them entry by entry comes to."""

from __future__ import annotations

import random

import pytest

import weft
from weft.core.layout import indexing


def test_plain_keys_come_to_the_node_that_reading_them_gives() -> None:
    """Numbers and slices without a step; what is out of range is left to who refuses it."""
    rng = random.Random(3)
    bounds = (None, 0, 1, 2, 3, -1, -2, 5, -7)
    taken = 0
    for _ in range(400):
        shape = tuple(rng.choice((0, 1, 2, 4)) for _ in range(rng.randrange(4)))
        v = weft.ones(shape).realize().value
        entries = [
            rng.choice((
                None, rng.choice(bounds[1:]), slice(rng.choice(bounds), rng.choice(bounds)),
                slice(None, None, rng.choice((None, 1, 2, -1))), True, Ellipsis,
            ))
            for _ in range(rng.randrange(4))
        ]  # fmt: skip
        key = tuple(entries) if len(entries) != 1 or rng.random() < 0.5 else entries[0]
        found = indexing._plain(v, key)
        if found is not None:
            taken += 1
            assert found.node is indexing._take_basic(v, indexing._parse(v, key)).node, (shape, key)
    assert taken > 100


@pytest.mark.parametrize("key", [5, -6, (0, 0, 0), (slice(None), 4), (0, 0, None, 0)])
def test_what_is_not_there_is_refused(key: object) -> None:
    x = weft.ones(5, 4)
    assert indexing._plain(x.value, key) is None
    with pytest.raises(weft.IndexError):
        x[key]


def test_gradients_of_plain_keys() -> None:
    x = weft.arange(24.0).reshape(2, 3, 4).requires_grad_()
    (x[1] * 2).sum().backward()
    (x[:, -1, 1:3] * 3).sum().backward()
    assert x.grad is not None
    want = [[[0.0] * 4 for _ in range(3)], [[2.0] * 4 for _ in range(3)]]
    for part in want:
        part[2][1] += 3
        part[2][2] += 3
    assert x.grad.tolist() == want
