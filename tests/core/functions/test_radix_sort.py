"""Sorting: the orders of rows of all kinds of lengths, and how many kernels that takes."""

from __future__ import annotations

import numpy as np
import pytest

import weft

RNG = np.random.default_rng(0)

CASES = {
    "one block": (RNG.integers(0, 9, (3, 100)).astype(np.float32), None),
    "equal keys": (RNG.integers(0, 50, (2, 930)).astype(np.float32), None),
    "doubles": (RNG.standard_normal(1060), None),
    "groups of blocks": (RNG.standard_normal(9000).astype(np.float32), None),
    "bytes": (RNG.integers(0, 256, 1500).astype(np.uint8), None),
    "16 bits": (RNG.integers(-(2**15), 2**15, 1500).astype(np.int16), None),
    "64 bits": (RNG.integers(-(2**62), 2**62, 1300), None),
    "unsigned": (RNG.integers(0, 2**32, 1300).astype(np.uint32), None),
    "few of many": (RNG.integers(0, 500, 2000).astype(np.float32), 5),
    "equal keys among few": (RNG.integers(0, 7, (2, 3000)).astype(np.float32), 20),
    "few of many of 64 bits": (RNG.integers(-5, 5, 4000) << 33, 12),
    "the largest key": (np.full((2, 700), 2**31 - 1, np.int32), 9),
    "one of many": (RNG.integers(0, 100, 5000).astype(np.uint32), 1),
    "not so few": (RNG.integers(0, 5000, 3100).astype(np.int32), 70),
}


@pytest.mark.parametrize("name", CASES)
def test_the_order_is_stable(name: str) -> None:
    x, keep = CASES[name]
    order = np.argsort(x, -1, kind="stable")[..., :keep]
    t = weft.tensor(x)
    values, indices = t.sort(-1) if keep is None else t.topk(keep, largest=False)
    np.testing.assert_array_equal(indices.numpy(), order)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, order, -1))


def test_examples_are_sorted_together() -> None:
    x = RNG.standard_normal((3, 140)).astype(np.float32)

    def ordered(row: weft.Tensor) -> weft.Tensor:
        return row.sort().values

    got = weft.vmap(ordered)(weft.tensor(x))
    np.testing.assert_array_equal(got.numpy(), np.sort(x, -1))


def test_passes_share_kernels() -> None:
    """Seven digits, each with the same kernels."""
    explained = weft.explain(weft.zeros(9000).contiguous().argsort())
    algorithms = {k.show("algorithm") for k in explained.kernels}
    assert len(explained.kernels) > 40 and len(algorithms) < 20


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (2, 3)])
def test_gradients_reach_tensors_without_elements(shape: tuple[int, int]) -> None:
    x = weft.randn(*shape, requires_grad=True)
    (x.sort(0).values.sum() + x.sort(1).values.sum() + x.topk(0, dim=1).values.sum()).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[2.0] * shape[1]] * shape[0]
