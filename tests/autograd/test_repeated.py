"""Backward passes that repeat are built from what was recorded: the same nodes as walked, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import weft
from weft import Tensor, nn
from weft.autograd import repeated, reverse
from weft.core.composed.composite import without_calls
from weft.core.grad import differentiate
from weft.ir.errors import IRError


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_known", "_seen"):
        monkeypatch.setattr(repeated, name, {})
    monkeypatch.setattr(repeated, "_in_vain", [0])
    yield


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each walk that was made, where forms are not verified."""
    made: list[int] = []
    walk = reverse.gradients

    def counted(outputs: Any, *rest: Any, **named: Any) -> Any:
        if "order" in named:
            made.append(len(made))
        return walk(outputs, *rest, **named)

    monkeypatch.setattr(reverse, "gradients", counted)
    return made


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated.settings, "verify", lambda: False)


def _parameters() -> list[Tensor]:
    rng = np.random.default_rng(3)
    shapes = ((5, 6), (6,), (6, 2))
    return [weft.tensor(rng.standard_normal(s, np.float32), requires_grad=True) for s in shapes]


def _loss(ps: list[Tensor], x: Tensor) -> Tensor:
    w, b, v = ps
    y = weft.tanh(x @ w + b)
    return ((y.reshape(-1, 6) @ v - 1.0) ** 2).mean() + y[:, 1:3].relu().sum() * 0.1


def _steps(count: int, read: Callable[[list[Tensor]], object] = lambda _: None) -> list[list[Any]]:
    """The gradients of steps of gradient descent."""
    ps, found = _parameters(), list[list[Any]]()
    x = weft.tensor(np.random.default_rng(4).standard_normal((7, 5), np.float32))
    for _ in range(count):
        loss = _loss(ps, x)
        loss.backward()
        found.append([p.grad for p in ps])
        with weft.no_grad():
            for p in ps:
                assert p.grad is not None
                p -= 0.1 * p.grad
                p.grad = None
        read([loss])
    return [[g.numpy() for g in gs] for gs in found]


