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


def test_a_place_beyond_the_axis_is_refused_by_the_line_that_says_it(device: str) -> None:
    x, t = weft.tensor(A), weft.Variable("t", 0, 20)
    y = x[t].exp()
    np.testing.assert_allclose(weft.bind(y, t=15).numpy(), np.exp(A[15]), rtol=1e-6)
    with pytest.raises(
        weft.IndexError,
        match=r"indexing: index t = 16 is out of range for dimension 0 of size 16\n  at .*:\d+",
    ) as refused:
        weft.bind(y, t=16)
    line = int(str(refused.value).rpartition(":")[2])
    with open(__file__) as text:
        assert "y = x[t].exp()" in text.read().splitlines()[line - 1]
    with pytest.raises(
        weft.IndexError, match="narrow: 3 elements from t = 14 on do not fit dimension 0 of size 16"
    ):
        weft.bind(x.narrow(0, t, 3), t=14)
    with pytest.raises(weft.IndexError, match="index 3 is out of range for dimension 0 of size n = 3"):
        weft.bind(x[:N][3], n=3)


def test_what_the_bounds_of_a_variable_rule_out_is_refused_at_once() -> None:
    x = weft.tensor(A)
    with pytest.raises(weft.IndexError, match=r"index s \+ 16 is out of range for dimension 0 of size 16"):
        x[S + 16]
    with pytest.raises(weft.IndexError, match="may be negative, -2 to 6"):
        x[S - 2]
    with pytest.raises(weft.IndexError, match=r"the size -n \+ 10 in dimension 0 may be negative"):
        x[N:10]
    with pytest.raises(weft.GradError, match="declare it with bounds that do"):
        weft.tensor(A, requires_grad=True)[weft.Variable("t", 0, 20)].sum().backward()


def test_a_part_that_a_variable_says_is_a_view(device: str) -> None:
    x = weft.tensor(A) * 1
    x[S].mul_(0.0)
    x[S + 1] += 5.0
    x[N : N + 2, S].copy_(weft.ones(2))
    want = A.copy()
    want[3] *= 0.0
    want[4] += 5.0
    want[7:9, 3] = 1.0
    np.testing.assert_array_equal(weft.bind(x, s=3, n=7).numpy(), want)


@pytest.mark.parametrize("by", [0, 1, -1])
def test_elements_roll_along_axes_of_runtime_sizes_and_by_variables(by: int, device: str) -> None:
    y = weft.tensor(A)[:N].roll(by, 0)
    z = weft.tensor(A).roll(S, 1)
    for n, s in ((1, 0), (7, 3), (16, 8)):
        np.testing.assert_array_equal(weft.bind(y, n=n).numpy(), np.roll(A[:n], by, 0))
        np.testing.assert_array_equal(weft.bind(z, s=s).numpy(), np.roll(A, s, 1))
    with pytest.raises(
        weft.ShapeError, match="an axis of n elements is rolled by at most 1, its least size, got 3"
    ):
        weft.tensor(A)[:N].roll(3, 0)
