"""Runtime variables: one program serves every value of a size or an offset, on every device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
from weft import Tensor
from weft.scheduler import realize

N, S = weft.Variable("n", 1, 16), weft.Variable("s", 0, 8)
A = (np.arange(160, dtype=np.float32).reshape(16, 10) - 70) / 50


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


CASES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[int, int], Any]]] = {
    "elementwise": (lambda x: x[:N] * 2 + 1, lambda n, s: A[:n] * 2 + 1),
    "offset": (lambda x: weft.narrow(x, 0, S, 8) * 2, lambda n, s: A[s : s + 8] * 2),
    "slice at an offset": (lambda x: x[S : S + 8].exp(), lambda n, s: np.exp(A[s : s + 8])),
    "sum over": (lambda x: x[:N].sum(0), lambda n, s: A[:n].sum(0)),
    "sum beside": (lambda x: x[:N].sum(1), lambda n, s: A[:n].sum(1)),
    "mean over": (lambda x: x[:N].mean(0), lambda n, s: A[:n].mean(0)),
    "product": (lambda x: x[:N] @ x.T[:, :N], lambda n, s: A[:n] @ A[:n].T),
    "sum of products": (lambda x: x.T[:, :N] @ x[:N], lambda n, s: A[:n].T @ A[:n]),
    "rows of a product": (lambda x: (x[:N] @ x.T).relu(), lambda n, s: np.maximum(A[:n] @ A.T, 0)),
    "columns of a product": (lambda x: x @ x[:N].T + 1, lambda n, s: A @ A[:n].T + 1),
    "attention": (
        lambda x: (x[:N] @ x[:N].T).softmax(-1) @ x[:N],
        lambda n, s: _softmax(A[:n] @ A[:n].T) @ A[:n],
    ),
}


@pytest.fixture(params=["cpu:0", "dummy:0"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with weft.device(request.param):
        yield request.param


@pytest.mark.parametrize("case", CASES)
def test_one_plan_serves_all_values(case: str, device: str) -> None:
    f, want = CASES[case]
    y = f(weft.tensor(A))
    plans: set[int] = set()
    for n, s in ((1, 0), (5, 3), (16, 8), (7, 1), (1, 8)):
        got = weft.bind(y, n=n, s=s)
        assert isinstance(got, Tensor)
        np.testing.assert_allclose(got.numpy(), want(n, s), rtol=1e-5, atol=1e-5)
        assert got.shape == want(n, s).shape
        plans.add(len(realize._plans))  # pyright: ignore[reportPrivateUsage]
    assert len(plans) == 1


def test_values_out_of_bounds_and_missing() -> None:
    y = weft.tensor(A)[:N] * 2
    with pytest.raises(weft.ArgumentError, match="n must be between 1 and 16, not 17"):
        weft.bind(y, n=17)
    with pytest.raises(weft.ArgumentError, match="n has no value"):
        weft.bind(y)
    with pytest.raises(weft.ArgumentError, match="n has no value"):
        y.numpy()
    with pytest.raises(weft.ArgumentError, match="0 <= lo <= hi"):
        weft.Variable("n", 3, 2)


def test_several_tensors_at_once_and_leaves_as_they_are() -> None:
    x = weft.tensor(A)
    total, same = weft.bind(x[:N].sum(), x, n=3)
    assert total.item() == pytest.approx(A[:3].sum())
    assert np.array_equal(same.numpy(), A)


def test_a_variable_may_be_zero_but_not_less() -> None:
    assert (weft.Variable("n", 0, 0).lo, weft.Variable("n", 0, 4).hi) == (0, 4)
    with pytest.raises(weft.ArgumentError, match="0 <= lo <= hi"):
        weft.Variable("n", -1, 2)
