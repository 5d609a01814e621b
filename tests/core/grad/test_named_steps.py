"""Steps that follow from their name are not traced where they are known, and loops of them are what they were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import weft
from weft import Tensor, nn
from weft.core.grad import named_steps, repeated_loops
from weft.core.grad.scan import named_scan
from weft.ir.errors import IRError


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module, name in ((repeated_loops, "_known"), (repeated_loops, "_seen"), (named_steps, "_steps")):
        monkeypatch.setattr(module, name, {})
    yield


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_loops.settings, "verify", lambda: False)


def _leaf(rng: np.random.Generator, *shape: int) -> Tensor:
    return weft.tensor(rng.standard_normal(shape) * 0.5, requires_grad=True)


traced: list[str] = []


def _cell(c: Tensor, x: Tensor, uses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    traced.append("")
    new = (c @ uses[0] + x).sigmoid() * uses[1]
    return new, new * x


def _results(xs: Tensor, w: Tensor, v: Tensor, name: Any = "cell", c: Tensor | None = None) -> list[Tensor]:
    start = weft.zeros(3, 4, dtype=weft.float64) if c is None else c
    if name is None:
        end, ys = weft.scan(lambda c, x: _cell(c, x, (w, v)), start, xs)
    else:
        end, ys = named_scan(_cell, name, (w, v), start, xs)
    loss = (end * end).sum() + ys.sin().sum()
    asked = [t for t in (xs, w, v) if t.requires_grad]
    return [end, ys, *weft.autograd.grad(loss, asked)] if asked else [end, ys]


def _same(a: Sequence[Tensor], b: Sequence[Tensor]) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x.detach().numpy(), y.detach().numpy())


def test_a_step_that_is_known_is_not_traced(unverified: None) -> None:
    rng = np.random.default_rng(0)
    for k, n in enumerate((5, 9, 6, 21, 12, 3, 40, 4, 9, 17)):
        xs, w, v = _leaf(rng, n, 3, 4), _leaf(rng, 4, 4), _leaf(rng, 4)
        traced.clear()
        found = _results(xs, w, v)
        assert k < 8 or not traced
        _same(found, _results(xs, w, v, None))


def test_what_is_given_makes_another_step(unverified: None) -> None:
    rng = np.random.default_rng(1)
    some = ((False, True, True), (True, False, True), (True, True, False))
    for needs in (*some, (True, True, True), *some):
        for shape in ((3, 4), (2, 4), (3, 4)):
            for _ in range(4):
                xs, w, v = _leaf(rng, 6, *shape), _leaf(rng, 4, 4), _leaf(rng, 4)
                for t, need in zip((xs, w, v), needs, strict=True):
                    t.requires_grad_(need)
                c = weft.zeros(*shape, dtype=weft.float64)
                _same(_results(xs, w, v, c=c), _results(xs, w, v, None, c=c))
                with weft.no_grad():
                    end, ys = named_scan(_cell, "cell", (w, v), c, xs)
                assert not end.requires_grad and not ys.requires_grad


def test_rows_of_another_shape_make_another_step(unverified: None) -> None:
    rng = np.random.default_rng(6)
    for shape in ((3, 4), (1, 4), (4,), (3, 1)):
        for _ in range(4):
            xs, w, v = _leaf(rng, 6, *shape), _leaf(rng, 4, 4), _leaf(rng, 4)
            _same(_results(xs, w, v), _results(xs, w, v, None))


def test_gradients_of_what_a_loop_begins_with(unverified: None) -> None:
    rng = np.random.default_rng(7)
    for k in range(8):
        found: list[np.ndarray] = []
        xs, w, v, c = _leaf(rng, 6, 3, 4), _leaf(rng, 4, 4), _leaf(rng, 4), _leaf(rng, 3, 4)
        c = c if k > 3 else c.detach()
        for name in ("cell", None):
            end = _results(xs, w, v, name, c)[0]
            if k > 3:
                found.append(weft.autograd.grad(end.sum(), [c])[0].numpy())
        if found:
            np.testing.assert_array_equal(*found)


def test_movements_and_twins_are_no_known_step() -> None:
    """Graphs read what a movement is of, and one tensor once: where forms are verified, that would be found."""
    rng = np.random.default_rng(8)
    leaves = [_leaf(rng, *shape) for shape in ((4, 4), (4,), (16,))]
    for w, v, wide in (leaves, [weft.tensor(t.detach().numpy()) for t in leaves]):
        moved = (w.T, v), (wide.reshape(4, 4), v), (w.T.realize(), v), (w, v.flip(0))
        for used in (*((w, v),) * 3, *moved):
            named_scan(_cell, "cell", used, weft.zeros(3, 4, dtype=weft.float64), _leaf(rng, 5, 3, 4))

    def twice(c: Tensor, x: Tensor, uses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return c @ uses[0] + x @ uses[1], x

    w = leaves[0]
    for used in (*((w, _leaf(rng, 4, 4)),) * 3, (w, w)):
        named_scan(twice, "twice", used, weft.zeros(3, 4, dtype=weft.float64), _leaf(rng, 5, 3, 4))


def test_movements_and_tensors_that_are_used_twice_are_traced(unverified: None) -> None:
    rng = np.random.default_rng(2)
    for _ in range(4):
        xs, w = _leaf(rng, 6, 3, 4), _leaf(rng, 4, 4)
        for used in ((w.T, w[0]), (w, w.reshape(16)[:4]), (w * 2, w[1] * 1.0)):
            end, _ = named_scan(_cell, "moved", used, weft.zeros(3, 4, dtype=weft.float64), xs)
            want, _ = weft.scan(lambda c, x: _cell(c, x, used), weft.zeros(3, 4, dtype=weft.float64), xs)
            _same([end, *weft.autograd.grad(end.sum(), [w])], [want, *weft.autograd.grad(want.sum(), [w])])


def test_a_backward_pass_has_the_values_of_its_forward_pass(unverified: None) -> None:
    """The gradients of a result that had none so far are traced late: with the weights that there were."""
    rng = np.random.default_rng(3)
    for _ in range(5):
        xs, w, v = _leaf(rng, 6, 3, 4), _leaf(rng, 4, 4), _leaf(rng, 4)
        _results(xs, w, v)
    end, _ = named_scan(_cell, "cell", (w, v), weft.zeros(3, 4, dtype=weft.float64), xs)
    want, _ = weft.scan(lambda c, x: _cell(c, x, (w, v)), weft.zeros(3, 4, dtype=weft.float64), xs)
    expected = weft.autograd.grad(want.sum(), [xs])[0].numpy()
    total = end.sum()
    traced.clear()
    with weft.no_grad():
        w.mul_(0.0)
        found = weft.autograd.grad(total, [xs])[0]
    assert traced
    np.testing.assert_array_equal(found.numpy(), expected)


def test_second_derivatives(unverified: None) -> None:
    rng = np.random.default_rng(4)
    for _ in range(5):
        xs, w, v = _leaf(rng, 4, 3, 4), _leaf(rng, 4, 4), _leaf(rng, 4)
        found: list[np.ndarray] = []
        for name in ("cell", None):
            c = weft.zeros(3, 4, dtype=weft.float64)
            if name is None:
                end, _ = weft.scan(lambda c, x, w=w, v=v: _cell(c, x, (w, v)), c, xs)
            else:
                end, _ = named_scan(_cell, name, (w, v), c, xs)
            (g,) = weft.autograd.grad(end.sum(), [w], create_graph=True)
            found.append(weft.autograd.grad((g * g).sum(), [xs])[0].numpy())
        np.testing.assert_allclose(*found, rtol=1e-10)


def test_a_function_that_does_not_follow_from_its_name_is_found() -> None:
    factor = [1.0]

    def cell(c: Tensor, x: Tensor, uses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return c * factor[0] + x @ uses[0], x

    def run() -> None:
        w = weft.tensor(np.eye(4, dtype=np.float32))
        named_scan(cell, "other", (w,), weft.zeros(3, 4), weft.ones(5, 3, 4).contiguous())

    for _ in range(4):
        run()
    factor[0] = 2.0
    with pytest.raises(IRError, match="other does not take the step"):
        run()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_layers_that_share_a_shape_share_a_step_but_no_weights(unverified: None, kind: Any) -> None:
    for n in (4, 7, 4, 7, 9):
        layers = [kind(3, 5, num_layers=2, bidirectional=True) for _ in range(2)]
        x = weft.randn(n, 2, 3)
        for layer in layers:
            out, _ = layer(x)
            out.square().sum().backward()
            one = kind(3, 5, num_layers=2, bidirectional=True)
            one.load_state_dict(layer.state_dict())
            named_steps._steps.clear()
            repeated_loops._known.clear()
            again, _ = one(x)
            again.square().sum().backward()
            _same([out], [again])
            for a, b in zip(layer.parameters(), one.parameters(), strict=True):
                assert a.grad is not None and b.grad is not None
                np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_the_table_is_bounded(unverified: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_steps, "KEPT", 2)
    rng = np.random.default_rng(5)
    for k in range(4):
        for _ in range(3):
            _results(_leaf(rng, 4, 3, 4), _leaf(rng, 4, 4), _leaf(rng, 4), ("cell", k))
    assert len(named_steps._steps) == 2
