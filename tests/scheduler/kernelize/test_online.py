"""Two products joined by a softmax: forms that one kernel holds, and forms that it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import weft
from weft.scheduler.kernelize.kernels import kernelize
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


def with_rows(
    rows: Callable[[weft.Tensor, weft.Tensor], Sequence[weft.Tensor]], first: bool = False
) -> Graph:
    """Attention, and functions of its weights' row maximum and sum, after it or before."""

    def graph() -> list[weft.Tensor]:
        s = scores()
        top = s.amax(-1, keepdim=True)
        e = (s - top).exp()
        total = e.sum(-1, keepdim=True)
        out, more = (e / total) @ f32(6, 5), list(rows(top, total))
        return [*more, out] if first else [out, *more]

    return graph


def state(
    rows: Callable[[weft.Tensor, weft.Tensor, weft.Tensor], Sequence[weft.Tensor]],
    limit: float = float(np.finfo(np.float32).min),
) -> Graph:
    """What is made of the rows' maximum, the sum of weights, and the product that is not divided by it."""

    def graph() -> Sequence[weft.Tensor]:
        s = scores()
        top = s.amax(-1, keepdim=True)
        e = (s - weft.maximum(top, weft.full((8, 1), limit))).exp()
        return rows(top, e.sum(-1, keepdim=True), e @ f32(6, 5))

    return graph


TOGETHER: dict[str, Graph] = {
    "softmax": lambda: [scores().softmax(-1) @ f32(6, 5)],
    "softmax on the right": lambda: [f32(5, 6) @ scores().softmax(-1).T],
    "weights that are dropped": lambda: [(scores().softmax(-1) * f32(8, 6)) @ f32(6, 5)],
    "weights that are dropped, on the right": lambda: [(f32(8, 6) * scores().softmax(-1)) @ f32(6, 5)],
    "weights that are masked": lambda: [weft.where(f32(8, 6) > 0, scores().softmax(-1), 0.0) @ f32(6, 5)],
    "scores that are scaled and masked": lambda: [
        weft.where(f32(8, 6) > -9, scores() * 0.5, -np.inf).softmax(-1) @ f32(6, 5)
    ],
    "rows' logarithms": with_rows(lambda top, total: [top + total.log()]),
    "rows' logarithms, asked for first": with_rows(lambda top, total: [top + total.log()], True),
    "rows' logarithms, without their axis": with_rows(lambda top, total: [(top + total.log()).squeeze(-1)]),
    "rows' maxima and sums": with_rows(lambda top, total: [top * 1.0, total * 2.0, top - total]),
    "rows' maxima and sums as they are": with_rows(lambda top, total: [top, total]),
    "rows' maxima, sums and logarithms": with_rows(lambda top, total: [top, total, top + total.log()]),
    "rows of a state": state(lambda m, l, n: [m, l, n]),
    "rows' logarithms of a state": state(lambda m, l, n: [n, m + l.log()]),
    "rows of a state, divided": state(lambda m, l, n: [m, l, n, n / l]),
    "rows' sums, after the product": state(lambda m, l, n: [n / l]),
    "rows' logarithms, after the product": state(lambda m, l, n: [n / l, m + l.log()]),
}
BESIDE: dict[str, tuple[int, Graph]] = {
    "read by another kernel": (2, with_rows(lambda top, total: [(top + total.log()) * f32(8, 7)])),
    "read by a product": (2, with_rows(lambda top, total: [(top + total.log()) * f32(8, 3) @ f32(3, 9)])),
    "summed": (2, with_rows(lambda top, total: [(top + total.log()).sum()])),
    "a maximum for another kernel": (2, with_rows(lambda top, total: [top * f32(8, 7)])),
    "maxima and sums, summed": (2, with_rows(lambda top, total: [top.sum(), total.sum()])),
    "a state that is combined with another": (
        3,
        state(
            lambda m, l, n: [
                (t := weft.maximum(m, f32(8, 1))),
                l * (m - t).exp() + f32(8, 1),
                n * (m - t).exp() + f32(8, 5),
            ]
        ),
    ),
    "read beside the results": (
        2,
        lambda: [
            (o := (g := with_rows(lambda top, total: [top + total.log()])())[0]) * 1.0,
            (o * g[1]).sum(),
        ],
    ),
    "two chains": (
        2,
        lambda: [
            *with_rows(lambda top, total: [total.log()])(),
            (f32(9, 4) @ f32(4, 7)).softmax(-1) @ f32(7, 3),
        ],
    ),
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
    "maxima of at least 0": (3, state(lambda m, l, n: [m, l, n], 0.0)),
    "maxima of at least -inf": (3, state(lambda m, l, n: [m, l, n], -np.inf)),
    "no sum": (3, state(lambda m, l, n: [m, n])),
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


@pytest.mark.parametrize("name", BESIDE)
def test_one_kernel_stores_functions_of_rows_for_others(name: str) -> None:
    count, graph = BESIDE[name]
    assert kernels(graph) == count


@pytest.mark.parametrize("name", [n for n in TOGETHER if n.startswith("rows")])
def test_functions_of_rows_that_find_no_buffer_are_right(name: str) -> None:
    nodes = [t.value.node for t in TOGETHER[name]()]
    for buffers in (4, 5, 6, 8):
        for value, want, bound in zip(
            run(kernelize(nodes, buffers), nodes), evaluate(nodes), allowed(nodes), strict=True
        ):
            assert difference(value, want, bound) is None


@pytest.mark.parametrize("name", APART)
def test_the_products_stay_apart(name: str) -> None:
    count, graph = APART[name]
    assert kernels(graph) == count


@pytest.mark.parametrize("masked", [False, True])
def test_the_state_of_a_block_is_one_kernel(masked: bool) -> None:
    """The maximum and the sum are written with the rows of the product; rows that are masked out count for nothing."""
    r = np.random.default_rng(0)
    a = [r.standard_normal((2, n, 16)).astype(np.float32) for n in (37, 129, 129)]
    seen = np.tril(np.ones((37, 129), bool), -20)
    q, k, v = map(weft.tensor, a)
    x = q @ k.transpose(1, 2)
    if masked:
        x = weft.where(weft.tensor(seen), x, float("-inf"))
    m = x.amax(2)
    e = (x - weft.maximum(m, weft.full(m.shape, float(np.finfo(np.float32).min))).unsqueeze(2)).exp()
    total, product = e.sum(2), e @ v
    assert len(weft.explain(m, total, product).kernels) == 1
    weft.realize(m, total, product)
    s = a[0].astype(np.float64) @ a[1].astype(np.float64).swapaxes(1, 2)
    s = np.where(seen, s, -np.inf) if masked else s
    top = s.max(2)
    w = np.exp(s - np.maximum(top, -1e300)[..., None])
    for got, want in ((m, top), (total, w.sum(2)), (product, w @ a[2])):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


def test_a_maximum_that_is_kept_finite_is_stored_for_a_product_only() -> None:
    """A softmax of the user's that does so is one kernel, as any."""
    x = weft.tensor(np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32))
    m = weft.maximum(x.amax(1), weft.full((32,), -1e30)).unsqueeze(1)
    e = (x - m).exp()
    assert len(weft.explain(e / e.sum(1, keepdim=True)).kernels) == 1
