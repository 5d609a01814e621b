"""Plans within limits: the bits of the plan without one, no byte more than was planned, and refused only where said."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft
from benchmarks.sharding import random_graph
from weft import nn
from weft.backends import registry
from weft.backends.dummy import device as dummy
from weft.nn import functional as F
from weft.testing import farm

LEAST = re.compile(r"a limit of ([\d,]+) for ([\w:]+)")


@pytest.fixture
def pool() -> Iterator[dummy.DummyDevice]:
    """Devices far from the host, whose pools count what they are asked for."""
    backend = dummy.DummyBackend(
        [dummy.describe(k, "tight", flops=1e9, link_bandwidth=1e5) for k in range(2)], "tight"
    )
    registry.register(backend)
    yield backend.device(0)
    registry.unregister("tight")


def data(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bits(x: weft.Tensor) -> bytes:
    return x.detach().numpy().tobytes()


@pytest.mark.parametrize("seed", range(16))
def test_random_graphs_within_random_limits(seed: int, pool: dummy.DummyDevice) -> None:
    leaves = [weft.tensor(data(16, 16, seed=k), device="tight:0").realize() for k in range(3)]
    used = pool.used_bytes()

    def run(limit: int | None) -> tuple[list[bytes], int]:
        results = random_graph(seed, leaves)
        pool.pool.peak_bytes = pool.used_bytes()
        with weft.memory_limit(limit, "tight:0"):
            weft.realize(*results)
        return [bits(x) for x in results], pool.pool.peak_bytes

    want, most = run(None)
    with pytest.raises(weft.MemoryPlanError) as refused:
        run(used + 1)
    found = LEAST.search(str(refused.value))
    assert found is not None
    assert found[2] == "tight:0"
    lowest = int(found[1].replace(",", ""))
    assert lowest <= most
    assert pool.used_bytes() == used
    r = random.Random(seed)
    for limit in (lowest, r.randint(lowest, most), most - 1):
        if limit >= lowest:
            got, peak = run(limit)
            assert got == want
            assert peak <= limit
    for limit in (lowest - 1, (used + lowest) // 2):
        try:
            assert run(limit)[0] == want
        except weft.MemoryPlanError:
            assert pool.used_bytes() == used
    assert run(None)[0] == want


class Net(nn.Module):
    """Blocks of a norm and two layers around a residual, or of convolutions with batch norms."""

    def __init__(self, kind: str, blocks: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "gpt":
            self.embedding = nn.Embedding(32, 16)
            self.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(2 * blocks)])
            self.qkv = nn.ModuleList([nn.Linear(16, 48) for _ in range(blocks)])
            self.up = nn.ModuleList([nn.Linear(16, 32) for _ in range(blocks)])
            self.down = nn.ModuleList([nn.Linear(32, 16) for _ in range(blocks)])
        else:
            self.stem = nn.Conv2d(3, 8, 3, padding=1)
            self.convs = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(blocks)])
            self.norms = nn.ModuleList([nn.BatchNorm2d(8) for _ in range(blocks)])
        self.head = nn.Linear(16 if kind == "gpt" else 8, 32)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        if self.kind != "gpt":
            x = self.stem(x).relu()
            for conv, norm in zip(self.convs, self.norms, strict=True):
                x = (x + norm(conv(x))).relu()
            return self.head(x.mean((2, 3)))
        x = self.embedding(x)
        for k, (qkv, up, down) in enumerate(zip(self.qkv, self.up, self.down, strict=True)):
            q, key, v = (
                qkv(self.norms[2 * k](x)).reshape(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
            )
            y = F.scaled_dot_product_attention(q, key, v, is_causal=True)
            x = x + y.permute(0, 2, 1, 3).reshape(*x.shape)
            x = x + down(F.gelu(up(self.norms[2 * k + 1](x))))
        return self.head(x.mean(1))


def trained(kind: str, shares: tuple[float, ...]) -> list[bytes]:
    """The bits of losses and parameters after a few steps, the first one in all memory, two in each of these shares of
    the workspace of the plan that keeps all values."""
    weft.manual_seed(0)
    net = Net(kind, 4 if kind == "gpt" else 8)
    inputs = data(8, 3, 12, 12) if kind != "gpt" else np.random.default_rng(0).integers(0, 32, (8, 24))
    x, y = weft.tensor(inputs), weft.tensor(np.arange(8) % 32)
    optimizer = weft.optim.AdamW(net.parameters(), lr=1e-2)

    @weft.compile
    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    losses = [step(x, y)]
    replay: Any = step._recent
    workspace, results = replay._plan.commands.workspace_bytes, 2 * replay._plan.result_bytes()
    place: Any = registry.open_device("cpu")
    for share in shares:
        place._workspace = None
        allocator = place.runtime.allocator
        allocator.use()  # what has died is counted as idle
        with weft.memory_limit(None if share == 1 else allocator._live + results + int(share * workspace)):
            losses += [step(x, y) for _ in range(2)]
        if share < 1:
            within = replay._within._plan
            assert within.commands.workspace_bytes <= share * workspace + results
            assert within.within.lines
    return [bits(t) for t in (*losses, *net.parameters(), *net.buffers())]


@pytest.mark.parametrize(("kind", "shares"), [("gpt", (1 / 2, 1 / 3)), ("resnet", (2 / 3, 1 / 2))])
def test_training_steps_in_a_part_of_their_memory(kind: str, shares: tuple[float, ...]) -> None:
    assert trained(kind, (*shares, 1)) == trained(kind, (1, 1, 1))


def test_the_cpu_computes_within_a_limit_what_it_computes_without() -> None:
    leaf = weft.tensor(data(256, 256)).realize()

    def run() -> weft.Tensor:
        values = [leaf]
        for _ in range(12):
            values.append((values[-1] @ leaf * 0.06).contiguous())
        for v in reversed(values):
            values[-1] = (values[-1] * v + v.sum(0)).contiguous()
        return values[-1]

    place: Any = registry.open_device("cpu")
    place._workspace = None
    room = _counted(place) + 10 * (1 << 18)
    want = bits(run())
    assert _counted(place) > room, "the workspace that all values are kept in is there"
    with weft.memory_limit(room):
        assert bits(run()) == want
        assert _counted(place) <= room


def _counted(place: Any) -> int:
    """The bytes that count against the pool's limit: small blocks that earlier tests left do."""
    return place.used_bytes() + place.idle_bytes()


