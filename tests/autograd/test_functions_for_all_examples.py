"""Functions of vmap and scan, which are run once for all: tensors from outside are not changed in them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn


def over_examples(f: Callable[[Any], Any], x: Any) -> Any:
    return weft.vmap(f)(x)


def over_steps(f: Callable[[Any], Any], x: Any) -> Any:
    return weft.scan(lambda c, row: (c, f(row)), weft.zeros(1), x)[1]


RUNS = pytest.mark.parametrize("run", [over_examples, over_steps])


def _set_item(t: Any, row: Any) -> None:
    t[0] = row[0]


def _through_a_view(t: Any, row: Any) -> None:
    t[:2].mul_(row[0])


def _gradient(t: Any, row: Any) -> None:
    (t.requires_grad_() * row).sum().backward()


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "add_": lambda t, row: t.add_(row),
    "copy_": lambda t, row: t.copy_(row),
    "an element": _set_item,
    "a view": _through_a_view,
    "its gradient": _gradient,
    "within a function within": lambda t, row: weft.vmap(lambda n: t.add_(n) * 1.0)(row),
}


@RUNS
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("compiled", [False, True])
def test_tensors_from_outside_stay_what_they_are(run: Any, name: str, compiled: bool) -> None:
    outside = weft.tensor([1.0, 2.0, 3.0])

    def f(row: Any) -> Any:
        CHANGES[name](outside, row)
        return row * 1.0

    do = lambda x: run(f, x)  # noqa: E731
    do = weft.compile(do) if compiled else do
    with pytest.raises(weft.ArgumentError, match="changes a tensor from outside in place"):
        do(weft.ones(4, 3))
    assert outside.tolist() == [1.0, 2.0, 3.0]
    assert outside.grad is None
    outside.detach().add_(1)
    assert outside.tolist() == [2.0, 3.0, 4.0]


def test_statistics_of_a_norm_are_no_examples() -> None:
    norm, x = nn.BatchNorm1d(3), weft.rand(4, 5, 3)
    with pytest.raises(weft.ArgumentError, match="have norms with running statistics in eval"):
        weft.vmap(norm)(x)
    assert norm.running_mean.tolist() == [0.0] * 3
    assert weft.vmap(norm.eval())(x).shape == (4, 5, 3)
    norm(x.reshape(20, 3))


def test_what_is_the_same_for_all_examples_may_change_once() -> None:
    """As in torch: the function is run once. Not so for steps, of which there are several."""
    count = weft.zeros(3)
    weft.vmap(lambda r: (count.add_(1), r * 2.0)[1])(weft.ones(4, 3))
    assert count.tolist() == [1.0] * 3
    with pytest.raises(weft.ArgumentError, match="scan: the function changes a tensor from outside"):
        over_steps(lambda r: (count.add_(1), r * 2.0)[1], weft.ones(4, 3))
    assert count.tolist() == [1.0] * 3


MADE: dict[str, Callable[[Any], Any]] = {
    "the example": lambda row: row,
    "zeros": lambda row: weft.zeros(3),
    "tensor": lambda row: weft.tensor([1.0, 2.0, 3.0]),
    "Tensor": lambda row: weft.Tensor([1.0, 2.0, 3.0]),
    "clone": lambda row: row.clone(),
    "detach": lambda row: row.detach(),
    "reshape": lambda row: row.reshape(3),
    "from_numpy": lambda row: weft.from_numpy(np.ones(3, np.float32)),
    "new_zeros": lambda row: row.new_zeros(3),
    "zeros_like": weft.zeros_like,
    "a parameter": lambda row: nn.Parameter(weft.zeros(3)),
    "a copy": lambda row: copy.deepcopy(weft.zeros(3)),
    "to": lambda row: row.to(weft.float32),
    "a row": lambda row: weft.zeros(2, 3)[0],
    "a part": lambda row: weft.zeros(6).split(3)[1],
    "one of two results": lambda row: weft.zeros(2, 3).max(0)[0],
    "made on the host": lambda row: weft.linalg.svd(weft.eye(3))[1],
}


@RUNS
@pytest.mark.parametrize("name", MADE)
def test_tensors_from_inside_may_change(run: Any, name: str) -> None:
    def f(row: Any) -> Any:
        t = MADE[name](row)
        with weft.no_grad():
            start = t.detach().clone()
            t.add_(row)
            t[0] = 7.0
            t.mul_(2)
        return t - start

    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    found = run(f, weft.from_numpy(rows)).detach().numpy()
    for row, got in zip(rows, found, strict=True):
        start = MADE[name](weft.from_numpy(row)).detach().numpy()
        want = (start + row) * 2
        want[0] = 14.0
        np.testing.assert_allclose(got, want - start)


def test_tensors_are_changed_again_after_a_function_that_failed() -> None:
    outside = weft.zeros(3)
    for failing in (lambda r: outside.add_(r), lambda r: r @ weft.ones(7)):
        with pytest.raises(weft.WeftError):
            weft.vmap(failing)(weft.ones(4, 3))
        outside.add_(1)
    assert outside.tolist() == [2.0] * 3
