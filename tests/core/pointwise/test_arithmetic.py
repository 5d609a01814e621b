"""Whole numbers' arithmetic beside Python's own."""

from __future__ import annotations

import math

import numpy as np
import pytest

import weft


def pairs(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of a dtype's numbers: Fibonacci's neighbours, which take the most steps, zeros, limits and negatives."""
    limits = np.iinfo(name)
    fibonacci = [1, 1]
    while fibonacci[-1] + fibonacci[-2] <= limits.max:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    signs = (1,) if limits.min == 0 else (1, -1)
    some = [0, 1, 12, 18, limits.max, *fibonacci[-2:]]
    both = [(s * a, t * b) for a in some for b in some for s in signs for t in signs]
    return np.array([a for a, _ in both], name), np.array([b for _, b in both], name)


@pytest.mark.parametrize("name", ["int8", "uint8", "int32", "int64"])
def test_gcd(name: str) -> None:
    a, b = pairs(name)
    want = [math.gcd(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    assert weft.gcd(weft.from_numpy(a), weft.from_numpy(b)).tolist() == want


def test_lcm() -> None:
    a, b = np.meshgrid(np.arange(-20, 21), np.arange(-20, 21))
    want = [math.lcm(int(x), int(y)) for x, y in zip(a.flat, b.flat, strict=True)]
    assert weft.lcm(weft.tensor(a.ravel()), weft.tensor(b.ravel())).tolist() == want
    few = np.arange(16, dtype=np.uint8)
    want = [math.lcm(int(x), 12) for x in few]
    assert weft.lcm(weft.from_numpy(few), weft.full((16,), 12, dtype=weft.uint8)).tolist() == want