def test_the_peak_is_the_planned_one_to_the_byte(pool: dummy.DummyDevice) -> None:
    leaf = weft.tensor(data(32, 32), device="tight:0").realize()

    def run() -> weft.Tensor:
        values = [leaf]
        for _ in range(8):
            values.append((values[-1] @ leaf * 0.1).contiguous())
        for v in reversed(values):
            values[-1] = (values[-1] * v + v.sum(0)).contiguous()
        return values[-1]

    want, used = bits(run()), pool.used_bytes()
    with weft.memory_limit(used + 6 * 4096, "tight:0"):
        y = run()
        text = str(weft.explain(y))
        pool.pool.peak_bytes = pool.used_bytes()
        y.realize()
    planned = re.search(r"within [\d,]+ bytes: takes ([\d,]+)", text)
    assert planned is not None
    assert pool.pool.peak_bytes - used == int(planned[1].replace(",", ""))
    assert "recomputed" in text
    assert bits(y) == want


def test_explain_lists_kernels_as_often_as_they_run(pool: dummy.DummyDevice) -> None:
    leaf = weft.tensor(data(32, 32), device="tight:0").realize()
    a = (leaf @ leaf).contiguous()
    b = a
    for _ in range(5):
        b = (b @ leaf).contiguous()
    y = a + b.tanh()
    count = len(weft.explain(y))
    with weft.memory_limit(pool.used_bytes() + 3 * 4096, "tight:0"):
        found = weft.explain(y)
        assert len(found) == count + 1
        assert any("recomputed, 4,096 bytes" in line for line in found.shared)
        assert len(weft.explain(y, time=True)) == count + 1
    with weft.memory_limit(pool.used_bytes() + 4096, "tight:0"):
        assert any("would do" in line for line in weft.explain(y).shared)


