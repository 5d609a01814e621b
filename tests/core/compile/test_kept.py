"""What a compiled function computes from what it only reads is kept, until that is written in any way."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft import Tensor, nn
from weft.backends import registry
from weft.core.compile.kept import MAX_UNUSED, Kept, Part
from weft.core.compile.plan_replay import PlanReplay
from weft.errors import MemoryPlanError

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))

N = 6


def _state() -> Tensor:
    return weft.tensor(np.linspace(-1, 1, N), dtype=weft.float32).realize()


def _kept(f: Any) -> Kept:
    replay = f._recent
    assert isinstance(replay, PlanReplay) and replay._kept is not None
    return replay._kept


def _expected(x: Tensor, *tables: Tensor) -> Any:
    out = x.numpy().copy()
    for t in tables:
        out = out * np.exp(t.numpy())
    return out


def _compiled(*tables: Tensor) -> Any:
    def f(x: Tensor) -> Tensor:
        for t in tables:
            x = x * t.exp()
        return x

    return weft.compile(f)


def _check(f: Any, x: Tensor, *tables: Tensor) -> None:
    np.testing.assert_allclose(f(x).numpy(), _expected(x, *tables), rtol=1e-5)


def test_what_stays_is_computed_once() -> None:
    t, x = _state(), weft.ones(N)
    f = _compiled(t)
    memories = set[int]()
    for _ in range(4):
        _check(f, x, t)
        now = _kept(f).current
        assert now is not None
        memories.add(id(now.values[0].memory))
    assert len(memories) == 1 and _kept(f).nbytes == 4 * N
    assert "kept from call to call: f32[6], in all 24 bytes" in str(weft.explain(f, x))


def _by_compiled_update(t: Tensor) -> None:
    weft.compile(lambda: t.add_(1.0))()


def _by_optimizer(t: Tensor) -> None:
    t.requires_grad_()
    (t * 2).sum().backward()
    weft.optim.SGD([t], lr=0.5).step()
    t.requires_grad_(False)


def _by_thread(t: Tensor) -> None:
    thread = threading.Thread(target=_by_compiled_update, args=(t,))
    thread.start()
    thread.join()


def _by_data(t: Tensor) -> None:
    t.data = weft.ones(N) * 0.25


def _by_module(t: Tensor) -> None:
    module = nn.Module()
    module.register_buffer("t", t)
    module.load_state_dict({"t": weft.full((N,), 0.125)})


def _by_view(t: Tensor) -> None:
    t[2:4].mul_(3.0)


def _by_numpy(t: Tensor) -> None:
    array = np.array([0.5] * N, np.float32)
    t.copy_(weft.from_numpy(array))
    array[:] = 7.0


WRITES: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda t: t.add_(0.5),
    "element": lambda t: t.__setitem__(1, 2.0),
    "view": _by_view,
    "data": _by_data,
    "compiled": _by_compiled_update,
    "optimizer": _by_optimizer,
    "module": _by_module,
    "thread": _by_thread,
    "numpy": _by_numpy,
    "zero": lambda t: t.zero_(),
    "dlpack": lambda t: t.copy_(weft.from_dlpack(np.full(N, 0.75, np.float32))),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_after_a_write_it_is_computed_anew(write: Callable[[Tensor], object]) -> None:
    t, x = _state(), weft.ones(N)
    f = _compiled(t)
    for _ in range(3):
        _check(f, x, t)
    for _ in range(2):
        before = t.numpy().copy()
        write(t)
        _check(f, x, t)
        _check(f, x, t)
        assert write is WRITES["zero"] or _ or not np.array_equal(before, t.numpy())


def test_a_compiled_update_still_writes_in_place() -> None:
    t, x = _state(), weft.ones(N)
    update, f = weft.compile(lambda: t.add_(1.0)), _compiled(t)
    update()
    _check(f, x, t)
    memory = id(t.value.node.storage.memory)
    update()
    assert id(t.value.node.storage.memory) == memory
    _check(f, x, t)


@given(st.lists(st.tuples(st.sampled_from([*WRITES, "call", "call"]), st.integers(0, 1)), max_size=12))
@settings(max_examples=max(EXAMPLES, 40), deadline=None)
def test_random_programs_of_writes_and_calls(steps: list[tuple[str, int]]) -> None:
    tables, x = [_state(), _state()], weft.ones(N)
    f = _compiled(*tables)
    for name, k in steps:
        if name == "call":
            _check(f, x, *tables)
        else:
            WRITES[name](tables[k])
            tables[k].clamp_(-2, 2)
    _check(f, x, *tables)


def test_what_changes_at_each_call_is_kept_no_longer() -> None:
    t, x = _state(), weft.ones(N)
    f = _compiled(t)
    for _ in range(MAX_UNUSED + 4):
        t.mul_(0.5)
        _check(f, x, t)
    replay = f._recent
    assert replay._heir is not None and replay._heir._kept is None
    _check(f, x, t)


def test_two_calls_for_each_write_keep_it() -> None:
    t, x = _state(), weft.ones(N)
    f = _compiled(t)
    for _ in range(MAX_UNUSED + 4):
        t.mul_(0.5)
        _check(f, x, t)
        _check(f, x, t)
    assert f._recent._heir is None


def test_what_is_kept_goes_with_what_it_was_computed_from() -> None:
    t, x = _state(), weft.ones(N)
    f = _compiled(t)
    _check(f, x, t)
    now = _kept(f).current
    assert now is not None and now.values[0].memory is not None
    t.zero_()
    t.realize()
    assert now.values[0].memory is None
    _check(f, x, t)
    weak = ref(_kept(f).current.values[0])  # pyright: ignore[reportOptionalMemberAccess]
    del f
    gc.collect()
    assert weak() is None


def test_tables_that_constants_make_are_kept() -> None:
    def f(x: Tensor) -> Tensor:
        angles = weft.arange(x.shape[0]).reshape(-1, 1) * weft.arange(x.shape[1]).float()
        return x * angles.cos()

    compiled = weft.compile(f)
    for rows in (32, 32, 48, 48):
        x = weft.randn(rows, 16)
        angles = np.arange(rows)[:, None] * np.arange(16)
        np.testing.assert_allclose(compiled(x).numpy(), x.numpy() * np.cos(angles), rtol=1e-3, atol=1e-4)
        assert _kept(compiled).lines() == (f"f32[{rows}, 16]", f"in all {64 * rows:,} bytes")


def test_traces_and_functions_share_what_they_keep() -> None:
    w = weft.randn(256, 512).realize()
    f, g = weft.compile(lambda x: x @ w.T), weft.compile(lambda x: (x @ w.T).relu())
    found: dict[str, set[int]] = {}
    for rows in (8, 40, 300):
        for h in (f, g):
            x = weft.randn(rows, 512)
            h(x)
            h(x)
            (value,) = h._recent._kept.current.values
            found.setdefault(_kept(h).lines()[0], set()).add(id(value.memory))
    assert all(len(memories) == 1 for memories in found.values()), "one for each layout"
    assert len(found) == 1 if registry.open_device("cpu:0").info.vector_bytes == 64 else len(found) < 3, (
        "few sizes need one of their own"
    )
    w.zero_()
    assert f(x).numpy().max() == g(x).numpy().max() == 0


def test_nothing_is_kept_of_arguments_of_state_or_of_parameters_in_training() -> None:
    t, w = _state(), nn.Parameter(_state())
    of_argument = weft.compile(lambda x, t: x * t.exp())
    of_argument(weft.ones(N), t)
    of_argument(weft.ones(N), t)

    def state(x: Tensor) -> Tensor:
        y = x * t.exp()
        t.add_(1.0)
        return y

    def step(x: Tensor) -> Tensor:
        loss = (x * w.exp()).sum()
        loss.backward()
        return loss.detach()

    compiled = [weft.compile(state), weft.compile(step)]
    for f in compiled:
        for _ in range(3):
            f(weft.ones(N))
    for f in (of_argument, *compiled):
        for replays in f._replays.values():
            assert all(not isinstance(r, PlanReplay) or r._kept is None for r in replays)


def test_a_network_computes_the_same_after_its_weights_change(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5)
    )
    x = weft.tensor(rng.standard_normal((2, 3, 6, 6)), dtype=weft.float32)
    net(x)
    net.eval()
    f = weft.compile(net)
    other = {k: v.clone() * 1.5 for k, v in net.state_dict().items() if v.dtype is weft.float32}
    with weft.no_grad():
        for _ in range(3):
            np.testing.assert_allclose(f(x).numpy(), net(x).numpy(), rtol=2e-5, atol=1e-5)
        before = f(x).numpy()
        net.load_state_dict(other, strict=False)
        np.testing.assert_allclose(f(x).numpy(), net(x).numpy(), rtol=2e-5, atol=1e-5)
        assert not np.allclose(f(x).numpy(), before)


@given(
    rows=st.sampled_from([(8,), (13,), (2, 20), (3, 1, 7), (97,)]),
    n=st.integers(1, 9).map(lambda v: 16 * v) | st.integers(60, 90),
    k=st.sampled_from([64, 65, 200, 900]),
    transposed=st.booleans(),
    activation=st.sampled_from([None, "relu", "tanh"]),
)
@settings(max_examples=max(EXAMPLES, 12), deadline=None)
def test_products_with_kept_panels_are_the_same(
    rows: tuple[int, ...], n: int, k: int, transposed: bool, activation: str | None
) -> None:
    rng = np.random.default_rng(n * k)
    weight = rng.standard_normal((n, k) if transposed else (k, n)).astype(np.float32)
    w, x = weft.tensor(weight), weft.tensor(rng.standard_normal((*rows, k)).astype(np.float32))

    def f(x: Tensor) -> Tensor:
        y = x @ (w.T if transposed else w)
        return y if activation is None else getattr(y, activation)()

    compiled = weft.compile(f)
    for _ in range(2):
        found = compiled(x).numpy()
        expected = x.numpy().astype(np.float64) @ (w.numpy().T if transposed else w.numpy())
        after = {None: lambda a: a, "relu": lambda a: np.maximum(a, 0), "tanh": np.tanh}[activation]
        np.testing.assert_allclose(found, after(expected), rtol=1e-4, atol=1e-3)
        w.mul_(-0.5)


def test_weights_in_panels_are_not_packed_again() -> None:
    w, x = weft.randn(256, 512).realize(), weft.randn(40, 512)
    f = weft.compile(lambda x: x @ w.T, dynamic=False)
    for _ in range(2):
        np.testing.assert_allclose(f(x).numpy(), x.numpy() @ w.numpy().T, rtol=1e-4, atol=1e-3)
        assert _kept(f).nbytes == 4 * 256 * 512
        (kernel,) = weft.explain(f, x)
        assert "no panel" in str(kernel.rules) and "alloc panel" not in str(kernel.loops)
        w.zero_()


def test_where_memory_does_not_suffice_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(part: Part, sources: Any) -> Any:
        raise MemoryPlanError("no room")

    monkeypatch.setattr(Part, "computed", full)
    t, x = _state(), weft.ones(N)
    f = _compiled(t)
    for _ in range(3):
        _check(f, x, t)
    assert f._recent._heir is not None and f._recent._heir._kept is None
