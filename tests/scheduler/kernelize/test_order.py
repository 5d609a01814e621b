"""The order of kernels: what is computed early must be needed early."""

from __future__ import annotations

from itertools import pairwise

import weft
from weft import Tensor


def layers(count: int) -> tuple[Tensor, list[Tensor]]:
    """A chain of products with weights that are computed, and a result beside each step of it."""
    x, beside = weft.randn(8, 64).realize(), list[Tensor]()
    for _ in range(count):
        w = weft.randn(64, 64).realize()
        x = (x @ (w / w.abs().sum(0, keepdim=True))).tanh()
        beside.append(x * 3 + 1)
    return x, beside


def test_a_kernel_that_also_makes_a_result_runs_when_the_others_need_it() -> None:
    x, beside = layers(5)
    names = [k.name for k in weft.explain(x, *beside)]
    products = [k for k, name in enumerate(names) if "product" in name]
    assert len(products) == 5, "each product makes the step and the result beside it"
    between = [b - a for a, b in pairwise(products)]
    assert between == [2] * 4, f"weights of later steps wait until they are needed: {names}"
