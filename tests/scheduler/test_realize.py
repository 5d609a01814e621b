"""From nodes to values: several results, several devices, copies, limits, threads, large graphs."""

from __future__ import annotations

import gc
import threading
from weakref import ref

import numpy as np
import pytest

import weft
from weft.backends.registry import open_device
from weft.ir.graph import Node, toposort
from weft.ir.ops import Op
from weft.nn import functional as F
from weft.scheduler import realize as realization
from weft.scheduler.realize import plan_for, realize
from weft.scheduler.signature import Key, signature


def node(t: weft.Tensor) -> Node:
    return t.value.node


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_several_results_of_one_graph() -> None:
    data = values(5, 7)
    x = weft.tensor(data)
    y = x * 2
    results = [y + 1, y.sum(0), y, (y + 1).sum()]
    realize([node(t) for t in results])
    want = [data * 2 + 1, (data * 2).sum(0), data * 2, (data * 2 + 1).sum()]
    for t, w in zip(results, want, strict=True):
        np.testing.assert_allclose(t.numpy(), w, rtol=1e-5)


def test_the_same_structure_is_planned_once() -> None:
    plans = []
    for seed in range(3):
        x, y = weft.tensor(values(9, seed=seed)), weft.tensor(values(9, seed=seed + 10))
        n = node(x * y + x)
        plans.append(plan_for(signature([n]), open_device("cpu:0")))
    assert plans[0] is plans[1] is plans[2]


DIGESTS: dict[str, Key] = {}
"""The keys of other graphs, by their digests."""


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y: x * y - x,
        lambda x, y: x * y + y,
        lambda x, y: x * x + x,
        lambda x, y: (x * y + x).double(),
        lambda x, y: x[:8] * y[:8] + x[:8],
        lambda x, y: x[1:] * y[1:] + x[1:],
        lambda x, y: x * y + 1,
        lambda x, y: x * y + 2,
        lambda x, y: x * y + 0.0,
        lambda x, y: x * y + -0.0,
        lambda x, y: F.pad(x * y, (1, 1)),
        lambda x, y: F.pad(x * y, (1, 1), value=-0.0),
        lambda x, y: x * y * 0.3,
        lambda x, y: x * y * 0.7,
        lambda x, y: x * y * float("inf"),
        lambda x, y: F.softmax(x * y, -1),
        lambda x, y: F.softmax((x * y)[:7], -1),
        lambda x, y: F.layer_norm(x * y, (9,), eps=1e-5),
        lambda x, y: F.layer_norm(x * y, (9,), eps=1e-4),
        lambda x, y: F.layer_norm(x * y, (9,), eps=1e-4) + x,
        lambda x, y: weft.scan(lambda c, r: (c + r, c), x[0], y)[0],
        lambda x, y: weft.scan(lambda c, r: (c + r, c), x[0], y[:8])[0],
        lambda x, y: weft.scan(lambda c, r: (c - r, c), x[0], y)[0],
    ],
)  # fmt: skip
def test_different_structures_have_different_keys(change) -> None:
    x, y = weft.tensor(values(9)), weft.tensor(values(9, seed=1))
    base, other = signature([node(x * y + x)]), signature([node(change(x, y))])
    assert base.key != other.key and base.digest() != other.digest()
    assert DIGESTS.setdefault(other.digest(), other.key) == other.key


def test_pinned_sums_have_names_of_their_own() -> None:
    x = weft.tensor(values(9))
    plain = signature([node(x.exp())])
    with weft.numerics("same"):
        pinned = signature([node(x.exp())])
    assert plain.key.rows == pinned.key.rows and plain.digest() != pinned.digest()


def test_constants_differ_by_their_bits() -> None:
    x = weft.tensor([1.0, 2.0])
    a, b, c = (F.pad(x, (1, 0), value=v) for v in (0.0, -0.0, float("nan")))
    assert node(a) is not node(b) and signature([node(a)]).key != signature([node(b)]).key
    assert node(c) is node(F.pad(x, (1, 0), value=float("nan")))
    assert [bool(np.signbit(t.numpy()[0])) for t in (a, b)] == [False, True]


def test_keys_do_not_depend_on_which_leaves_there_are() -> None:
    keys, digests = set(), set()
    for seed in range(3):
        x, y = weft.tensor(values(9, seed=seed)), weft.tensor(values(9, seed=seed + 10))
        sig = signature([node((x * y + x).sum()), node(x - y)])
        keys.add(sig.key)
        digests.add(sig.digest())
    assert len(keys) == len(digests) == 1


def test_copies_between_devices_in_both_directions_and_a_chain_of_them() -> None:
    data = values(6)
    x = weft.tensor(data, device="dummy:0")
    y = (x * 2).to("cpu") + 1
    z = (y.to("dummy:1") - 3).to("dummy:0") * x
    w = (y * 5).to("dummy:2")
    realize([node(z), node(w), node(y)])
    np.testing.assert_allclose(z.numpy(), (data * 2 + 1 - 3) * data, rtol=1e-5)
    np.testing.assert_allclose(w.numpy(), (data * 2 + 1) * 5, rtol=1e-5)
    assert (z.device, w.device, y.device) == ("dummy:0", "dummy:2", "cpu:0")


