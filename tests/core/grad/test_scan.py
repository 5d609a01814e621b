"""scan: what it takes and gives, nested and compiled, its refusals. Random steps are in tests/fuzz/test_loops.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import Tensor
from weft.ir.graph import toposort
from weft.ir.ops import Op


def test_containers_numbers_and_no_steps() -> None:
    total, rows = weft.scan(
        lambda s, x: (s + x["a"] * x["b"], {"so far": s}), 0.0, {"a": weft.arange(4.0), "b": weft.ones(4)}
    )
    assert total.item() == 6.0 and rows["so far"].tolist() == [0.0, 0.0, 1.0, 3.0]
    count, nothing = weft.scan(lambda n, _: (n + 1, None), 0, length=3)
    assert count.item() == 3 and nothing is None
    counts, _ = weft.scan(
        lambda n, _: ({"a": n["a"] + 1, "b": [n["b"][0] * 2]}, None), {"a": 0, "b": [1]}, length=3
    )
    assert counts["a"].item() == 3 and counts["b"][0].item() == 8
    end, empty = weft.scan(lambda c, x: (c + x, (c, x.sum())), weft.ones(2), weft.zeros(0, 2))
    assert end.tolist() == [1.0, 1.0] and [t.shape for t in empty] == [(0, 2), (0,)]
    end, empty = weft.scan(lambda c, x: (c + x, c), weft.zeros(0), weft.ones(5, 0))
    assert end.shape == (0,) and empty.shape == (5, 0)


def test_no_steps_have_the_shapes_of_a_step() -> None:
    end, empty = weft.scan(lambda c, x: (c * x[0], x.outer(c)), weft.ones(2), weft.zeros(0, 3))
    assert end.tolist() == [1.0, 1.0] and empty.shape == (0, 3, 2)


def test_sizes_that_are_known_at_run_time_only() -> None:
    n = weft.Variable("n", 1, 4)
    w, xs = weft.tensor([1.0, 2.0, 3.0, 4.0]), weft.tensor([1.0, 2.0, 3.0])
    for reverse, want in ((False, (18.0, [0.0, 1.0, 5.0])), (True, (34.0, [11.0, 3.0, 0.0]))):
        found = weft.scan(lambda c, x: (c * w[:n].sum() + x, c), weft.tensor(0.0), xs, reverse=reverse)
        end, rows = weft.bind(*found, n=2)
        assert (end.item(), rows.tolist()) == want


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [weft.int32, weft.int64, weft.uint8])
def test_positions_that_a_step_takes_are_the_number_of_the_step(dtype: weft.DType, reverse: bool) -> None:
    """Rows of ranges, and of what follows from these, are computed: in conditions, indices and values."""
    rng = np.random.default_rng(3)
    table, xs = weft.tensor(rng.standard_normal(40)), weft.tensor(rng.standard_normal((6, 12)))
    at = (weft.arange(8, 32, dtype=dtype) * 1 - 3).reshape(8, 3)[1:7]

    def step(c: Tensor, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Any]:
        row, k = x
        seen = weft.where(weft.arange(12) <= k[1].long() - 8, row, 0.0).sum()
        near = (table[k.long()] * k).sum()
        return c * 0.5 + seen, (near + c, k, k.sum() % 5)

    end, rows = weft.scan(step, weft.zeros((), dtype=weft.float64), (xs, at), reverse=reverse)
    c, where, x, t = 0.0, at.numpy().astype(np.int64), xs.numpy(), table.numpy()
    near, digits = np.zeros(6), np.zeros(6)
    for i in reversed(range(6)) if reverse else range(6):
        near[i], digits[i] = (t[where[i]] * where[i]).sum() + c, at.numpy()[i].sum() % 5
        c = c * 0.5 + np.where(np.arange(12) <= where[i, 1] - 8, x[i], 0.0).sum()
    assert end.item() == pytest.approx(c, rel=1e-12)
    assert np.allclose(rows[0].numpy(), near, rtol=1e-12)
    assert np.array_equal(rows[1].numpy(), at.numpy()) and np.array_equal(rows[2].numpy(), digits)


def loops_that_sum(text: str) -> list[str]:
    """The heads of loops of the text of a kernel that have sums of products inside."""
    lines = text.splitlines()
    depth = [len(line) - len(line.lstrip()) for line in lines]
    found: list[str] = []
    for at, line in enumerate(lines):
        if line.lstrip().startswith("for "):
            end = next((k for k in range(at + 1, len(lines)) if depth[k] <= depth[at]), len(lines))
            if any(" += " in inside and " * " in inside for inside in lines[at:end]):
                found.append(line)
    return found


def test_a_causal_product_in_a_loop_leaves_out_what_no_row_sees() -> None:
    xs, keys = weft.randn(8, 32, 64).realize(), weft.randn(256, 64).realize()
    rows = weft.arange(256, dtype=weft.int32).reshape(8, 32, 1)

    def step(_: None, x: tuple[Tensor, Tensor]) -> tuple[None, Tensor]:
        queries, at = x
        scores = weft.where(weft.arange(256, dtype=weft.int32) <= at, queries @ keys.T, -weft.inf)
        return None, weft.softmax(scores, -1) @ keys

    _, out = weft.scan(step, None, (xs, rows))
    sums = [line for k in weft.explain(out) for line in loops_that_sum(k.loops)]
    assert any("step1" in line for line in sums), "the columns that are summed depend on the rows"
    scores = xs.numpy().reshape(256, 64) @ keys.numpy().T
    scores[np.triu_indices(256, 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ keys.numpy()
    assert np.allclose(out.numpy().reshape(256, 64), expected, atol=1e-4)


def test_only_what_depends_on_a_gradient_requires_one() -> None:
    w = weft.ones(2, requires_grad=True)
    start = (weft.ones(2), weft.zeros(2))
    (a, b), (y, z) = weft.scan(
        lambda c, x: ((c[0] * w, c[1] + x), (x @ x, c[0].sum())), start, weft.ones(3, 2)
    )
    assert [t.requires_grad for t in (a, b, y, z)] == [True, False, False, True]


def test_a_cache_is_updated_row_by_row() -> None:
    def step(carry: tuple[Tensor, Tensor], x: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        at, cache = carry
        cache = weft.index_copy(cache, 0, at.reshape(1), x.reshape(1, 3))
        return (at + 1, cache), cache.sum()

    (_, cache), sums = weft.scan(step, (weft.tensor(1), weft.zeros(5, 3)), weft.ones(3, 3))
    assert cache.sum(1).tolist() == [0.0, 3.0, 3.0, 3.0, 0.0] and sums.tolist() == [3.0, 6.0, 9.0]


def steps(f: Callable[[Any, Any], Any], carry: Any, xs: Tensor) -> tuple[Any, Tensor]:
    rows: list[Tensor] = []
    for x in xs:
        carry, y = f(carry, x)
        rows.append(y)
    return carry, weft.stack(rows)


def test_scans_nest_and_are_compiled() -> None:
    rng = np.random.default_rng(0)
    w, a, xs = (
        weft.tensor(rng.standard_normal(s) * 0.5, requires_grad=True) for s in ((4, 4), (3, 4), (3, 2, 3, 4))
    )

    def run(scan: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
        def inner(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            c = (c @ w + x).tanh()
            return c, c.sum(-1)

        def outer(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            new, ys = scan(inner, c * 0.9, x)
            return new + c, ys.mean(0)

        def loss(xs: Tensor) -> Tensor:
            c, ys = scan(outer, a, xs)
            return (c * c).sum() + ys.sin().sum()

        return loss

    want = weft.autograd.grad(run(steps)(xs), [w, a, xs])
    compiled = weft.compile(run(weft.scan))
    for result in (
        run(weft.scan)(xs),
        compiled(xs),
        compiled(xs),
    ):  # gradients of compiled results flow outside of it
        for got, wanted in zip(weft.autograd.grad(result, [w, a, xs]), want, strict=True):
            np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("of", ["a row", "the carry", "neither"])
def test_a_step_may_compute_on_several_devices(of: str) -> None:
    """Then the steps are laid out: a loop's body runs on one."""
    w, x = weft.rand(3, device="dummy:0").realize(), weft.rand(4, 3).realize().requires_grad_()

    def step(c: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        if of == "a row":
            return c + (r.to("dummy:0") * w).to("cpu:0"), r.to("dummy:0")
        return (c.to("dummy:0") * w).to("cpu:0") + r if of == "the carry" else c + r * w.to("cpu:0"), c

    last, ys = weft.scan(step, weft.ones(3), x)
    assert (of == "neither") == any(n.op is Op.LOOP for n in toposort([last.value.node]))
    expected, rows = weft.ones(3), []
    for k in range(4):
        expected, y = step(expected, x[k])
        rows.append(y.numpy())
    np.testing.assert_allclose(last.numpy(), expected.numpy(), rtol=1e-6)
    np.testing.assert_allclose(ys.numpy(), np.stack(rows), rtol=1e-6)
    (found,) = weft.autograd.grad(last.sum(), [x])
    (wanted,) = weft.autograd.grad(expected.sum(), [x])
    assert found is not None and wanted is not None
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-6)


