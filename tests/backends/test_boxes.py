"""Boxes as runs of bytes: against NumPy's slices, and as few runs as there can be."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends.boxes import BoxCopy, Place, Within, box_copy, runs


def test_random_boxes_are_what_slices_are() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        rank = int(rng.integers(0, 5))
        size = tuple(int(n) for n in rng.integers(0, 5, rank))
        sides: list[Within] = []
        for _ in range(2):
            start, step = (tuple(int(n) for n in rng.integers(low, 3, rank)) for low in (0, 1))
            more = rng.integers(0, 2, rank)
            shape = [
                f + max(n - 1, 0) * s + 1 + int(m) for f, n, s, m in zip(start, size, step, more, strict=True)
            ]
            sides.append(Within(tuple(shape), start, step))
        data, room = (rng.integers(0, 99, s.shape, np.int32) for s in sides)
        want = room.copy()
        at = [
            tuple(slice(f, f + n * s, s) for f, n, s in zip(side.start, size, side.step, strict=True))
            for side in sides
        ]
        want[at[1]] = data[at[0]]
        copy = box_copy(size, 4, *sides)
        assert copy.nbytes == 4 * int(np.prod(size))
        if copy.nbytes:
            given, taken = (x.reshape(-1).view(np.uint8) for x in (data, room))
            runs(taken, copy.target, copy)[...] = runs(given, copy.source, copy)
        np.testing.assert_array_equal(room, want)


@pytest.mark.parametrize(
    ("shape", "start", "size", "counts", "run_bytes"),
    [
        ((8, 4, 6), (0, 0, 0), (8, 4, 6), (), 768),
        ((8, 4, 6), (2, 0, 0), (3, 4, 6), (), 288),
        ((8, 4, 6), (2, 1, 0), (3, 2, 6), (3,), 48),
        ((8, 4, 6), (0, 0, 2), (8, 4, 3), (32,), 12),
        ((8, 4, 6), (2, 1, 1), (1, 1, 4), (), 16),
        ((), (), (), (), 4),
    ],
)  # fmt: skip
def test_axes_that_lie_together_are_one_run(
    shape: tuple[int, ...], start: tuple[int, ...], size: tuple[int, ...], counts: tuple[int, ...], run_bytes: int
) -> None:  # fmt: skip
    copy = box_copy(size, 4, Within(shape, start, (1,) * len(shape)), Within.whole(size))
    assert (copy.counts, copy.run_bytes, copy.fills) == (counts, run_bytes, True)


def test_what_does_not_fill_its_place_says_so() -> None:
    assert not BoxCopy((2,), 4, Place(0, (4,)), Place(0, (8,))).fills
    assert BoxCopy((2,), 4, Place(0, (8,)), Place(16, (4,))).fills
