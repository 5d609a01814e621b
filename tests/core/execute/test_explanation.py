"""weft.explain: what it says of kernels to come, and that nothing is computed by asking."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends.registry import open_device
from weft.core.execute.explanation import ExplainedKernel
from weft.distributed import tensor
from weft.scheduler.details import KernelDetail
from weft.scheduler.kernelize.kernels import kernelize
from weft.scheduler.optimize.rules import decide
from weft.scheduler.parts.plan import PartsPlan, _Move, _Part
from weft.scheduler.plan import Plan


def ten(*shape: int) -> weft.Tensor:
    return weft.tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def test_kernels_with_everything_known_of_them() -> None:
    x, w = ten(64, 32), ten(32, 48)
    y = (x @ w).relu()
    explained = weft.explain(y, y.sum())
    assert y.value.node.storage is None
    assert len(explained) == len(explained.kernels) >= 1
    first = explained.kernels[0]
    assert first.bytes >= 4 * (64 * 32 + 32 * 48) and first.flops >= 2 * 64 * 32 * 48
    assert first.why and all(isinstance(w, str) for w in first.why)
    assert first.loops.startswith("kernel ") and "define" in first.source
    assert first.summary in str(first) and "lanes" in first.summary
    assert all(k.schedule is not None and k.name for k in explained)
    text = str(explained)
    assert text == repr(explained) and "moved" in text and first.why[0] in text
    assert explained.flops == sum(k.flops for k in explained)


def test_what_became_of_each_schedule_rule() -> None:
    (kernel,) = weft.explain(ten(64, 256).softmax(-1))
    lines = kernel.rules.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [
        "online", "contraction", "scaled_sums", "blocks", "windows", "prefixes", "taps", "small_outputs", "rows",
        "scatters", "levels",
    ]  # fmt: skip
    assert any(
        re.fullmatch(r"rows +chosen: .*staged kept \(2 options; next: keep nothing\)", x) for x in lines
    )
    assert any(re.fullmatch(r"contraction +no: .* is no sum", x) for x in lines)


def test_times() -> None:
    x = ten(128, 128)
    y = x @ x
    explained = weft.explain(y, time=True)
    (kernel,) = explained.kernels
    assert kernel.timing is not None and kernel.timing.ns > 0 and kernel.timing.gflops > 0
    assert "of the limit" in str(explained) and "limits of cpu:0" in str(explained)
    assert explained.ns is not None and explained.ns >= kernel.timing.ns
    assert kernel.timing.bound.by in ("compute", "L2", "L3", "memory") and 0 < kernel.timing.share < 2
    assert y.value.node.storage is None
    np.testing.assert_allclose(y.numpy(), x.numpy() @ x.numpy(), rtol=1e-3, atol=1e-3)


def test_a_compiled_function_is_explained_by_running_it() -> None:
    state = ten(4)

    def f(x: weft.Tensor) -> weft.Tensor:
        state.copy_(state + 1)
        return (x @ x).softmax(-1)

    x, before = ten(16, 16), state.numpy().copy()
    explained = weft.explain(weft.compile(f), x)
    assert [k.timing is not None for k in explained] == [True] * len(explained.kernels)
    np.testing.assert_allclose(state.numpy(), before + 2)
    table = explained.times().splitlines()
    assert table[0].split() == ["time", "share", "runs", "GFLOP/s", "GB/s", "of", "limit", "near", "kernel"]
    assert {line.split()[-1] for line in table[1:-2]} == {k.name for k in explained}


def test_equal_kernels_are_one_row() -> None:
    x, w = ten(8, 8), ten(8, 8)
    explained = weft.explain(((x @ w) @ w) @ w, time=True)
    assert len(explained) == 3 and explained.times().splitlines()[1].split()[4] == "3"


def test_all_forms_of_a_kernel() -> None:
    kernel = weft.explain(ten(8, 8) @ ten(8, 8))[0]
    assert list(kernel.forms()) == ["algorithm", "schedule", "loops", "llvm", "assembly"]
    shown = kernel.show("schedule", "assembly")
    assert shown.startswith("--- schedule of product\n") and "ret" in shown and "algorithm" not in shown
    assert kernel.algorithm in kernel.show() and kernel.source in kernel.show()
    with pytest.raises(weft.ArgumentError, match="algorithm, schedule, loops, llvm, assembly, no 'ptx'"):
        kernel.show("ptx")
    with weft.device("dummy:0"):
        there = weft.explain(ten(4).cos(), time=True)[0]
    assert there.source == there.loops and there.timing is not None and there.timing.bound.by != "L2"


def test_what_cannot_be_timed() -> None:
    n = weft.Variable("n", 1, 3)
    with pytest.raises(weft.ArgumentError, match="the runtime variable n has no value here"):
        weft.explain(ten(3)[:n] + 1, time=True)
    away = (weft.tensor([1.0, 2.0], device="dummy:1") * 2).to("cpu") + 1
    with pytest.raises(weft.ArgumentError, match="on one device"):
        weft.explain(away, time=True)


def test_nothing_to_do() -> None:
    assert str(weft.explain(ten(3))) == "nothing to compute: the values are there already"
    assert len(weft.explain()) == 0


def test_several_devices() -> None:
    y = (weft.tensor([1.0, 2.0], device="dummy:1") * 2).to("cpu") + 1
    devices = [k.device for k in weft.explain(y)]
    assert devices == ["dummy:1", "cpu:0"]


def random_graph(rng: np.random.Generator) -> list[weft.Tensor]:
    """A few results of a random program over three devices."""
    homes = ("dummy:0", "dummy:1", "cpu:0")
    pool = [ten(4, 4).to(homes[rng.integers(3)]).realize() for _ in range(3)]
    pool.append(weft.full((4, 4), 2.0, device=None))
    for _ in range(int(rng.integers(4, 12))):
        x = pool[rng.integers(len(pool))]
        match int(rng.integers(5)):
            case 0:
                pool.append(x.to(homes[rng.integers(3)]))
            case 1:
                pool.append((x @ x) * 0.1)
            case 2:
                pool.append(x.softmax(-1))
            case 3:
                pool.append(x.exp().sum(0, keepdim=True).expand(4, 4))
            case _:
                pool.append(x + pool[rng.integers(len(pool))].to(x.device))
    return [pool[k] for k in sorted(rng.choice(len(pool), 2, replace=False))] + pool[-1:]


@pytest.mark.parametrize("seed", range(int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0")) or 12))
def test_what_is_listed_over_devices_is_what_runs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DETERMINISTIC", "1")  # which plans are shared depends on the tests before
    results = random_graph(np.random.default_rng(seed))
    explained = weft.explain(*results)
    said = [
        (s.device, s.name) if isinstance(s, ExplainedKernel) else (s.source, s.target, s.bytes)
        for s in explained.steps
    ]
    ran: list[tuple[Any, ...]] = []
    start, move, one = _Part.start, PartsPlan._move, Plan.run

    def noted_start(part: _Part, plan: Plan, *args: Any) -> None:
        start(part, plan, *args)
        ran.extend((plan.device.info.name, s.name) for s in plan.steps if s.name != "copy")

    def noted_run(plan: Plan, *args: Any) -> Any:
        ran.extend((plan.device.info.name, s.name) for s in plan.steps if s.name != "copy")
        return one(plan, *args)

    def noted_move(plan: PartsPlan, step: _Move, *args: Any) -> None:
        move(plan, step, *args)
        ran.append((step.origin.info.name, step.device.info.name, 64))

    monkeypatch.setattr(Plan, "run", noted_run)
    monkeypatch.setattr(_Part, "start", noted_start)
    monkeypatch.setattr(PartsPlan, "_move", noted_move)
    clocks = {f"dummy:{k}": open_device(f"dummy:{k}").clock for k in range(2)}  # type: ignore[attr-defined]
    before = {name: c.launches for name, c in clocks.items()}
    weft.realize(*results)
    assert ran == said
    for name, clock in clocks.items():
        assert clock.launches - before[name] == len([k for k in explained.kernels if k.device == name])


def test_a_chain_of_devices_lists_each_kernel_once() -> None:
    x = ten(8, 8)
    y = (x.to("dummy:0").realize() @ x.to("dummy:0").realize()).to("dummy:1")
    z = (y + 1).to("dummy:2").sum().to("cpu")
    explained = weft.explain(z)
    assert [str(s).split(":")[0] for s in explained.steps if s in explained.copies] == [
        "copy from dummy", "copy from dummy", "copy from dummy",
    ]  # fmt: skip
    assert [k.device for k in explained] == ["dummy:0", "dummy:1", "dummy:2"]
    assert [(c.source, c.target, c.bytes) for c in explained.copies] == [
        ("dummy:0", "dummy:1", 256), ("dummy:1", "dummy:2", 256), ("dummy:2", "cpu:0", 4),
    ]  # fmt: skip
    assert "3 copies between devices, 516 B" in str(explained)


def test_only_tensors() -> None:
    with pytest.raises(weft.DTypeError, match="explain: expected a Tensor, got 3"):
        weft.explain(3)  # type: ignore[arg-type]


def test_layouts_and_exchanges_on_a_mesh_are_listed_with_their_reasons() -> None:
    mesh = weft.distributed.init_device_mesh("dummy", (2,))
    x = tensor.distribute_tensor(weft.ones(4, 6), mesh, [tensor.Shard(1)]).realize()
    w = tensor.distribute_tensor(weft.ones(6, 3), mesh, [tensor.Shard(0)]).realize()
    found = weft.explain(weft.shard(x @ w, None))
    assert [(e.source, e.target, e.bytes, e.is_term) for e in found.exchanges] == [
        ("dummy:1", "dummy:0", 48, True), ("dummy:0", "dummy:1", 48, True),
    ]  # fmt: skip
    assert f"sum f32[4, 3] on {mesh.name}: " in str(found)
    assert f"copy f32[4, 3] on {mesh.name}: Replicate(), as asked" in str(found)
    assert "dummy:0 fetches a term of sum f32[4, 3] [0:4, 0:3] from dummy:1: 48 B" in str(found)
    assert {k.device for k in found.kernels} == {"dummy:0", "dummy:1"}
    assert weft.explain(x.full_tensor() * 2).layouts == ()


def test_loops_are_those_of_the_schedule_that_the_plan_chose() -> None:
    """A kernel that pays to share only where its plan keeps the other cores awake."""
    cpu = open_device("cpu:0")
    alone = replace(cpu.info, cores=4, costs=replace(cpu.info.costs, wake_ns=1e9))
    company = replace(alone, costs=replace(alone.costs, wake_ns=0.0))
    (spec,) = kernelize([(weft.randn(64, 64).realize() * 2).value.node])
    for info, shared in ((alone, False), (company, True)):
        detail = KernelDetail("mul", 0, 0, 0, (), (), spec.algorithm, decide(spec.algorithm, info), cpu)
        assert ("bind(" in detail.forms()["schedule"]) == shared
        assert ("parallel " in detail.forms()["loops"]) == shared
