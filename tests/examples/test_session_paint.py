"""examples/session_paint.py: strokes have the bits of the whole picture, and the page has a frame for each."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

example = pytest.importorskip("session_paint")

TINY = example.Config(size=32, width=2, strokes=4, brush=4)


def test_strokes_have_the_bits_of_the_whole() -> None:
    frames = example.paint(TINY)
    assert len(frames) == TINY.strokes - 1 and all(f.same for f in frames)
    assert not np.array_equal(frames[0].pixels, frames[1].pixels)
    text = example.page(frames)
    assert text.count("<img") == len(frames) and "OTHER BITS" not in text


def test_a_picture_is_its_pixels() -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    data = example.png(pixels)
    start = data.index(b"IDAT") + 4
    rows = np.frombuffer(zlib.decompress(data[start:]), np.uint8).reshape(2, 10)
    assert np.array_equal(rows[:, 1:].reshape(2, 3, 3), pixels) and not rows[:, 0].any()