@pytest.mark.usefixtures("unverified")
def test_the_third_pass_asks_no_rule_and_gives_the_same(
    walks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = _steps(6, lambda ts: ts[0].item())
    assert len(walks) == 2
    monkeypatch.setattr(repeated, "LONGEST", 0)
    theirs = _steps(6, lambda ts: ts[0].item())
    assert len(walks) == 2 + 6
    for a, b in zip(ours, theirs, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.usefixtures("unverified")
def test_a_tape_of_a_thousand_values_is_built_too(walks: list[int]) -> None:
    p, x = weft.tensor([0.5, -1.0], requires_grad=True), weft.tensor([1.0, 2.0])
    for _ in range(5):
        y = p
        for _ in range(500):
            y = y * x + p
        y.sum().backward()
    assert len(walks) == 2


@pytest.mark.usefixtures("unverified")
@pytest.mark.parametrize(("made", "bound"), [(True, 250), (False, 150)])
def test_passes_that_are_long_together_are_forgotten(
    made: bool, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the nodes that they make, and by the values that they are recognised by, which those make that cannot be
    recorded, too."""
    monkeypatch.setattr(repeated, "ROWS_KEPT", bound)
    monkeypatch.setattr(repeated, "PATIENCE", 1000)
    monkeypatch.setattr(repeated, "_known", {})
    if not made:
        monkeypatch.setattr(repeated, "_recorded", lambda *_: None)
    sizes = (3, 5, 7, 60, 4)
    for _ in range(3):
        for n in sizes:
            p = weft.tensor(np.full(n, -1.0, np.float32), requires_grad=True)
            q = p
            for _ in range(n):
                q = q.exp() * 2.0
            q.sum().backward()
            kept = repeated._known
            length = sum(len(key) + (0 if k is None else len(k.rows)) for key, k in kept.items())
            assert len(kept) <= 1 or length <= bound
    assert 0 < len(repeated._known) < len(sizes)


@pytest.mark.usefixtures("unverified")
def test_what_rules_look_at_is_told_apart(walks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes, attributes, who needs a gradient, modes, constants, values shared or not."""
    monkeypatch.setattr(repeated, "PATIENCE", 1000)
    p, q = weft.ones(4, requires_grad=True), weft.ones(4, requires_grad=True)
    d = weft.tensor([1.0, 2.0, 3.0, 4.0])
    zero, ones = weft.zeros(4), weft.ones(4)
    losses: list[Callable[[], Tensor]] = [
        lambda: (p * q).sum(), lambda: (p * p).sum(), lambda: (p * d).sum(), lambda: (d * p).sum(),
        lambda: (p * zero).sum(), lambda: (p * ones).sum(), lambda: (p * q.detach()).sum(), lambda: p[1:].sum(),
        lambda: p[:3].sum(), lambda: p.reshape(2, 2).sum(0)[1], lambda: (p + p * d).sum(), lambda: (p.exp() * q).sum(),
        lambda: weft.cat([p, q])[2:].sum(), lambda: weft.cat([p[:2], q]).sum(), lambda: nn.functional.softmax(p, 0)[0],
        lambda: nn.functional.softmax(p * q, 0)[0], lambda: (p.double() * 2).sum(), lambda: (p / q).log().mean(),
    ]  # fmt: skip

    def gradients() -> list[list[Any]]:
        found: list[list[Any]] = []
        for loss in losses:
            p.grad = q.grad = None
            loss().backward()
            found.append([None if t.grad is None else t.grad.tolist() for t in (p, q)])
        return found

    first = gradients()
    assert gradients() == first
    before = len(walks)
    assert gradients() == first
    assert len(walks) == before, "some were not recorded"


@pytest.mark.usefixtures("unverified")
def test_hooks_functions_of_users_and_graphs_of_gradients_are_walked(walks: list[int]) -> None:
    p = weft.ones(3, requires_grad=True)

    class Twice(weft.autograd.Function):
        calls = 0

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            Twice.calls += 1
            return g * 2

    for _ in range(4):
        Twice.apply(p).sum().backward()
    assert Twice.calls == 4
    seen: list[int] = []
    for k in range(4):
        y = p * 3
        y.register_hook(lambda g, k=k: seen.append(k))
        y.sum().backward()
    assert seen == [0, 1, 2, 3]
    before = len(walks)
    for _ in range(4):
        (p**3).sum().backward(create_graph=True)
        p.grad = None
    assert len(walks) == before + 4


def test_a_record_that_a_walk_does_not_give_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What verification is there for: a key that tells too little."""
    p = weft.ones(3, requires_grad=True)
    monkeypatch.setattr(repeated, "_described", lambda seed, targets, order, nodes: _told(nodes, seed, order))

    def _told(nodes: list[Any], seed: Any, order: Any) -> list[Any]:
        nodes += dict.fromkeys([seed.node, *(v.node for v in order)])
        return [len(order)]

    for _ in range(2):
        (p * 2).exp().sum().backward()
    with pytest.raises(IRError, match="not the one recorded"):
        (p * 2).sin().sum().backward()


@pytest.mark.usefixtures("unverified")
def test_tapes_that_never_come_again_are_soon_looked_at_less(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    described = repeated._described
    monkeypatch.setattr(
        repeated, "_described", lambda s, t, o, n: (looked.append(len(o)), described(s, t, o, n))[1]
    )
    p = weft.ones(3, requires_grad=True)
    for k in range(80):
        (p * float(k + 2)).sum().backward()
    assert repeated.PATIENCE < len(looked) < 40
    assert len(repeated._seen) <= repeated.SEEN


def test_accumulation_and_shared_gradients(walks: list[int]) -> None:
    p, q = weft.ones(3, requires_grad=True), weft.ones(3, requires_grad=True)
    for _ in range(4):
        (p + q).sum().backward()
    assert p.grad is not None and q.grad is not None
    p.grad.mul_(2.0)
    assert p.grad.tolist() == [8.0] * 3
    assert q.grad.tolist() == [4.0] * 3
    assert differentiate.repeated is repeated


def _of_weft(rule: Any) -> Any:
    """The function as if a module of weft had it."""
    return FunctionType(rule.__code__, {"__name__": "weft.core"}, closure=rule.__closure__)


def _closed_over(what: Any) -> Any:
    def rule(g: Any) -> Any:
        return g, what

    return _of_weft(rule)


def test_rules_are_told_by_their_code_and_what_they_closed_over() -> None:
    """Where that is plain, and the code is weft's."""
    two, both = _closed_over(2), _closed_over((_closed_over(None), "mean", 0.5))
    assert repeated.told(two) == repeated.told(_closed_over(2))
    assert repeated.told(both) == repeated.told(_closed_over((_closed_over(None), "mean", 0.5)))
    others = [None, two, both, *(_closed_over(x) for x in (3, True, 2.0, 0.0, -0.0, (2,), "2", None))]
    assert len({repeated.told(r) for r in others}) == len(others)
    assert repeated.told(None) is None
    tensor = weft.ones(2)
    for untold in (tensor, tensor.value, [2], (2, [3]), np.float32(2), int, lambda g: g):
        with pytest.raises(repeated.UntoldError):
            repeated.told(_closed_over(untold))
    with pytest.raises(repeated.UntoldError):
        repeated.told(lambda g: (g,))

    def later(g: Any) -> Any:
        return g, not_yet

    later = _of_weft(later)
    with pytest.raises(repeated.UntoldError):
        repeated.told(later)
    not_yet = 2
    assert repeated.told(later)


def test_what_wraps_a_function_of_weft_is_none() -> None:
    @wraps(repeated.told)
    def mine(g: Any) -> Any:
        return g

    assert mine.__module__.startswith("weft.")
    with pytest.raises(repeated.UntoldError):
        repeated.told(mine)


@pytest.mark.usefixtures("unverified")
def test_a_pass_with_rules_that_closed_over_plain_things_is_recorded(walks: list[int]) -> None:
    p = weft.tensor([0.5, -1.0], requires_grad=True)
    grads: list[list[float]] = []
    for k in range(5):
        y = without_calls(weft.sigmoid)(p * float(1 + (k == 4)))
        y.sum().backward()
        assert p.grad is not None
        grads.append(p.grad.tolist())
        p.grad = None
    assert len(walks) == 2 + 1  # the last is another tape
    np.testing.assert_allclose(grads[0], grads[3])
    s = 1 / (1 + np.exp(-2 * np.array([0.5, -1.0])))
    np.testing.assert_allclose(grads[4], 2 * s * (1 - s), rtol=1e-6)
