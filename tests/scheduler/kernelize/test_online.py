"""Two products joined by a softmax: forms that one kernel holds, and forms that it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import weft
from weft.scheduler.kernelize import kernelize
from weft.testing.kernelized import run
from weft.testing.reference import evaluate
from weft.testing.tolerance import allowed, difference

Graph = Callable[[], Sequence[weft.Tensor]]


def f32(*shape: int) -> weft.Tensor:
    return weft.tensor(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32))


def scores() -> weft.Tensor:
    return f32(8, 4) @ f32(4, 6)


def shifted(s: weft.Tensor, by: weft.Tensor) -> list[weft.Tensor]:
    """A product with weights exp(s - by)."""
    return [(s - by).exp() @ f32(6, 5)]


TOGETHER: dict[str, Graph] = {
    "softmax": lambda: [scores().softmax(-1) @ f32(6, 5)],
    "softmax on the right": lambda: [f32(5, 6) @ scores().softmax(-1).T],
    "weights that are dropped": lambda: [(scores().softmax(-1) * f32(8, 6)) @ f32(6, 5)],
    "weights that are dropped, on the right": lambda: [(f32(8, 6) * scores().softmax(-1)) @ f32(6, 5)],
    "weights that are masked": lambda: [weft.where(f32(8, 6) > 0, scores().softmax(-1), 0.0) @ f32(6, 5)],
    "scores that are scaled and masked": lambda: [
        weft.where(f32(8, 6) > -9, scores() * 0.5, -np.inf).softmax(-1) @ f32(6, 5)
    ],
}
APART: dict[str, tuple[int, Graph]] = {
    "scores used elsewhere": (3, lambda: [(s := scores()).softmax(-1) @ f32(6, 5), s.exp()]),
    "weights used elsewhere": (3, lambda: [(p := scores().softmax(-1)) @ f32(6, 5), p * 2]),
    "weights that are a result": (3, lambda: [(p := scores().softmax(-1)) @ f32(6, 5), p]),
    "weights that are not zero where masked": (
        3, lambda: [weft.where(f32(8, 6) > 0, scores().softmax(-1), 1.0) @ f32(6, 5)],
    ),
    "maximum of something else": (3, lambda: shifted(scores(), f32(8, 7).amax(-1, keepdim=True))),
    "maximum of a function": (3, lambda: shifted(s := scores(), (s * 2).amax(-1, keepdim=True))),
    "maxima of columns": (3, lambda: shifted(s := scores(), s.amax(0, keepdim=True))),
    "one maximum": (3, lambda: shifted(s := scores(), s.amax((0, 1), keepdim=True))),
    "minimum": (3, lambda: shifted(s := scores(), s.amin(-1, keepdim=True))),
    "no maximum": (2, lambda: [scores().exp() @ f32(6, 5)]),
    "no difference": (2, lambda: [(scores() + 1).exp() @ f32(6, 5)]),
    "scores that are no product": (2, lambda: [f32(8, 6).softmax(-1) @ f32(6, 5)]),
    "scores of two products": (4, lambda: [(scores() + f32(8, 3) @ f32(3, 6)).softmax(-1) @ f32(6, 5)]),
}  # fmt: skip


def kernels(graph: Graph) -> int:
    """The kernels that a graph becomes, after checking what they compute."""
    nodes = [t.value.node for t in graph()]
    specs = kernelize(nodes)
    for value, want, bound in zip(run(specs, nodes), evaluate(nodes), allowed(nodes), strict=True):
        assert difference(value, want, bound) is None
    return len(specs)


@pytest.mark.parametrize("name", TOGETHER)
def test_one_kernel_holds_both_products(name: str) -> None:
    assert kernels(TOGETHER[name]) == 1


@pytest.mark.parametrize("name", APART)
def test_the_products_stay_apart(name: str) -> None:
    count, graph = APART[name]
    assert kernels(graph) == count
