"""Printing: profiles, and what is noted beside the values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import weft


@pytest.fixture(autouse=True)
def back_to_default() -> Iterator[None]:
    yield
    weft.set_printoptions(profile="default")


def test_profiles() -> None:
    many = weft.arange(2000)
    assert str(weft.tensor([0.123456])) == "tensor([0.1235])"
    assert str(many) == "tensor([   0,    1,    2, ..., 1997, 1998, 1999])"
    weft.set_printoptions(profile="short")
    assert str(weft.tensor([0.123456])) == "tensor([0.12])"
    assert str(many) == "tensor([   0,    1, ..., 1998, 1999])"
    weft.set_printoptions(profile="full")
    assert "..." not in str(many) and "1234" in str(many)
    weft.set_printoptions(precision=1)  # what is not given stays
    assert str(weft.tensor([0.123456])) == "tensor([0.1])" and "..." not in str(many)
    weft.set_printoptions(profile="default", precision=2)
    assert str(weft.tensor([0.123456])) == "tensor([0.12])" and "..." in str(many)


def test_tensors_without_values() -> None:
    plain = weft.empty(2, 3, device="meta")
    assert str(plain) == "tensor(..., device='meta', size=(2, 3))"
    learnt = weft.empty(2, 3, device="meta", dtype=weft.float64, requires_grad=True)
    assert str(learnt) == "tensor(..., device='meta', size=(2, 3), dtype=weft.float64, requires_grad=True)"
