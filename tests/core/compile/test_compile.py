"""weft.compile: what is checked, what is read and rebound, what is refused, and that it does what the function does."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft
from weft.core.args.structure import mapped
from weft.core.execute import edits, tracing
from weft.nn import functional as F


def arr(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ten(*shape: int, seed: int = 0, **options: Any) -> weft.Tensor:
    return weft.tensor(arr(*shape, seed=seed), **options)


class Counted:
    """A function that says how often Python ran it."""

    def __init__(self, fn: Any) -> None:
        self.fn, self.runs = fn, 0
        self.compiled = weft.compile(self)

    __name__ = __qualname__ = "counted"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.runs += 1
        return self.fn(*args, **kwargs)


def test_same_values_as_the_function_and_traced_once() -> None:
    f = Counted(lambda a, b: (a @ b).softmax(-1).sum(0))
    for seed in range(4):
        a, b = ten(5, 6, seed=seed), ten(6, 7, seed=seed + 50)
        np.testing.assert_allclose(f.compiled(a, b).numpy(), f.fn(a, b).numpy(), rtol=1e-5)
    assert f.runs == 1


@dataclasses.dataclass
class Batch:
    x: weft.Tensor
    y: weft.Tensor | None
    scale: float


class Pair(NamedTuple):
    first: Any
    second: Any


def test_structures_go_in_and_come_out() -> None:
    def fn(batch: Batch, rest: dict[str, Any], *more: Any, flag: bool = False) -> Any:
        out = batch.x * batch.scale + rest["bias"][0]
        return Pair({"out": out, "n": 3}, [more[0] - 1, (None, "text", flag)]), Batch(out * 2, None, 0.5)

    f = Counted(fn)
    for seed in range(3):
        args = Batch(ten(4, seed=seed), None, 2.0), {"bias": [ten(4, seed=seed + 9)]}, ten(2, seed=seed)
        got, want = f.compiled(*args, flag=True), fn(*args, flag=True)
        assert isinstance(got[0], Pair) and isinstance(got[1], Batch)
        np.testing.assert_allclose(got[0].first["out"].numpy(), want[0].first["out"].numpy(), rtol=1e-6)
        np.testing.assert_allclose(got[0].second[0].numpy(), want[0].second[0].numpy(), rtol=1e-6)
        np.testing.assert_allclose(got[1].x.numpy(), want[1].x.numpy(), rtol=1e-6)
        assert got[0].first["n"] == 3 and got[0].second[1] == (None, "text", True) and got[1].y is None
    assert f.runs == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((ten(3),), (ten(4),)),
        ((ten(3),), (ten(3, 1),)),
        ((ten(3),), (ten(3).double(),)),
        ((ten(3),), (ten(3).detach().requires_grad_(),)),
        ((ten(3), 1), (ten(3), 2)),
        ((ten(3), 1), (ten(3), 1.0)),
        ((ten(3), 1), (ten(3), True)),
        ((ten(3), 0.0), (ten(3), -0.0)),
        ((ten(3), "a"), (ten(3), "b")),
        ((ten(3), None), (ten(3), 0)),
        (([ten(3)],), ((ten(3),),)),
        (({"a": ten(3)},), ({"b": ten(3)},)),
        (([ten(3), ten(3)],), ([ten(3)],)),
        ((ten(3),), (weft.tensor([1.0, 2.0, 3.0], device="dummy:0"),)),
        ((ten(3), [1]), (ten(3), [2])),
    ],
)  # fmt: skip
def test_whatever_differs_is_traced_again(first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    f = Counted(lambda *args: weft.zeros(1) + 1)
    for k in range(3):
        f.compiled(*first)
        f.compiled(*second)
        assert f.runs == 2, k


def test_the_grad_mode_is_part_of_the_key() -> None:
    f = Counted(lambda x: x * 2)
    x = ten(3, requires_grad=True)
    assert f.compiled(x).requires_grad
    with weft.no_grad():
        assert not f.compiled(x).requires_grad
    assert f.compiled(x).requires_grad
    assert f.runs == 2


def test_numbers_that_change_warn_about_the_growth() -> None:
    f = weft.compile(lambda x, k: x + k)
    x = ten(3)
    with pytest.warns(UserWarning, match=r"traced 8 times, now for arguments \(f32\[3\], 8\)"):
        for k in range(9):
            f(x, k)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(9, 90):
            f(x, k)
    assert len(f._replays) == 64
    np.testing.assert_allclose(f(x, 0).numpy(), x.numpy())  # the oldest: traced anew


def test_captured_tensors_are_read_at_every_call() -> None:
    w = ten(3)
    f = Counted(lambda x: x * w)
    x = ten(3, seed=1)
    f.compiled(x)
    w.copy_(ten(3, seed=5))
    np.testing.assert_allclose(f.compiled(x).numpy(), arr(3, seed=1) * arr(3, seed=5), rtol=1e-6)
    edits.stand_for(w, ten(3, seed=6).value)
    np.testing.assert_allclose(f.compiled(x).numpy(), arr(3, seed=1) * arr(3, seed=6), rtol=1e-6)
    assert f.runs == 1
    edits.stand_for(w, ten(3, 3, seed=7).value)  # of another shape: traced again
    np.testing.assert_allclose(f.compiled(x).numpy(), arr(3, seed=1) * arr(3, 3, seed=7), rtol=1e-6)
    assert f.runs == 2


def test_unrealized_arguments_and_captures_are_computed_first() -> None:
    lazy = ten(3) * 2 + 1
    captured = weft.arange(3).float() * 3
    f = Counted(lambda x: x - captured)
    want = arr(3) * 2 + 1 - np.arange(3) * 3
    np.testing.assert_allclose(f.compiled(lazy).numpy(), want, rtol=1e-5)
    np.testing.assert_allclose(f.compiled(ten(3) * 2 + 1).numpy(), want, rtol=1e-5)
    assert f.runs == 1


def test_state_moves_on_in_place_where_nobody_else_holds_it() -> None:
    s = weft.zeros(1000).realize()
    f = weft.compile(lambda x: s.mul_(0.5).add_(x))
    x = weft.ones(1000).realize()
    f(x)
    address = s.value.node.storage.memory.address
    for _ in range(3):
        f(x)
    assert s.value.node.storage.memory.address == address
    assert s.numpy()[0] == 1.875


@pytest.mark.parametrize("hold", ["clone", "graph", "result", "value"])
def test_who_holds_an_old_value_keeps_it(hold: str) -> None:
    s = ten(64)
    f = weft.compile(lambda: s.add_(1))
    f()
    before = s.numpy()
    match hold:
        case "clone":
            kept = s.clone()
        case "graph":
            kept = s * 1.0
        case "result":
            kept = weft.compile(lambda: s.flip(0).flip(0))()
        case _:
            kept = weft.zeros(64)
            kept.value = s.value
    for _ in range(3):
        f()
    np.testing.assert_allclose(kept.numpy().reshape(-1), before)
    np.testing.assert_allclose(s.numpy(), before + 3, rtol=1e-6)


def test_who_looks_at_the_same_elements_sees_the_new_value() -> None:
    s = ten(64)
    f = weft.compile(lambda: (s.add_(1), s.reshape(8, 8))[1])
    flat, same, result = s.reshape(8, 8), s.detach(), f()
    for _ in range(3):
        f()
    for kept in (flat, same, result):
        np.testing.assert_allclose(kept.numpy().reshape(-1), arr(64) + 4, rtol=1e-6)


def test_results_belong_to_the_caller() -> None:
    s = ten(16)

    def fn(x: weft.Tensor) -> Any:
        old = s.clone()
        s.add_(x)
        return old, s + 0, s, x

    f = weft.compile(fn)
    x = weft.ones(16).realize()
    seen = []
    for _ in range(4):
        old, new, same, through = f(x)
        assert same is s and through is x
        seen.append((old, new))
    for k, (old, new) in enumerate(seen):
        np.testing.assert_allclose(old.numpy(), arr(16) + k, rtol=1e-5)
        np.testing.assert_allclose(new.numpy(), arr(16) + k + 1, rtol=1e-5)


def test_arguments_may_be_rebound_too_and_aliases_are_told_apart() -> None:
    def fn(a: weft.Tensor, b: weft.Tensor) -> weft.Tensor:
        a += 1
        return a * b

    f = Counted(fn)
    a, b = ten(4), ten(4, seed=1)
    np.testing.assert_allclose(f.compiled(a, b).numpy(), (arr(4) + 1) * arr(4, seed=1), rtol=1e-5)
    np.testing.assert_allclose(a.numpy(), arr(4) + 1, rtol=1e-6)
    c = ten(4)
    np.testing.assert_allclose(f.compiled(c, c).numpy(), (arr(4) + 1) ** 2, rtol=1e-5)
    assert f.runs == 2
    d = ten(4)
    f.compiled(d, b)
    assert f.runs == 2 and d.tolist() == a.tolist()


def test_two_tensors_swap() -> None:
    a, b = ten(4), ten(4, seed=1)

    def fn() -> None:
        old = a.clone()
        a.copy_(b)
        b.copy_(old)

    f = weft.compile(fn)
    for k in range(3):
        f()
        first, second = (0, 1) if k % 2 else (1, 0)
        np.testing.assert_array_equal(a.numpy(), arr(4, seed=first))
        np.testing.assert_array_equal(b.numpy(), arr(4, seed=second))


def test_a_slice_is_assigned_in_place() -> None:
    cache = weft.zeros(2, 8, 4).realize()
    f = weft.compile(lambda k: cache.__setitem__((slice(None), slice(5, 6)), k))
    k = weft.ones(2, 1, 4).realize()
    f(k)
    address = cache.value.node.storage.memory.address
    for n in range(3):
        f(k * (n + 2))
    assert cache.value.node.storage.memory.address == address
    want = np.zeros((2, 8, 4))
    want[:, 5] = 4
    np.testing.assert_array_equal(cache.numpy(), want)


def mlp() -> tuple[list[weft.Tensor], Any]:
    params = [weft.nn.Parameter(arr(*s, seed=k) * 0.3) for k, s in enumerate([(16, 8), (16,), (3, 16), (3,)])]

    def forward(x: weft.Tensor) -> weft.Tensor:
        return F.linear(F.linear(x, params[0], params[1]).relu(), params[2], params[3])

    return params, forward


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("zero_first", [True, False])
def test_training_is_the_same_compiled_and_not(name: str, zero_first: bool) -> None:
    def train(compiled: bool) -> tuple[list[float], list[np.ndarray], list[np.ndarray]]:
        params, forward = mlp()
        options = {"momentum": 0.9} if name == "SGD" else {}
        optimizer = getattr(weft.optim, name)(params, lr=0.05, **options)

        def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
            if zero_first:
                optimizer.zero_grad()
            loss = F.cross_entropy(forward(x), y)
            loss.backward()
            optimizer.step()
            if not zero_first:
                optimizer.zero_grad()
            return loss

        run = weft.compile(step) if compiled else step
        losses = []
        for k in range(6):
            x, y = ten(32, 8, seed=k), weft.tensor(np.arange(32) % 3)
            losses.append(run(x, y).item())
        return losses, [p.numpy() for p in params], [p.grad.numpy() for p in params if p.grad is not None]

    got, want = train(True), train(False)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4)
    assert got[0][-1] < got[0][0]
    assert len(got[2]) == len(want[2])
    for g, w in zip((*got[1], *got[2]), (*want[1], *want[2]), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-5)


def test_gradients_accumulate_over_calls() -> None:
    w = ten(4, requires_grad=True)
    f = Counted(lambda x: (w * x).sum().backward())
    x = ten(4, seed=1)
    for k in range(1, 5):
        f.compiled(x)
        np.testing.assert_allclose(w.grad.numpy(), k * arr(4, seed=1), rtol=1e-5)
    w.grad = None
    f.compiled(x)
    np.testing.assert_allclose(w.grad.numpy(), arr(4, seed=1), rtol=1e-5)
    assert f.runs <= 4


def test_an_old_gradient_is_not_overwritten() -> None:
    w = ten(4, requires_grad=True)

    def step(x: weft.Tensor) -> None:
        w.grad = None
        (w * x).sum().backward()

    f = weft.compile(step)
    f(ten(4, seed=1))
    first = w.grad
    f(ten(4, seed=2))
    np.testing.assert_allclose(first.numpy(), arr(4, seed=1), rtol=1e-6)
    np.testing.assert_allclose(w.grad.numpy(), arr(4, seed=2), rtol=1e-6)


def test_parameters_are_still_leaves_afterwards() -> None:
    w = weft.nn.Parameter(arr(4))

    def step(x: weft.Tensor) -> weft.Tensor:
        w.grad = None
        loss = (w * x).square().sum()
        loss.backward()
        with weft.no_grad():
            w.sub_(0.1 * w.grad)
        return loss

    f = weft.compile(step)
    x = weft.ones(4)
    for _ in range(3):
        assert not f(x).requires_grad
        assert w.requires_grad and w.is_leaf
    w.grad = None
    (w * 3).sum().backward()
    assert w.grad.tolist() == [3.0] * 4


def test_gradients_flow_through_a_result_that_requires_them() -> None:
    w = ten(4, requires_grad=True)
    f = Counted(lambda x: (x * w).tanh())
    g = weft.compile(lambda y: y.square().sum())
    for seed in range(3):
        x = ten(4, seed=seed + 1)
        w.grad = None
        g(f.compiled(x)).backward()
        got = w.grad.numpy()
        w.grad = None
        (x * w).tanh().square().sum().backward()
        np.testing.assert_allclose(got, w.grad.numpy(), rtol=1e-5)
    assert f.runs == 1


def test_grad_of_a_compiled_function_and_compiled_grad() -> None:
    f = weft.compile(lambda x: (x**3).sum())
    x = ten(5)
    want = 3 * arr(5) ** 2
    np.testing.assert_allclose(weft.grad(f)(x).numpy(), want, rtol=1e-5)
    np.testing.assert_allclose(weft.compile(weft.grad(lambda x: (x**3).sum()))(x).numpy(), want, rtol=1e-5)
    second = weft.compile(weft.grad(lambda x: weft.grad(lambda x: (x**3).sum())(x).sum()))
    np.testing.assert_allclose(second(x).numpy(), 6 * arr(5), rtol=1e-5)


def test_backward_cannot_leave_the_function() -> None:
    w = ten(4, requires_grad=True)
    outside = w * 2
    with pytest.raises(
        weft.GradError, match="cannot reach past a tensor that was computed with gradients outside"
    ):
        weft.compile(lambda: (outside * 3).sum().backward(), fullgraph=True)()
    assert w.grad is None


def test_random_numbers_are_new_at_every_call_and_those_of_the_seed() -> None:
    def fn() -> Any:
        return weft.rand(4), weft.randn(3), weft.randint(0, 100, (5,))

    f = Counted(fn)
    weft.manual_seed(3)
    got = [[t.tolist() for t in f.compiled()] for _ in range(3)]
    weft.manual_seed(3)
    want = [[t.tolist() for t in fn()] for _ in range(3)]
    assert f.runs == 1
    for g, w in zip(got, want, strict=True):
        for a, b in zip(g, w, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    assert got[0] != got[1]


def test_generators_of_ones_own() -> None:
    g = weft.Generator(5)
    f = weft.compile(lambda: weft.rand(4, generator=g))
    first, second = f().tolist(), f().tolist()
    assert first != second
    g.manual_seed(5)
    assert f().tolist() == first
    assert weft.rand(4, generator=g).tolist() == second


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sum().item(), lambda x: x.numpy(), lambda x: x.tolist(), lambda x: bool(x.sum() > 0),
        lambda x: float(x.sum()), lambda x: x if x.sum() > 0 else -x, lambda x: repr(x), lambda x: x[x > 0],
        lambda x: np.asarray(x), lambda x: range(x.sum().int()),
    ],
)  # fmt: skip
def test_with_fullgraph_asking_for_a_value_inside_is_refused_with_the_line(fn: Any) -> None:
    x = ten(4)
    with pytest.raises(weft.ArgumentError, match="while it is traced") as caught:
        weft.compile(fn, fullgraph=True)(x)
    assert f"{__file__}:{fn.__code__.co_firstlineno}" in str(caught.value) or "test_compile.py" in str(
        caught.value
    )
    assert tracing.current() is None
    np.testing.assert_allclose((x + 1).numpy(), arr(4) + 1, rtol=1e-6)


def test_realize_inside_does_nothing() -> None:
    f = weft.compile(lambda x: (x + 1).realize() * 2)
    np.testing.assert_allclose(f(ten(4)).numpy(), (arr(4) + 1) * 2, rtol=1e-6)


def test_values_that_depend_on_no_tensor_may_be_read() -> None:
    f = weft.compile(lambda x: x * weft.arange(5).sum().item())
    np.testing.assert_allclose(f(ten(4)).numpy(), arr(4) * 10, rtol=1e-6)


def test_with_fullgraph_what_happens_on_the_host_is_refused() -> None:
    with pytest.raises(weft.ArgumentError, match="randperm: is computed at once"):
        weft.compile(lambda: weft.randperm(4), fullgraph=True)()
    with pytest.raises(weft.DTypeError, match=r"an argument is a NumPy array; pass weft.tensor"):
        weft.compile(lambda x: x)(np.zeros(3))


def test_a_failed_trace_of_a_whole_leaves_everything_as_it_was() -> None:
    s = ten(4, requires_grad=True)
    kept: list[weft.Tensor] = []

    def fn(x: weft.Tensor) -> None:
        (s * x).sum().backward()
        with weft.no_grad():
            s.add_(1)
        x += 1
        kept.append(x * 2)
        raise RuntimeError("on purpose")

    x = ten(4, seed=1)
    with pytest.raises(RuntimeError, match="on purpose"):
        weft.compile(fn, fullgraph=True)(x)
    np.testing.assert_array_equal(s.detach().numpy(), arr(4))
    np.testing.assert_array_equal(x.numpy(), arr(4, seed=1))
    assert s.grad is None and s.requires_grad
    with pytest.raises(weft.ArgumentError, match="it has no value"):
        kept[0].numpy()


def test_state_made_on_the_first_call() -> None:
    class Average:
        """Keeps a running sum that it makes when it is first used, and its latest input."""

        def __init__(self) -> None:
            self.total: weft.Tensor | None = None

        @weft.compile
        def update(self, x: weft.Tensor) -> weft.Tensor:
            if self.total is None:
                self.total = weft.zeros_like(x)
            self.total += x
            self.latest = x * 1
            return self.total / 2

    a = Average()
    for k in range(1, 5):
        x = ten(4, seed=k)
        a.update(x)
        np.testing.assert_allclose(a.latest.numpy(), arr(4, seed=k))
    np.testing.assert_allclose(a.total.numpy(), sum(arr(4, seed=k) for k in range(1, 5)), rtol=1e-5)


def test_as_decorator_and_method_and_on_modules() -> None:
    class Net(weft.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = weft.nn.Linear(4, 3)

        @weft.compile
        def forward(self, x: weft.Tensor) -> weft.Tensor:
            return self.lin(x).relu()

    net, x = Net(), ten(2, 4)
    with weft.no_grad():
        np.testing.assert_allclose(net(x).numpy(), net.lin(x).relu().numpy(), rtol=1e-5)
        whole = weft.compile(net.lin)
        np.testing.assert_allclose(whole(x).numpy(), net.lin(x).numpy(), rtol=1e-5)

    @weft.compile()
    def double(x: weft.Tensor) -> weft.Tensor:
        """Twice."""
        return x * 2

    assert double.__doc__ == "Twice." and "double" in repr(double)
    assert weft.compile(double) is double


def test_training_mode_is_told_apart() -> None:
    drop = weft.nn.Sequential(weft.nn.Dropout(0.5))
    f = weft.compile(lambda x: drop(x))
    x = weft.ones(1000)
    assert 0.3 < (f(x) == 0).float().mean().item() < 0.7
    drop.eval()
    assert (f(x) == 0).sum().item() == 0
    drop.train()
    assert 0.3 < (f(x) == 0).float().mean().item() < 0.7


def test_compiled_functions_nest() -> None:
    inner = Counted(lambda x: x * 2)
    outer = Counted(lambda x: inner.compiled(x) + 1)
    for seed in range(3):
        np.testing.assert_allclose(
            outer.compiled(ten(3, seed=seed)).numpy(), arr(3, seed=seed) * 2 + 1, rtol=1e-6
        )
    assert (outer.runs, inner.runs) == (1, 1)


def test_several_devices() -> None:
    f = Counted(lambda a, b: (a.to("dummy:1") * b).to("cpu") + 1)
    for seed in range(3):
        a, b = ten(3, seed=seed, device="dummy:0"), ten(3, seed=7, device="dummy:1")
        np.testing.assert_allclose(
            f.compiled(a, b).numpy(), arr(3, seed=seed) * arr(3, seed=7) + 1, rtol=1e-6
        )
    assert f.runs == 1


def test_several_devices_are_one_plan_which_is_not_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.scheduler import signature

    s = weft.zeros(3, device="dummy:1").realize()
    f = Counted(lambda a: s.add_(a.to("dummy:1")).to("dummy:0") * a)
    want = arr(3, seed=0) * 0
    for seed in range(4):
        if seed == 1:
            monkeypatch.setattr(signature, "Signature", None)  # a walk of a graph would end here
        want = want + arr(3, seed=seed)
        got = f.compiled(ten(3, seed=seed, device="dummy:0"))
        np.testing.assert_allclose(got.numpy(), want * arr(3, seed=seed), rtol=1e-5)
    np.testing.assert_allclose(s.numpy(), want, rtol=1e-5)
    assert f.runs == 1


def test_a_training_step_over_two_devices_is_that_of_one() -> None:
    def trained(devices: tuple[str, str]) -> list[np.ndarray]:
        weft.manual_seed(0)
        first = weft.nn.Linear(6, 8).to(devices[0])
        second = weft.nn.Linear(8, 3).to(devices[1])
        optimizer = weft.optim.Adam([*first.parameters(), *second.parameters()], lr=0.1)

        def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
            optimizer.zero_grad()
            loss = ((second(first(x).relu().to(devices[1])) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        compiled = weft.compile(step)
        losses = [
            compiled(ten(4, 6, seed=k, device=devices[0]), ten(4, 3, seed=9, device=devices[1])).numpy()
            for k in range(4)
        ]
        return [*losses, *(p.detach().numpy() for p in optimizer.param_groups[0]["params"])]

    for got, want in zip(trained(("dummy:0", "dummy:1")), trained(("dummy:0", "dummy:0")), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_call_over_devices_that_fails_changes_nothing() -> None:
    from weft.backends.dummy.faults import Faults
    from weft.backends.registry import open_device

    s = weft.zeros(3, device="dummy:1").realize()
    f = weft.compile(lambda a: s.add_(a.to("dummy:1")).to("dummy:0") * a)
    a = ten(3, device="dummy:0")
    f(a)
    device: Any = open_device("dummy:0")
    device.faults = Faults(launches=frozenset({0}))
    try:
        with pytest.raises(weft.DeviceError, match="on dummy:0"):
            f(a)
    finally:
        device.faults = Faults()
    np.testing.assert_allclose(s.numpy(), arr(3), rtol=1e-6)
    np.testing.assert_allclose(f(a).numpy(), arr(3) * 2 * arr(3), rtol=1e-5)


def test_runtime_variables_are_bound_outside() -> None:
    n = weft.Variable("n", 1, 6)
    f = Counted(lambda x: x[:n].sum())
    for seed in range(2):
        y = f.compiled(ten(6, seed=seed))
        for k in (1, 4, 6):
            np.testing.assert_allclose(weft.bind(y, n=k).item(), arr(6, seed=seed)[:k].sum(), rtol=1e-4)
    assert f.runs == 1


def test_results_without_computation() -> None:
    c = weft.tensor([1.0, 2.0])
    f = weft.compile(lambda x: (x, c, weft.tensor([5, 6]), weft.zeros(2), 7, None))
    x = ten(2)
    for _ in range(2):
        got = f(x)
        assert got[0] is x and got[1] is c and got[2].tolist() == [5, 6] and got[3].tolist() == [0, 0]
        assert got[4:] == (7, None)
    assert weft.compile(lambda: None)() is None


def test_threads_share_a_function() -> None:
    s = weft.zeros(64).realize()
    f = weft.compile(lambda x: s.add_(1).sum() * 0 + x * 2)
    wrong = []

    def work(seed: int) -> None:
        for _ in range(50):
            x = ten(64, seed=seed)
            if not np.allclose(f(x).numpy(), arr(64, seed=seed) * 2):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and s.tolist() == [200.0] * 64


def test_other_threads_see_the_tensors_as_they_are_while_one_traces() -> None:
    s = ten(8).realize()
    inside, go_on = threading.Event(), threading.Event()

    def fn() -> None:
        s.add_(1)
        inside.set()
        go_on.wait(10)

    thread = threading.Thread(target=weft.compile(fn))
    thread.start()
    inside.wait(10)
    seen = (s * 1).numpy()
    go_on.set()
    thread.join()
    np.testing.assert_array_equal(seen, arr(8))
    np.testing.assert_allclose(s.numpy(), arr(8) + 1, rtol=1e-6)


def test_explain_and_profile() -> None:
    f = weft.compile(lambda x: (x * 2 + 1).softmax(-1))
    x = ten(64, 64)
    explained = f.explain(x)
    assert len(explained.kernels) == 1
    profile = f.profile(x)
    assert len(profile) == 1 and profile[0].ns > 0 and profile.ns == profile[0].ns
    assert "GB/s" in str(profile) and "in all" in str(profile)


def test_what_cannot_be_compiled() -> None:
    with pytest.raises(weft.DTypeError, match="compile: expected a function, got 3"):
        weft.compile(3)  # type: ignore[call-overload]


def test_tensors_in_nested_containers_are_changed_once_each() -> None:
    t, seen = ten(2), []

    def doubled(x: weft.Tensor) -> weft.Tensor:
        seen.append(x)
        return x * 2

    found = mapped({"x": [t, 1], "y": Pair(t, (t,)), "z": None}, doubled)
    assert seen == [t]
    assert found["x"][0] is found["y"][0] is found["y"][1][0] and found["x"][1] == 1
    assert isinstance(found["y"], Pair) and found["z"] is None
    np.testing.assert_array_equal(found["x"][0].numpy(), t.numpy() * 2)


def test_functions_that_differ_in_a_number_share_a_plan_and_stay_apart() -> None:
    """From the second on the number is in memory of the plan's own, also on the shortest way."""
    x = weft.tensor([1.0, 2.0, 3.0])
    for k in (5.0, 3.0, 2.0, 7.0):
        f = weft.compile(lambda x, k=k: x * 2 + k)
        for _ in range(3):
            assert f(x).tolist() == [2 + k, 4 + k, 6 + k]
