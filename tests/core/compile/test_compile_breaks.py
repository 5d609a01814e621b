"""Compiled functions that ask for values: they do what the uncompiled function does, once, and say why they broke."""

from __future__ import annotations

import collections
import copy
import os
import pickle
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.nn import functional as F

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "8"))


class State:
    """What a program changes: tensors that are leaves with and without gradients, a view, a generator, a module."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.w = weft.tensor(rng.standard_normal(4).astype(np.float32), requires_grad=True)
        self.b = weft.tensor(rng.standard_normal(4).astype(np.float32))
        self.row = weft.tensor(rng.standard_normal((2, 4)).astype(np.float32))
        self.view = self.row[1]
        self.outer = self.w * 2  # computed with gradients, outside
        self.generator = weft.Generator(3)
        self.norm = weft.nn.BatchNorm1d(4)
        self.log: list[Any] = []
        self.kept: list[weft.Tensor] = []
        self.sgd = weft.optim.SGD([self.w], lr=0.1, momentum=0.9)
        weft.manual_seed(7)

    def seen(self) -> list[Any]:
        tensors = [self.w, self.b, self.row, self.view, self.outer, *self.norm.state_dict().values()]
        grads = [self.w.grad, *(p.grad for p in self.norm.parameters())]
        return [t.tolist() for t in (*tensors, *self.kept)] + [
            None if g is None else g.tolist() for g in grads
        ]


def _branch(s: State, x: weft.Tensor) -> weft.Tensor:
    if x.sum() > 0:
        s.b += 1
        return x * 2
    s.b -= x.detach()
    return x - 1


def _log(s: State, x: weft.Tensor) -> weft.Tensor:
    s.log.append(round(x.mean().item(), 3))
    return x + 0.5


def _noise(s: State, x: weft.Tensor) -> weft.Tensor:
    return x + weft.rand(4) + weft.randn(4, generator=s.generator)


def _inplace(s: State, x: weft.Tensor) -> weft.Tensor:
    s.view.mul_(0.5).add_(x.detach())
    return x + s.row[0] * s.row[1]


def _grads(s: State, x: weft.Tensor) -> weft.Tensor:
    (s.w * x.detach()).square().sum().backward()
    return x


def _outside(s: State, x: weft.Tensor) -> weft.Tensor:
    (s.outer * x.detach()).sum().backward(retain_graph=True)
    return x


def _hook(s: State, x: weft.Tensor) -> weft.Tensor:
    y = s.w * 3 + x.detach()
    y.register_hook(lambda g: s.log.append(g.tolist()))
    (y * x.detach()).sum().backward()
    return x


def _step(s: State, x: weft.Tensor) -> weft.Tensor:
    s.sgd.zero_grad()
    F.mse_loss(s.w * x.detach(), s.b.detach()).backward()
    s.sgd.step()
    return x


def _norm(s: State, x: weft.Tensor) -> weft.Tensor:
    return x + s.norm(weft.stack([x, x * 2, x - 1])).sum(0)


def _mask(s: State, x: weft.Tensor) -> weft.Tensor:
    picked = x[x > 0]
    return x + picked.numel()


def _argument(s: State, x: weft.Tensor) -> weft.Tensor:
    with weft.no_grad():
        x += 1
    return x * s.w


def _keep(s: State, x: weft.Tensor) -> weft.Tensor:
    s.kept.append((x * 3).detach())
    return x


def _update(s: State, x: weft.Tensor) -> weft.Tensor:
    with weft.no_grad():
        s.w -= 0.1 * x.detach()
    return x * s.w


def _checkpoint(s: State, x: weft.Tensor) -> weft.Tensor:
    y = weft.utils.checkpoint.checkpoint(lambda a: F.dropout(a * s.w, 0.5), x, use_reentrant=False)
    y.sum().backward()
    return x


def _seed(s: State, x: weft.Tensor) -> weft.Tensor:
    weft.manual_seed(11)
    return x + weft.rand(4)


STATEMENTS: dict[str, Callable[[State, weft.Tensor], weft.Tensor]] = {
    f.__name__: f
    for f in (
        _branch, _log, _noise, _inplace, _grads, _outside, _hook, _step, _norm, _mask, _argument, _keep, _update,
        _checkpoint, _seed,
    )
}  # fmt: skip


BREAKS = {"_branch", "_log", "_mask", "_seed"}
"""Without one of these, what the function does in Python is done while tracing only."""


def check(names: list[str], data: list[np.ndarray], raising: int = -1) -> None:
    def run(compiled: bool) -> list[Any]:
        s, out = State(), []

        def fn(x: weft.Tensor) -> Any:
            first = x
            for k, name in enumerate(names):
                if k == raising:
                    raise KeyError(name)
                x = STATEMENTS[name](s, x)
            return x, first

        f = weft.compile(fn) if compiled else fn
        for a in data:
            given = weft.tensor(a)
            try:
                y, same = f(given)
                assert same is given
                if y.requires_grad:
                    y.sum().backward()
                out.append(y.tolist())
            except KeyError:
                out.append("raised")
            out += [given.tolist(), s.seen(), list(s.log), weft.get_rng_state().tolist()]
        return out

    got, want = run(True), run(False)
    _compare(got, want)


def _compare(got: Any, want: Any) -> None:
    if isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            _compare(g, w)
    elif isinstance(want, float):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-4)
    else:
        assert got == want


values = st.lists(st.sampled_from([-2.0, -0.75, 0.25, 1.5]), min_size=4, max_size=4)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(STATEMENTS)), min_size=1, max_size=6),
    st.lists(values, min_size=4, max_size=4),
    st.integers(-3, 5),
)
def test_as_the_uncompiled_function(names: list[str], data: list[list[float]], raising: int) -> None:
    if BREAKS.isdisjoint(names):
        names = ["_log", *names]
    check(names, [np.array(a, np.float32) for a in data], raising)


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_each_before_and_after_a_break(name: str) -> None:
    rng = np.random.default_rng(1)
    check([name, "_log", name], [rng.standard_normal(4).astype(np.float32) for _ in range(4)])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sum().item(), lambda x: x.numpy(), lambda x: x.tolist(), lambda x: bool(x.sum() > 0),
        lambda x: float(x.sum()), lambda x: x if x.sum() > 0 else -x, lambda x: repr(x), lambda x: x[x > 0],
        lambda x: np.asarray(x), lambda x: x.nonzero(), lambda x: x.unique(), lambda x: f"{x.sum():.2f}",
        lambda x: weft.linalg.inv(x.outer(x) + weft.eye(4)), lambda x: [v for v in x.sort().values if v > 0],
        lambda x: weft.masked_select(x, x > 0), lambda x: 3.0 in x, lambda x: weft.allclose(x, x),
        lambda x: x.repeat_interleave(x.long().abs()), lambda x: weft.equal(x, x + 0),
        lambda x: x * weft.compiler.disable(lambda v: 2)(x), lambda x: x.to("dummy:1").tolist(),
    ],
)  # fmt: skip
def test_values_may_be_asked_for_in_every_way(fn: Any) -> None:
    runs = []

    def counted(x: weft.Tensor) -> Any:
        runs.append(1)
        return fn(x)

    f = weft.compile(counted)
    for k in range(1, 5):
        x = weft.tensor([0.5, -1.0, 2.0 * k, 0.25])
        assert repr(f(x)) == repr(fn(x))
        assert len(runs) == k


def test_why_and_how_many_segments() -> None:
    def fn(x: weft.Tensor) -> weft.Tensor:
        y = x * 2
        if y.sum() > 0:
            y = y + y.max().item()
        return y - 1

    f, x, line = weft.compile(fn), weft.ones(3), fn.__code__.co_firstlineno
    found = weft.explain(f, x)
    assert [b.op for b in found.breaks] == ["bool", "item"] and found.segments == 3
    assert [b.location for b in found.breaks] == [f"{__file__}:{line + 2}", f"{__file__}:{line + 3}"]
    assert "3 segments" in str(found) and f"item at {__file__}:{line + 3}" in str(found)
    assert len(f.profile(x)) == 0
    assert weft.explain(weft.compile(lambda x: x + 1), x).breaks == ()


def test_a_function_that_looks_at_values_only_once_is_compiled_afterwards() -> None:
    calls = []

    def fn(x: weft.Tensor) -> weft.Tensor:
        if not calls:
            calls.append(x.sum().item())
        calls.append(0)
        return x + 1

    f = weft.compile(fn)
    for _ in range(4):
        assert f(weft.ones(3)).tolist() == [2.0] * 3
    assert calls == [3.0, 0, 0]


def test_modes_of_modules_are_conditions_of_a_break() -> None:
    class Net(weft.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.runs = 0

        def forward(self, x: weft.Tensor) -> weft.Tensor:
            self.runs += 1
            return x + x.sum().item() if self.training else x * 2

    net = Net()
    f = weft.compile(lambda x: net(x))
    for _ in range(3):
        assert f(weft.ones(2)).tolist() == [3.0, 3.0]
    assert net.runs == 3
    net.eval()
    for _ in range(3):
        assert f(weft.ones(2)).tolist() == [2.0, 2.0]
    assert net.runs == 4


def test_what_vmap_stands_for_has_no_value_still() -> None:
    f = weft.compile(lambda x: weft.vmap(lambda a: a if a.sum() > 0 else -a)(x))
    for _ in range(2):
        with pytest.raises(weft.ArgumentError, match="this tensor has no value"):
            f(weft.ones(2, 3))


def test_compiled_functions_break_within_compiled_functions() -> None:
    inner = weft.compile(lambda x: x * x.sum().item())
    outer = weft.compile(lambda x: inner(inner(x) + 1) - 1)
    for k in range(4):
        x = weft.ones(2) * k
        y = x * (2 * k) + 1
        np.testing.assert_allclose(outer(x).tolist(), (y * y.sum() - 1).tolist())


def test_gradients_of_what_came_before_a_break() -> None:
    w = weft.ones(3, requires_grad=True)
    x = w * 2  # not a leaf

    def fn(x: weft.Tensor) -> weft.Tensor:
        y = x * 3
        y.sum().item()
        return y * w

    f = weft.compile(fn)
    for _ in range(3):
        y = f(x)
        g_w, g_x = weft.autograd.grad(y.sum(), [w, x], retain_graph=True)
        assert g_w.tolist() == [12.0] * 3 and g_x.tolist() == [3.0] * 3


def test_a_compiled_module_is_a_module() -> None:
    net = weft.nn.Sequential(weft.nn.Linear(3, 4), weft.nn.ReLU(), weft.nn.BatchNorm1d(4))
    made = weft.compile(net)
    x = weft.randn(5, 3)
    assert isinstance(made, weft.nn.Module) and made._orig_mod is net and made[0] is net[0] and len(made) == 3
    assert list(made.state_dict()) == [f"_orig_mod.{k}" for k in net.state_dict()]
    assert [id(p) for p in made.parameters()] == [id(p) for p in net.parameters()]
    made.eval()
    assert not net.training and not net[2].training and not made.training
    np.testing.assert_allclose(made(x).tolist(), net(x).tolist(), rtol=1e-5)
    net.train()
    assert made.training
    made.load_state_dict({f"_orig_mod.{k}": v * 0 for k, v in net.state_dict().items()})
    assert made(x).abs().sum().item() == 0
    other = copy.deepcopy(made)
    assert type(other) is type(made) and other[0] is not net[0]
    made.label = "here"
    assert net.label == "here" and pickle.loads(pickle.dumps(made)).label == "here"
    assert weft.compile(made) is made and len(weft.explain(made, x)) > 0
    assert next(n for n, _ in weft.nn.Sequential(made).named_parameters()) == "0._orig_mod.0.weight"


def test_disabled_functions_run_at_every_call() -> None:
    seen = []

    @weft.compiler.disable
    def host(x: weft.Tensor) -> weft.Tensor:
        seen.append(weft.compiler.is_compiling())
        return x + len(seen)

    f = weft.compile(lambda x: host(x * 2))
    assert [f(weft.ones(1)).item() for _ in range(3)] == [3.0, 4.0, 5.0] and seen == [False] * 3
    with pytest.raises(weft.ArgumentError, match="host: is computed at once"):
        weft.compile(lambda x: host(x), fullgraph=True)(weft.ones(1))


def test_reset_traces_anew() -> None:
    runs = []

    @weft.compile(mode="reduce-overhead")
    def f(x: weft.Tensor) -> weft.Tensor:
        runs.append(1)
        return x + 1

    f(weft.ones(2)), f(weft.ones(2))
    weft.compiler.reset()
    f(weft.ones(2)), f(weft.ones(2))
    assert len(runs) == 2


def test_results_that_no_plan_can_make_anew() -> None:
    class Output:
        def __init__(self, x: weft.Tensor) -> None:
            self.parts = {"x": [x]}

    def steps(x: weft.Tensor) -> Any:
        yield x + 1
        yield x + 2

    for fn, read in (
        (lambda x: Output(x * 2), lambda r: r.parts["x"][0]),
        (lambda x: types.SimpleNamespace(y=x * 2), lambda r: r.y),
        (lambda x: collections.defaultdict(list, y=x * 2), lambda r: r["y"]),
        (lambda x: collections.OrderedDict(y=x * 2), lambda r: r["y"]),
        (steps, lambda r: weft.stack(list(r)).sum() - 3),
        (lambda x: map(weft.exp, [x.log() + np.log(2)]), next),
    ):
        f = weft.compile(fn)
        results = [f(weft.full((1,), float(k))) for k in range(1, 5)]
        np.testing.assert_allclose([read(r).item() for r in results], [2, 4, 6, 8], rtol=1e-5)
    assert "a result of type Output" in str(weft.explain(weft.compile(lambda x: Output(x * 2)), weft.ones(1)))
    with pytest.raises(weft.ArgumentError, match="returns an object of type Output that has tensors in it"):
        weft.compile(lambda x: Output(x * 2), fullgraph=True)(weft.ones(1))


def test_a_break_within_vmap_and_scan() -> None:
    w = weft.ones(3)

    def fn(x: weft.Tensor) -> weft.Tensor:
        y = x + weft.rand(3)
        z = weft.vmap(lambda a: a * w.sum().item())(y)
        return weft.scan(lambda c, a: (c + a * w.max().item(), c), weft.zeros(3), z)[0]

    f, x = weft.compile(fn), weft.ones(2, 3)
    weft.manual_seed(0)
    got = [f(x).tolist() for _ in range(3)]
    weft.manual_seed(0)
    np.testing.assert_allclose(got, [fn(x).tolist() for _ in range(3)], rtol=1e-5)
