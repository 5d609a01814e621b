"""x.view(dtype): the same bytes as elements of another width."""

from __future__ import annotations

import numpy as np
import pytest

import weft

DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint8"]


def test_views_as_every_dtype_beside_numpy() -> None:
    data = np.random.default_rng(0).standard_normal((3, 8)) * 100
    arrays = [data.astype(d) for d in DTYPES if not d.startswith("u")]
    found = [(a, d, weft.tensor(a).view(getattr(weft, d))) for a in arrays for d in DTYPES]
    weft.realize(*(t for _, _, t in found))
    for a, d, t in found:
        np.testing.assert_array_equal(t.numpy(), a.view(d), err_msg=f"{a.dtype} as {d}")


def test_views_of_nothing_and_what_does_not_fit() -> None:
    assert weft.zeros(2, 0).view(weft.uint8).shape == (2, 0)
    for x in (weft.tensor(1.0), weft.zeros(3, 3)):
        with pytest.raises(weft.ShapeError, match="its bytes must be a multiple of 8"):
            x.view(weft.float64)
