"""The order of kernels: what is computed early must be needed early."""

from __future__ import annotations

from itertools import pairwise

import weft
from weft import Tensor
from weft.backends.registry import open_device
from weft.scheduler.assembly import Job
from weft.scheduler.build import build
from weft.scheduler.signature import signature, snapshot


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


def test_a_weight_is_updated_after_its_last_reader_where_leaves_have_no_values_yet() -> None:
    weights = [weft.randn(64, 64, requires_grad=True).realize() for _ in range(5)]
    x = weft.randn(8, 64).realize()
    for w in weights:
        x = (x @ w).tanh()
    x.sum().backward()
    sig = signature([(w - w.grad * 0.1).value.node for w in weights])
    leaves = {n.storage: k for k, n in enumerate(sig.leaves)}
    state = {k: leaves[w.value.node.storage] for k, w in enumerate(weights)}
    sig.storages = (None,) * len(sig.leaves)  # as in a trace
    own = snapshot(sig)
    plan, _ = build(Job(own.outputs, own.leaves, (), state), open_device("cpu:0"))
    assert {k: o.replaces for k, o in enumerate(plan.outputs)} == state
