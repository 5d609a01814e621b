"""Limits of dtypes beside numpy's, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import weft


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_floats(name: str) -> None:
    ours, theirs = weft.finfo(getattr(weft, name)), np.finfo(name)
    assert (ours.dtype, ours.bits, ours.eps) == (name, theirs.bits, theirs.eps)
    assert (ours.max, ours.min, ours.tiny) == (theirs.max, theirs.min, theirs.tiny)
    assert ours.resolution == pytest.approx(float(theirs.resolution), rel=1e-3)


def test_narrow_floats() -> None:
    assert weft.finfo(weft.bfloat16).resolution == 0.01
    assert weft.finfo(weft.float8_e4m3fn).resolution == weft.finfo(weft.float8_e5m2).resolution == 1.0


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int32", "int64"])
def test_integers(name: str) -> None:
    ours, theirs = weft.iinfo(getattr(weft, name)), np.iinfo(name)
    assert (ours.dtype, ours.bits, ours.max, ours.min) == (name, theirs.bits, theirs.max, theirs.min)


def test_what_is_refused() -> None:
    with pytest.raises(weft.DTypeError, match="finfo describes floats"):
        weft.iinfo(weft.float32)
    with pytest.raises(weft.DTypeError, match="iinfo"):
        weft.finfo(weft.int32)