def test_a_refused_step_leaves_everything_as_it_was(pool: dummy.DummyDevice) -> None:
    w = weft.tensor(data(32, 32), device="tight:0").realize()
    x = weft.tensor(data(32, 32, seed=1), device="tight:0").realize()

    @weft.compile
    def step(x: weft.Tensor) -> weft.Tensor:
        nonlocal w
        y = ((x @ w).contiguous() @ w).contiguous()
        w -= 0.1 * (y @ x)
        return (y * w).sum()

    step(x)
    before, used = bits(w), pool.used_bytes()
    with weft.memory_limit(used + 1, "tight:0"):
        for _ in range(2):
            with pytest.raises(weft.MemoryPlanError, match=r"would do: .* or \d+ devices"):
                step(x)
    assert bits(w) == before
    assert pool.used_bytes() == used
    step(x)
    assert bits(w) != before


def test_parts_of_a_plan_over_devices_keep_within_their_pools(pool: dummy.DummyDevice) -> None:
    leaf = weft.tensor(data(32, 32), device="tight:0").realize()

    def run() -> weft.Tensor:
        a = (leaf @ leaf).contiguous()
        b = a
        for _ in range(5):
            b = (b @ leaf).contiguous()
        return (a + b.tanh()).to("tight:1") * 2.0

    want, used = bits(run()), pool.used_bytes()
    pool.pool.peak_bytes = used
    with weft.memory_limit(used + 3 * 4096, "tight:0"):
        assert bits(run()) == want
    assert pool.pool.peak_bytes <= used + 3 * 4096


def test_pools_that_devices_share_have_one_limit() -> None:
    infos = [dummy.describe(k, "shared", pool="one") for k in range(2)]
    registry.register(dummy.DummyBackend(infos, "shared"))
    try:
        with weft.memory_limit(1 << 12, "shared:0"):
            other = registry.open_device("shared:1")
            assert registry.available_bytes(other) == 1 << 12
            with weft.memory_limit(1 << 10, "shared:1"):
                assert registry.available_bytes(registry.open_device("shared:0")) == 1 << 10
            assert registry.limit_set(other) == 1 << 12
    finally:
        registry.unregister("shared")


def test_what_is_updated_may_be_read_afterwards(pool: dummy.DummyDevice) -> None:
    leaf = weft.tensor(data(16, 16), device="tight:0").realize()
    rows = weft.tensor(np.arange(16)[::-1].copy(), device="tight:0").realize()

    def run() -> weft.Tensor:
        a = (leaf @ leaf).contiguous()
        b = (a @ leaf).contiguous()
        c = a.clone().index_add_(0, rows, b).contiguous()
        return (c @ a) + (b @ c).contiguous().tanh()

    want, used = bits(run()), pool.used_bytes()
    with pytest.raises(weft.MemoryPlanError) as refused, weft.memory_limit(used + 1, "tight:0"):
        run().realize()
    found = LEAST.search(str(refused.value))
    assert found is not None
    with weft.memory_limit(int(found[1].replace(",", "")), "tight:0"):
        assert bits(run()) == want


def test_state_leaves_and_the_limit_that_is_named_does_for_a_training_step() -> None:
    with farm(1, name="state", host_memory=False) as made:
        (name,), (pool,) = made.names, made.devices
        with weft.device(name):
            weft.manual_seed(0)
            net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(32, 32), nn.ReLU())])
            x = weft.randn(64, 32).realize()
        optimizer = weft.optim.Adam(net.parameters())

        @weft.compile
        def step(x: weft.Tensor) -> weft.Tensor:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        for _ in range(3):
            step(x).item()
        state = 3 * sum(p.numel() for p in net.parameters()) * 4
        with weft.memory_limit(state, name), pytest.raises(weft.MemoryPlanError) as refused:
            step(x)
        found = re.search(r"a limit of ([\d,]+) .*, ([\d,]+) of them by what it reads", str(refused.value))
        assert found is not None
        limit, stays = (int(number.replace(",", "")) for number in found.groups())
        assert x.nbytes <= stays < x.nbytes + 64  # and numbers such as rates: all else may rest
        assert limit < state + pool.used_bytes()
        with weft.memory_limit(limit, name):
            step(x).item()
        with weft.memory_limit(limit - 64, name), pytest.raises(weft.MemoryPlanError):
            step(x)