def test_the_graph_does_not_grow_with_the_length() -> None:
    def nodes(length: int) -> int:
        w = weft.ones(4, 4, requires_grad=True)
        c, ys = weft.scan(lambda c, x: ((c @ w + x).tanh(), c), weft.zeros(2, 4), weft.ones(length, 2, 4))
        (g,) = weft.autograd.grad(c.sum() + ys.sum(), [w])
        found = toposort([g.value.node])
        assert any(n.op is Op.LOOP for n in found)
        return len(found)

    assert nodes(3) == nodes(300)


def test_weights_gradients_are_one_product_or_a_carry() -> None:
    """A matrix that few rows meet is summed up after the loop; a small vector that many rows meet, step by step."""
    rng = np.random.default_rng(1)
    w, v, x = (weft.tensor(rng.standard_normal(s), requires_grad=True) for s in ((8, 8), (8,), (4, 64, 8)))

    def both(scan: Callable[..., Any]) -> list[Tensor]:
        few, _ = scan(lambda c, x: ((c @ w).tanh() + x[:2], c.sum()), weft.zeros(2, 8, dtype=weft.float64), x)
        many, _ = scan(lambda c, x: (c * v.exp() + x, c.sum()), weft.zeros(64, 8, dtype=weft.float64), x)
        return list(weft.autograd.grad(few.sum() + many.sum(), [w, v]))

    for got, want in zip(both(weft.scan), both(steps), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-9)