def test_results_without_elements() -> None:
    x = weft.tensor(np.zeros((0, 3), np.float32))
    assert (x + 1).numpy().shape == (0, 3)
    assert (x + 1).sum().item() == 0
    y, z = x * 2, weft.tensor([1.0]) + 1
    realize([node(y), node(z)])
    assert y.numpy().shape == (0, 3) and z.item() == 2


def test_a_limit_is_honoured_and_the_refusal_names_the_largest() -> None:
    x = weft.tensor(values(512, 512)).realize()
    big = (x @ x).softmax(-1) @ x
    with weft.memory_limit(1 << 20), pytest.raises(weft.MemoryPlanError, match=r"Largest: .*1,048,576 bytes"):
        big.realize()
    assert big.realize().shape == (512, 512)
    with weft.memory_limit(1 << 20), pytest.raises(MemoryError, match="does not fit"):
        weft.tensor(np.zeros(1 << 20, np.float32))
    with weft.memory_limit(1 << 16, "dummy"), weft.device("dummy:0"), pytest.raises(weft.MemoryPlanError):
        (weft.tensor([1.0]) + weft.zeros(1 << 15)).realize()


def test_limits_nest() -> None:
    with weft.memory_limit(1 << 20):
        with weft.memory_limit(None):
            weft.tensor(np.zeros(1 << 20, np.float32))
        with pytest.raises(weft.MemoryPlanError):
            weft.tensor(np.zeros(1 << 20, np.float32))
    weft.tensor(np.zeros(1 << 20, np.float32))


def test_threads_may_realize_at_the_same_time() -> None:
    """Plans of different sizes share one workspace: it must not be moved or overwritten under a running one."""
    data = {n: values(n, n, seed=n) for n in (16, 48, 96, 160)}
    leaves = {n: weft.tensor(d).realize() for n, d in data.items()}
    want = {n: (d @ d - 1) @ d for n, d in data.items()}
    wrong: list[str] = []

    def work(n: int) -> None:
        for k in range(30):
            got = (((leaves[n] @ leaves[n]) - 1).contiguous() @ leaves[n]).numpy()
            if not np.allclose(got, want[n], rtol=1e-3, atol=1e-3):
                wrong.append(f"{n} in round {k}")

    threads = [threading.Thread(target=work, args=(n,)) for n in data for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_twenty_thousand_nodes() -> None:
    x = weft.tensor([1.0, 2.0]).realize()
    for _ in range(20_000):
        x = x + 1
    assert x.numpy().tolist() == [20_001.0, 20_002.0]


def test_constants_stay_constants_after_they_were_realized() -> None:
    """A node for zeros is shared by everybody: nobody's memory may become its value."""
    a, b = weft.zeros(4).realize(), weft.zeros(4)
    a += 1
    weft.compile(lambda t: t.add_(1))(a)
    assert a.tolist() == [2.0] * 4
    assert b.tolist() == weft.zeros(4).tolist() == [0.0] * 4
    assert node(weft.zeros(4)).storage is None


def test_the_plan_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realization, "PLANS_KEPT", 3)
    x = weft.tensor([1.0])
    for k in range(8):
        assert (x + float(k)).item() == 1.0 + k
    assert len(realization._plans) >= 3
    (x + 99.0).realize()
    before = len(realization._plans)
    (x + 100.0).realize()
    assert len(realization._plans) == before


def test_nodes_and_their_memory_do_not_wait_for_the_garbage_collector() -> None:
    def results() -> list[weft.Tensor]:
        x = weft.tensor(np.ones((4, 8), np.float32))
        w = weft.tensor(np.ones((8, 3), np.float32), requires_grad=True)
        loss = F.cross_entropy(x.softmax(-1) @ w, weft.tensor([0, 1, 2, 0]))
        loss.backward()
        counts = weft.zeros(10).scatter(0, weft.tensor([1, 2]), weft.ones(2))
        out = [loss.detach(), w.grad, counts, weft.cat([x, x * 2]).sum(0)]
        return [t for t in out if t is not None]

    plain = [t.numpy() for t in results()]
    gc.collect()
    gc.disable()
    try:
        plans = realization._plans.copy()
        realization._plans.clear()
        tensors = results()
        seen = [ref(n) for n in toposort([t.value.node for t in tensors])]
        for t, want in zip(tensors, plain, strict=True):
            np.testing.assert_allclose(t.numpy(), want)
        del tensors, t
        alive = [n for n in (r() for r in seen) if n is not None and n.op is not Op.CONST]
        assert not alive
    finally:
        gc.enable()
        realization._plans.update(plans)


def test_a_graph_is_let_go_of_without_the_collector() -> None:
    """What built a plan does not hold the graph in a cycle: its leaves' memory is free at once."""
    gc.disable()
    try:
        x = weft.tensor(np.arange(12.0).reshape(3, 4))
        storage = ref(x.value.node.storage)
        (x.exp().sum(1) * 3 + 1.75).realize()
        del x
        assert storage() is None
    finally:
        gc.enable()
