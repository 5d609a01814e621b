"""Basic programs compiled ahead of time."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import disk_cache, nn, optim
from weft import prepare as basics
from weft.__main__ import main
from weft.backends.cpu.device import CpuDevice
from weft.backends.registry import open_device
from weft.errors import ArgumentError
from weft.ir.loops import Program
from weft.nn import functional as F
from weft.prepare import prepare
from weft.prepare.changing import CHANGING
from weft.prepare.networks import NETWORKS, Sample
from weft.prepare.products import LAYOUTS, Products
from weft.prepare.routine import Routine
from weft.prepare.routines import ROUTINES
from weft.scheduler import families, programs
from weft.scheduler import realize as realization
from weft.scheduler.assembly import Job
from weft.scheduler.basic import beside
from weft.scheduler.basic import plan as basic_plans
from weft.scheduler.basic.beside import Task
from weft.scheduler.signature import signature, snapshot


def narrow() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 4))


SMALL = Sample("narrow", narrow, (6, 12), lambda net: optim.SGD(net.parameters(), lr=0.1))


@pytest.fixture(autouse=True)
def tiered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Task]]:
    """A process with tiers and a cache of its own, in which nothing was computed yet; what the worker is asked for."""
    asked: list[Task] = []

    def ask(task: Task, done: Callable[[bool], object]) -> bool:
        asked.append(task)
        return True

    monkeypatch.setattr(beside, "ask", ask)
    monkeypatch.setenv("WEFT_TIERS", "1")
    monkeypatch.setenv("WEFT_VERIFY", "0")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    tables = (realization._plans, families._families, families._met, programs._compiled)
    for table in tables:
        table.clear()
    yield asked
    for table in tables:
        table.clear()


def missing_for(net: nn.Module, rows: int) -> int:
    """The number of programs that a basic plan of a network's inference lacks."""
    weft.realize(*net.parameters())
    with weft.no_grad():
        value = net(weft.zeros(rows, 30).realize())
    sig = signature([value.value.node])
    own = snapshot(sig)
    device = open_device("cpu:0")
    found = basic_plans.basic(Job(own.outputs, own.leaves, (), {}), device)
    assert found is not None
    return len(programs.missing(found.algorithms, device))


def wider() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 9))


def test_other_networks_of_the_same_ops_need_no_compiler() -> None:
    assert missing_for(wider(), 5) > 0
    progress = list(prepare([SMALL]))
    assert [(p.done, p.count, p.name) for p in progress] == [(1, 1, "narrow")]
    programs._compiled.clear()  # what a later process finds is what is on disk
    assert missing_for(wider(), 5) == 0


def test_no_final_plan_is_built_for_samples(tiered: list[Task]) -> None:
    list(prepare([SMALL]))
    assert not tiered
    assert disk_cache.usage().entries > 0


def test_a_block_ahead_ends() -> None:
    from weft.scheduler.basic import tiers

    with pytest.raises(ZeroDivisionError), tiers.ahead():
        assert tiers._ahead.get()
        raise ZeroDivisionError
    assert not tiers._ahead.get()