def test_what_another_thread_draws_meanwhile_is_not_the_steps() -> None:
    def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        other = threading.Thread(target=lambda: weft.rand(3))
        other.start(), other.join()
        return c + x, c

    assert weft.scan(step, weft.zeros(3), weft.ones(4, 3))[0].tolist() == [4.0] * 3
    assert weft.vmap(lambda x: step(x, x)[0])(weft.ones(4, 3)).shape == (4, 3)


def test_draws_are_seen_in_traces_and_where_nothing_is_computed() -> None:
    def step(c: Tensor, _: Tensor) -> tuple[Tensor, None]:
        return c + weft.rand(3, device=c.device), None

    def run(x: Tensor) -> Tensor:
        return weft.scan(step, x[0], x)[0]

    with pytest.raises(weft.ArgumentError, match="draw them outside"):
        weft.compile(run)(weft.ones(4, 3))
    with weft.device("meta"), pytest.raises(weft.ArgumentError, match="draw them outside"):
        run(weft.ones(4, 3))


NOTHING: Any = None

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no length": (lambda: weft.scan(lambda c, x: (c, x), weft.zeros(3)), weft.ArgumentError, "given as length"),
    "no pair": (
        lambda: weft.scan(lambda c, x: c + x, weft.zeros(3), weft.zeros(2, 3)),
        weft.ArgumentError, "a tuple (carry, y)",
    ),
    "another shape": (
        lambda: weft.scan(lambda c, x: (c[:2], x), weft.zeros(3), weft.zeros(2, 3)), weft.ShapeError, "it must keep it",
    ),
    "another shape of the second": (
        lambda: weft.scan(lambda c, x: ((c[0], c[1][:2]), x), (weft.zeros(3), weft.zeros(3)), weft.zeros(2, 3)),
        weft.ShapeError, "tensor 1 of the carry",
    ),
    "no rows of the second": (
        lambda: weft.scan(lambda c, x: (c, c), 0.0, (weft.ones(2), weft.ones(()))), weft.ShapeError, "no dimension",
    ),
    "another dtype": (
        lambda: weft.scan(lambda c, x: (c.double(), x), weft.zeros(3), weft.zeros(2, 3)),
        weft.DTypeError, "convert it with .to(weft.float32)",
    ),
    "a value": (
        lambda: weft.scan(lambda c, x: (c if c.sum() > 0 else x, x), weft.zeros(3), weft.zeros(2, 3)),
        weft.ArgumentError, "in a function that vmap or scan runs",
    ),
    "random numbers": (
        lambda: weft.scan(lambda c, x: (c + weft.rand(3), x), weft.zeros(3), weft.zeros(2, 3)),
        weft.ArgumentError, "draw them outside",
    ),
    "random numbers of a generator of its own": (
        lambda g=weft.Generator(): weft.scan(
            lambda c, x: (c + weft.rand(3, generator=g), x), weft.zeros(3), weft.zeros(2, 3)
        ),
        weft.ArgumentError, "draw them outside",
    ),
    "other lengths": (
        lambda: weft.scan(lambda c, x: (c, c), weft.zeros(3), (weft.zeros(2, 3), weft.zeros(4))),
        weft.ShapeError, "must agree",
    ),
    "a row of a number": (lambda: weft.scan(lambda c, x: (c, c), 0.0, weft.ones(())), weft.ShapeError, "no dimension"),
    "no function": (lambda: weft.scan(NOTHING, 0.0, length=2), weft.DTypeError, "expected a function"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    call, kind, part = REFUSED[case]
    with pytest.raises(kind) as caught:
        call()
    assert part in str(caught.value)
