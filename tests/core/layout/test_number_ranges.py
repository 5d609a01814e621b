"""Python numbers that do not fit in an integer dtype are refused where a tensor is made or filled, as in torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

import weft


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: weft.tensor([300], dtype=weft.uint8), "300 does not fit in uint8, which holds 0 to 255"),
        (lambda: weft.tensor(-129, dtype=weft.int8), "-129 does not fit in int8"),
        (lambda: weft.tensor([-1.5], dtype=weft.uint8), "-1.5 does not fit"),
        (lambda: weft.tensor([math.nan], dtype=weft.int32), "nan does not fit"),
        (lambda: weft.tensor([2**63]), "does not fit in int64; give dtype=weft.uint64"),
        (lambda: weft.tensor([-1, 2**63], dtype=weft.uint64), "does not fit in uint64"),
        (lambda: weft.full((2,), 300, dtype=weft.uint8), "full: 300 does not fit"),
        (lambda: weft.full_like(weft.zeros(2, dtype=weft.int8), 128), "full_like: 128"),
        (lambda: weft.zeros(2, dtype=weft.int8).fill_(200), "fill_: 200"),
        (
            lambda: weft.zeros(2, dtype=weft.int8).masked_fill(weft.tensor([True, False]), 200),
            "masked_fill: 200",
        ),
    ],
)
def test_numbers_out_of_range(make: Callable[[], weft.Tensor], message: str) -> None:
    with pytest.raises(weft.WeftError, match=message):
        make()


def test_numbers_in_range() -> None:
    top = 2**64 - 1
    assert weft.tensor([2, top, 3], dtype=weft.uint64).tolist() == [2, top, 3]
    assert weft.tensor([-1], dtype=weft.uint8).tolist() == [255]  # as in torch
    assert weft.tensor([-1, 2**63], dtype=weft.float32).tolist() == [-1.0, 2.0**63]
    assert (weft.zeros(1, dtype=weft.uint8) + 300).tolist() == [44]


def test_floats_out_of_range_wrap_in_narrow_integers() -> None:
    """As in torch on x86 and in NumPy; int32 and int64 saturate on every device."""
    x = weft.tensor([-1.5, -0.5, 300.0, 200.0, -129.0, 70000.0, math.nan])
    wanted = {
        weft.uint8: [255, 0, 44, 200, 127, 112, 0],
        weft.int8: [-1, 0, 44, -56, 127, 112, 0],
        weft.uint16: [65535, 0, 300, 200, 65407, 4464, 0],
        weft.uint32: [2**32 - 1, 0, 300, 200, 2**32 - 129, 70000, 0],
    }
    for dtype, want in wanted.items():
        assert x.to(dtype).tolist() == want
    assert weft.tensor([3e9, -1e20]).int().tolist() == [2**31 - 1, -(2**31)]