def test_prepared_programs_compute_the_same() -> None:
    x = np.linspace(-1, 1, 150, dtype=np.float32).reshape(5, 30)
    net = wider()
    list(prepare([SMALL]))
    weights = [p.detach().numpy() for p in net.parameters()]
    h = np.tanh(x @ weights[0].T + weights[1])
    h = np.tanh(h @ weights[2].T + weights[3])
    np.testing.assert_allclose(
        net(weft.tensor(x)).detach().numpy(), h @ weights[4].T + weights[5], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("sample", NETWORKS, ids=lambda s: s.name)
def test_each_sample_has_a_row_of_logits_for_each_target(sample: Sample) -> None:
    weft.manual_seed(0)
    shape = sample.shape
    x = weft.zeros(*shape, dtype=weft.int64) if sample.ids else weft.zeros(*shape)
    with weft.no_grad():  # nothing is computed
        logits = sample.network()(x)
    assert logits.shape[0] == shape[0] * (shape[1] if sample.ids else 1)


@pytest.mark.parametrize("routine", [*ROUTINES, *CHANGING], ids=lambda r: r.name)
def test_each_routine_computes_numbers(routine: Routine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TIERS", "0")
    weft.manual_seed(0)
    for result in list(routine.results())[::7]:
        assert not np.isnan(result.detach().numpy().astype(np.float64)).any()


def test_single_ops_of_other_sizes_need_no_compiler() -> None:
    list(prepare([r for r in ROUTINES if r.name == "elements"]))
    programs._compiled.clear()
    x, y = weft.rand(31).realize(), weft.rand(3, 9).realize()
    device = open_device("cpu:0")
    for t in (x.exp(), x * 0.3, y + y[0].clone().realize(), 1.0 - y):
        own = snapshot(signature([t.value.node]))
        found = basic_plans.basic(Job(own.outputs, own.leaves, (), {}), device)
        assert found is not None and not programs.missing(found.algorithms, device)


def test_recurrent_layers_of_other_sizes_need_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for a batch of one length, nor for plans of all lengths."""
    narrow, *_ = [r for r in CHANGING if r.name.startswith("recurrent")]
    list(prepare([narrow]))
    for table in (realization._plans, families._families, families._met, programs._compiled):
        table.clear()
    layer, head = nn.GRU(11, 9, batch_first=True), nn.Linear(9, 6)
    parameters = [*layer.parameters(), *head.parameters()]
    weft.realize(*parameters)
    made: list[str] = []
    compile_all = CpuDevice.compile

    def compiling(self: CpuDevice, some: Sequence[Program]) -> Any:
        made.extend(p.name for p in some)
        return compile_all(self, some)

    monkeypatch.setattr(CpuDevice, "compile", compiling)
    optimizer = optim.Adam(parameters, lr=1e-3)
    for rows, length in ((6, 10), (6, 14), (6, 23)):
        x, y = weft.tensor(np.ones((rows, length, 11), np.float32)), weft.tensor(np.zeros(rows, np.int64))
        loss = F.cross_entropy(head(layer(x)[0][:, -1]), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert np.isfinite(loss.item())
    assert not made


class Looking:
    """A sample that looks at what is known of sizes when it begins."""

    name = "looking"

    def __init__(self) -> None:
        self.found: list[int] = []

    def run(self) -> None:
        self.found.append(len(families._families) + len(families._met) + len(families._alike))


def test_samples_alike_but_for_sizes_have_basic_plans_of_their_own() -> None:
    """Where one shared the plan for all sizes with those before, the programs for its own would be missing."""
    for _ in range(2):
        for number in (0.3, 0.4, 0.6, 0.7):
            (weft.rand(9).realize() * number).realize()
    assert families._families and families._met and families._alike
    looking = Looking()
    list(prepare([looking, SMALL, looking]))
    assert looking.found == [0, 0]


def test_products_of_all_layouts_need_no_compiler() -> None:
    plain = replace(LAYOUTS[0], lengths=((4096,),))
    several = replace(LAYOUTS[1], left=((1, 0, 3),), right=((0, 3, 2), (2, 0, 3)))
    list(prepare([Products(layouts=(plain, several))]))
    programs._compiled.clear()
    x, y, z = (weft.rand(*shape).realize() for shape in ((90, 9), (9, 90), (9, 70)))
    heads = weft.rand(30, 4, 20).realize().transpose(0, 1)
    other = weft.rand(40, 4, 20).realize().transpose(0, 1)
    device = open_device("cpu:0")
    for t in (
        x @ y,
        x @ x.T,
        y.T @ z,
        z.T @ x.T,
        z @ z.T,
        heads @ other.mT,
        heads @ weft.rand(4, 20, 7).realize(),
    ):
        own = snapshot(signature([t.value.node]))
        found = basic_plans.basic(Job(own.outputs, own.leaves, (), {}), device)
        assert found is not None and not programs.missing(found.algorithms, device)


@pytest.mark.parametrize(("name", "value"), [("WEFT_CACHE_DIR", ""), ("WEFT_TIERS", "0")])
def test_where_nothing_can_be_kept_it_is_said(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match=name):
        list(prepare([SMALL]))


def test_the_command_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(basics, "SAMPLES", (SMALL,))
    with redirect_stdout(io.StringIO()) as out:
        main(["prepare"])
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("1 of 1: narrow (") and " entries, " in lines[-1]
