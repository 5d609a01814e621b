"""Types of arguments that are known at one look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F


def test_a_list_that_fitted_says_nothing_of_the_next() -> None:
    x = weft.ones(1, 1, 4, 4)
    for _ in range(2):  # the second time the types are known
        assert F.avg_pool2d(x, [2, 2]).shape == (1, 1, 2, 2)
        with pytest.raises(TypeError, match="avg_pool2d: kernel_size must be"):
            F.avg_pool2d(x, ["a", "b"])  # type: ignore[list-item]


N = weft.Variable("n", 1, 3)
X, IMAGE = weft.arange(48.0).reshape(6, 8).realize(), weft.ones(1, 2, 8, 8).realize()
KERNEL = weft.ones(2, 2, 3, 3).realize()

UNKNOWN: dict[str, Callable[[Any], object]] = {
    "tensor_split": lambda n: weft.tensor_split(X, n),
    "tensor_split at": lambda n: weft.tensor_split(X, [n, 4]),
    "hsplit": lambda n: weft.hsplit(X, n),
    "chunk": lambda n: weft.chunk(X, n),
    "diagonal": lambda n: weft.diagonal(X, n),
    "diag": lambda n: weft.diag(X[0], n),
    "tril": lambda n: weft.tril(X, n),
    "as_strided": lambda n: weft.as_strided(X, (n, 2), (8, 1)),
    "as_strided from": lambda n: weft.as_strided(X, (2, 2), (8, 1), n),
    "pad": lambda n: F.pad(X, (0, n)),
    "unfold": lambda n: X.unfold(0, n, 1),
    "one_hot": lambda n: F.one_hot(weft.tensor([0, 1]), n),
    "movedim": lambda n: X.movedim(0, n),
    "roll along": lambda n: X.roll(1, n),
    "rot90": lambda n: X.rot90(n),
    "conv2d": lambda n: F.conv2d(IMAGE, KERNEL, stride=n),
    "conv2d of groups": lambda n: F.conv2d(IMAGE, KERNEL, groups=n),
    "max_pool2d": lambda n: F.max_pool2d(IMAGE, n),
    "interpolate": lambda n: F.interpolate(IMAGE, size=n),
    "group_norm": lambda n: F.group_norm(IMAGE, n),
    "masked_fill": lambda n: X.masked_fill(X > 0, n),
    "tensordot": lambda n: weft.tensordot(X, X.T, n),
    "bincount": lambda n: weft.bincount(weft.tensor([0, 1]), minlength=n),
    "embedding": lambda n: F.embedding(weft.tensor([0, 1]), X, padding_idx=n),
    "std": lambda n: X.std(0, correction=n),
    "tril_indices": lambda n: weft.tril_indices(n, 2),
    "quantile": lambda n: X.quantile(n),
    "lerp": lambda n: weft.lerp(X, X, n),
}


@pytest.mark.parametrize("case", UNKNOWN)
@pytest.mark.parametrize("value", [N, N + 1], ids=str)
def test_what_has_to_be_known_is_no_variable(case: str, value: Any) -> None:
    """`rot90` by a variable was no turn at all, and others failed in comparisons."""
    with pytest.raises(weft.WeftError, match=rf"{case.split()[0]}.* known when .*give a number") as told:
        UNKNOWN[case](value)
    assert isinstance(told.value, TypeError)
    assert str(value) in str(told.value)


KNOWN_LATER: dict[str, Callable[[Any], weft.Tensor]] = {
    "select": lambda n: X.select(0, n),
    "narrow": lambda n: X.narrow(0, 1, n),
    "roll": lambda n: X.roll(n, 0),
    "eye": weft.eye,
    "vander": lambda n: weft.vander(X[0], n),
    "arange": lambda n: weft.arange(n),
    "zeros": lambda n: weft.zeros(n, 2),
    "expand": lambda n: X[:1].expand(n, 8),
    "repeat": lambda n: X.repeat(n, 1),
}


@pytest.mark.parametrize("case", KNOWN_LATER)
def test_what_may_be_a_variable_is_what_it_is_of_a_number(case: str) -> None:
    made = KNOWN_LATER[case]
    symbolic = made(N)
    for n in (1, 2, 3):
        got = weft.bind(symbolic, n=n)
        assert isinstance(got, weft.Tensor)
        np.testing.assert_array_equal(got.numpy(), made(n).numpy())
