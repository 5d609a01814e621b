"""Masks: which elements of a tensor are masked out, and with which value; which are demanded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
from weft.ir.graph import toposort
from weft.scheduler.kernelize.masks import Masks, find_masks

LOWEST = -float("inf")
ROWS, COLUMNS = weft.arange(4)[:, None], weft.arange(6)[None]
CAUSAL, BELOW = COLUMNS <= ROWS, COLUMNS < ROWS


def f32(*shape: int) -> weft.Tensor:
    return weft.tensor(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32))


def masks(*outputs: weft.Tensor) -> Masks:
    nodes = [t.value.node for t in outputs]
    return find_masks(toposort(nodes), frozenset(map(id, nodes)))


def masked(y: weft.Tensor) -> str:
    """The value of what is masked out of y, and the condition of the rest."""
    found = masks(y).masked.get(id(y.value.node))
    return "" if found is None else f"{found.value} unless {' and '.join(map(str, found.outside))}"


def demanded(x: weft.Tensor, *outputs: weft.Tensor) -> str:
    """The condition without which no output uses an element of x."""
    return " and ".join(map(str, masks(*outputs).demanded.get(id(x.value.node), ())))


X = f32(4, 6)
SCORES = weft.where(CAUSAL, X, LOWEST)
WEIGHTS = SCORES.exp()


@pytest.fixture(autouse=True)
def pending() -> None:
    """They are computed by nobody: in a process with much to compute, what is held may be computed along."""
    global SCORES, WEIGHTS
    SCORES = weft.where(CAUSAL, X, LOWEST)
    WEIGHTS = SCORES.exp()


MASKED: dict[str, tuple[Callable[[], weft.Tensor], str]] = {
    "where": (lambda: SCORES, "-inf unless 0 <= $0 - $1"),
    "where, the other way round": (lambda: weft.where(ROWS < COLUMNS, LOWEST, X), "-inf unless -$0 + $1 < 1"),
    "where, twice": (
        lambda: weft.where(COLUMNS < 3, SCORES, LOWEST),
        "-inf unless 1 <= -$1 + 3 and 0 <= $0 - $1",
    ),
    "where, of two conditions": (
        lambda: weft.where(CAUSAL & (COLUMNS < 3), X, LOWEST),
        "-inf unless 0 <= $0 - $1 and 1 <= -$1 + 3",
    ),
    "where not": (lambda: weft.where(~CAUSAL, LOWEST, X), "-inf unless 0 <= $0 - $1"),
    "where, of tril as numbers": (
        lambda: X.masked_fill(weft.ones(4, 6).tril() == 0, LOWEST),
        "-inf unless 0 <= $0 - $1",
    ),
    "where, of triu as a bool": (
        lambda: X.masked_fill(weft.ones(4, 6).bool().triu(1), LOWEST),
        "-inf unless -$0 + $1 - 1 < 0",
    ),
    "where, of one or the other": (
        lambda: weft.where((COLUMNS > ROWS) | (X < 0), LOWEST, X),
        "-inf unless -$0 + $1 < 1",
    ),
    "where, of the opposite of both": (
        lambda: weft.where(~(CAUSAL & (X < 0)), LOWEST, X),
        "-inf unless 0 <= $0 - $1",
    ),
    "where, chosen by either": (lambda: weft.where(CAUSAL | (X < 0), X, LOWEST), ""),
    "where, of numbers that are never met": (lambda: X.masked_fill(weft.ones(4, 6).tril() == 2, LOWEST), ""),
    "where, of zeros by another mask": (
        lambda: weft.where(COLUMNS < 3, WEIGHTS, 0.0),
        "0.0 unless 0 <= $0 - $1",
    ),
    "where, of zeros alone": (lambda: weft.where(CAUSAL, X, 0.0) + 0 * SCORES.sum(), ""),
    "where, of a mask and data": (
        lambda: weft.where(CAUSAL & (X < 0), X, LOWEST),
        "-inf unless 0 <= $0 - $1",
    ),
    "where, of places that are moved by data": (
        lambda: weft.where(COLUMNS + X.int() <= ROWS, X, LOWEST),
        "",
    ),
    "where, of data": (lambda: weft.where(X < 0, X, LOWEST), ""),
    "permute": (lambda: SCORES.T, "-inf unless 0 <= -$0 + $1"),
    "reshape": (lambda: SCORES[:, None], "-inf unless 0 <= $0 - $2"),
    "expand": (lambda: SCORES[None].expand(2, 4, 6), "-inf unless 0 <= $1 - $2"),
    "shrink": (lambda: SCORES[1:], "-inf unless 0 <= $0 - $1 + 1"),
    "flip": (lambda: SCORES.flip(1), "-inf unless 0 <= $0 + $1 - 5"),
    "exp": (lambda: WEIGHTS, "0.0 unless 0 <= $0 - $1"),
    "exp, twice": (lambda: WEIGHTS.exp(), ""),
    "product": (lambda: X * WEIGHTS, "0.0 unless 0 <= $0 - $1"),
    "product of two": (
        lambda: WEIGHTS * weft.where(COLUMNS < 3, X, LOWEST).exp(),
        "0.0 unless 0 <= $0 - $1 and 1 <= -$1 + 3",
    ),
    "product with scores": (lambda: X * SCORES, ""),
    "quotient": (lambda: WEIGHTS / X, "0.0 unless 0 <= $0 - $1"),
    "quotient by its sum": (lambda: WEIGHTS / WEIGHTS.sum(-1, keepdim=True), "0.0 unless 0 <= $0 - $1"),
    "quotient of a row without elements": (
        lambda: (w := weft.where(BELOW, X, LOWEST).exp()) / w.sum(-1, keepdim=True),
        "",
    ),
    "quotient by weights": (lambda: X / WEIGHTS, ""),
    "negation": (lambda: -WEIGHTS, "0.0 unless 0 <= $0 - $1"),
    "negation of scores": (lambda: -SCORES, ""),
    "conversion": (lambda: WEIGHTS.half(), "0.0 unless 0 <= $0 - $1"),
    "conversion to integers": (lambda: WEIGHTS.int(), "0.0 unless 0 <= $0 - $1"),
    "conversion of scores": (lambda: SCORES.half(), "-inf unless 0 <= $0 - $1"),
    "conversion of scores to integers": (lambda: SCORES.int(), ""),
    "sum of weights": (lambda: WEIGHTS + SCORES.exp() * X, "0.0 unless 0 <= $0 - $1"),
    "sum of other weights": (lambda: WEIGHTS + weft.where(BELOW, X, LOWEST).exp(), ""),
    "sum with weights": (lambda: WEIGHTS + X, ""),
    "sum with scores": (lambda: X + SCORES, "-inf unless 0 <= $0 - $1"),
    "difference of weights": (lambda: WEIGHTS - SCORES.exp() * X, "0.0 unless 0 <= $0 - $1"),
    "difference from the maximum": (
        lambda: SCORES - SCORES.amax(-1, keepdim=True),
        "-inf unless 0 <= $0 - $1",
    ),
    "difference from another": (lambda: SCORES - X, ""),
    "difference of scores": (lambda: X - SCORES, ""),
    "tanh": (lambda: SCORES.tanh(), ""),
    "reduction": (lambda: SCORES.sum(0), ""),
}

DEMANDED: dict[str, tuple[Callable[[weft.Tensor], list[weft.Tensor]], str]] = {
    "by a product with weights": (lambda x: [x * WEIGHTS], "0 <= $0 - $1"),
    "by a product with scores": (lambda x: [x * SCORES], ""),
    "by a sum with weights": (lambda x: [x + WEIGHTS], ""),
    "by a result": (lambda x: [x * WEIGHTS, x], ""),
    "by two products": (lambda x: [x * WEIGHTS, x * WEIGHTS.half().float()], "0 <= $0 - $1"),
    "by products of two masks": (lambda x: [x * WEIGHTS, x * weft.where(COLUMNS < 3, X, LOWEST).exp()], ""),
    "by a reader of the whole": (lambda x: [x * WEIGHTS, x.sum()], ""),
    "by a choice": (lambda x: [weft.where(CAUSAL, x, 0.0), WEIGHTS], "0 <= $0 - $1"),
    "by the other side of a choice": (lambda x: [weft.where(CAUSAL, 0.0, x), WEIGHTS], ""),
    "through a function": (lambda x: [x.tanh() * WEIGHTS], "0 <= $0 - $1"),
    "through a permutation": (lambda x: [x.T * WEIGHTS.T], "0 <= $0 - $1"),
    "through a reshape": (lambda x: [x[:, None] * WEIGHTS[:, None]], "0 <= $0 - $1"),
    "through a shift": (lambda x: [x.flip(0) * WEIGHTS], ""),
}


@pytest.mark.parametrize("name", MASKED)
def test_what_an_op_makes_of_masked_elements(name: str) -> None:
    build, expected = MASKED[name]
    assert masked(build()) == expected


@pytest.mark.parametrize("name", DEMANDED)
def test_which_elements_are_demanded(name: str) -> None:
    build, expected = DEMANDED[name]
    x = X.cos()
    assert demanded(x, *build(x)) == expected


def test_a_graph_without_masks_is_not_searched() -> None:
    found = masks(X * 2)
    assert not found.masked and not found.demanded


def test_a_condition_of_which_data_decides_a_part_masks_nothing_where_it_holds() -> None:
    """where((j > i) & data, -inf, x): above the diagonal some elements are kept."""
    data = weft.tensor(np.random.default_rng(0).random((4, 6)) < 0.5)
    above = COLUMNS > ROWS
    assert masked(weft.where(above, LOWEST, X)) == "-inf unless -$0 + $1 < 1"
    assert masked(weft.where(above & data, LOWEST, X)) == ""
    assert masked(weft.where((COLUMNS <= ROWS) & data, X, LOWEST)) == "-inf unless 0 <= $0 - $1"


def test_gradients_through_a_mask_of_which_data_decides_a_part() -> None:
    size, rng = 96, np.random.default_rng(1)
    rows, columns = np.arange(size)[:, None], np.arange(size)[None]
    data = rng.random((size, size)) < 0.5
    q, k, v, g = (rng.standard_normal((size, 32)) for _ in range(4))
    scores = np.where((columns > rows) & data, -np.inf, q @ k.T)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    by_weights = g @ v.T
    by_scores = weights * (by_weights - (weights * by_weights).sum(-1, keepdims=True))
    tensors = [weft.tensor(x, requires_grad=True) for x in (q, k, v)]
    i, j = weft.arange(size)[:, None], weft.arange(size)[None]
    made = weft.where((j > i) & weft.tensor(data), LOWEST, tensors[0] @ tensors[1].T)
    (made.softmax(-1) @ tensors[2]).backward(weft.tensor(g))
    for t, wanted in zip(tensors, (by_scores @ k, by_scores.T @ q, weights.T @ g), strict=True):
        assert t.grad is not None
        np.testing.assert_allclose(t.grad.numpy(), wanted, rtol=1e-9, atol=1e-9)
