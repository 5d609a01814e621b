"""What changed of inputs: boxes of writes, and of arrays that differ."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.ir.regions.region import Region
from weft.sessions import inputs
from weft.sessions.inputs import differing, written


def test_writes_are_known_by_their_boxes() -> None:
    t = weft.zeros(4, 6)
    t.numpy()
    node = t.value.node
    before = node.storage
    t[1, 2] = 1.0
    t[3, ::2] = 2.0
    found = written(t.value.node, before)
    assert found is not None and str(found) == "[3:4, 0:5] | [1:2, 2:3]"
    assert written((t + 1).value.node, before) is None


@pytest.mark.parametrize("shape", [(), (7,), (5, 4), (3, 300, 70)])
def test_arrays_that_differ_in_some_places_differ_in_boxes_around_them(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        old = rng.standard_normal(shape).astype(np.float32)
        new = old.copy()
        places = {tuple(int(rng.integers(n)) for n in shape) for _ in range(int(rng.integers(3)))}
        for p in places:
            new[p] = -new[p]
        found = differing(new, old)
        assert len(found.boxes) <= 4 and found.is_empty == (not places)
        inside = np.zeros(shape, bool)
        for box in found.boxes:
            inside[tuple(slice(i.lo, i.hi) for i in box)] = True
        assert all(inside[p] for p in places)


@pytest.mark.parametrize("compare", [inputs._compare, None])
def test_blocks_and_their_parts_are_looked_at_whole(monkeypatch: pytest.MonkeyPatch, compare: object) -> None:
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 96)
    monkeypatch.setattr(inputs, "PART_BYTES", 36)
    monkeypatch.setattr(inputs, "_compare", compare)
    old = np.arange(300, dtype=np.uint8)
    for k in range(300):
        new = old.copy()
        new[k] ^= 1
        assert differing(new, old).boxes == (((k, k + 1),),)
        new[(k + 100) % 300] ^= 1
        assert {b[0].lo for b in differing(new, old).boxes} == {k, (k + 100) % 300}


def test_zeros_of_both_signs_differ_and_a_nan_is_itself() -> None:
    a = np.array([0.0, np.nan, 1.0], np.float32)
    b = np.array([-0.0, np.nan, 1.0], np.float32)
    assert differing(a, b) == Region.of(differing(a, b).boxes) and str(differing(a, b)) == "[0:1]"
    assert differing(a, a.copy()).is_empty
