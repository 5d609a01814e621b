"""Functions that torch offers for what tensors are."""

from __future__ import annotations

from typing import Any

import pytest

import weft


def test_conj_is_the_tensor_itself() -> None:
    x = weft.ones(2)
    assert weft.conj(x) is x
    wrong: Any = [1.0]
    with pytest.raises(weft.WeftError, match="conj"):
        weft.conj(wrong)


@pytest.mark.parametrize("holds", [True, False])
def test_cond(holds: bool) -> None:
    for pred in (holds, weft.tensor(holds)):
        assert weft.cond(pred, lambda x: x + 1, lambda x: x - 1, (weft.tensor(5.0),)).item() == (
            6.0 if holds else 4.0
        )


def test_typename() -> None:
    assert weft.typename(weft.ones(2)) == "weft.FloatTensor"
    assert weft.typename(weft.ones(2, dtype=weft.int64)) == "weft.LongTensor"
    assert weft.typename(3) == "int" and weft.typename(weft.nn.Linear(1, 1)).endswith(".Linear")
