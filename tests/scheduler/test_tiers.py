"""Tiers: a graph never seen runs on its basic plan until the final one is there."""

from __future__ import annotations

import itertools
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import Tensor
from weft.backends.registry import open_device
from weft.errors import MemoryPlanError
from weft.scheduler import families, programs
from weft.scheduler import plan as plans
from weft.scheduler import realize as realization
from weft.scheduler.assembly import Job
from weft.scheduler.basic import beside, tiers, worker
from weft.scheduler.basic import plan as basic_plans
from weft.scheduler.basic.beside import Task
from weft.scheduler.pickles import pickled
from weft.scheduler.plan import Plan
from weft.scheduler.signature import signature, snapshot


@pytest.fixture(autouse=True)
def tiered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A process with tiers and a cache of its own, in which nothing was computed yet."""
    monkeypatch.setenv("WEFT_TIERS", "1")
    monkeypatch.setenv("WEFT_VERIFY", "0")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiers, "PIECE_SECONDS", 0.1)  # so that basic plans are worth their programs
    monkeypatch.setattr(tiers, "ASK_AT_ONCE_SECONDS", 100.0)
    monkeypatch.setattr(tiers, "ASKED_SHARE", 0.0)
    monkeypatch.setattr(tiers, "PATIENCE", 1e6)
    monkeypatch.setattr(tiers, "_luck", tiers._Luck())
    monkeypatch.setattr(beside, "has_processor", lambda: True)
    tables = (realization._plans, families._families, families._met, programs._compiled)
    for table in tables:
        table.clear()
    yield
    beside.stop()
    for table in tables:
        table.clear()


class Asked:
    """What the worker is asked for, in place of it."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Task, beside.Answer]] = []

    def __call__(self, task: Task, done: beside.Answer) -> bool:
        self.tasks.append((task, done))
        return True

    def work(self) -> None:
        """Do all that was asked for."""
        while self.tasks:
            task, done = self.tasks.pop()
            done(worker.run(pickle.loads(pickled(task))))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked()
    monkeypatch.setattr(beside, "ask", found)
    return found


X = np.random.default_rng(3).standard_normal((6, 8)).astype(np.float32)


def model() -> Tensor:
    x = weft.tensor(X)
    return F.layer_norm((x @ x.T).softmax(-1) @ x, (8,))


def computed() -> np.ndarray:
    return model().numpy()


def plan() -> Plan:
    """The plan that computing the model takes now."""
    return realization.plan_for(signature([model().value.node]), open_device("cpu:0"), at_once=True)


def test_the_final_plan_takes_over_when_it_is_there(asked: Asked) -> None:
    first = computed()
    basic = plan()
    assert len(basic.steps) > 6
    for _ in range(3):
        np.testing.assert_array_equal(computed(), first)
    assert plan() is basic and len(asked.tasks) == 1
    asked.work()
    np.testing.assert_allclose(computed(), first, rtol=1e-5, atol=1e-6)
    final = plan()
    assert final is not basic and len(final.steps) < len(basic.steps)
    assert plan() is final


def test_a_graph_that_comes_once_is_built_for_by_nobody(asked: Asked) -> None:
    computed()
    assert not asked.tasks


def spend(seconds: float) -> None:
    """Have runs of the model's basic plan taken that long until now."""
    final = _final()
    assert final is not None
    final.spent = seconds


def _final() -> tiers.Final | None:
    return plan().final


def test_what_runs_took_is_added_up_while_the_plan_is_a_basic_one(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, 0.25)  # each look at it takes so long
    monkeypatch.setattr(plans, "perf_counter", lambda: next(clock))
    computed()
    final = _final()
    assert final is not None
    assert final.spent == 0.25
    computed()
    assert final.spent == 0.5
    asked.work()
    computed()
    assert final.spent == 0.5 and _final() is None


def test_what_runs_took_is_added_up_over_all_sizes(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    _two_sizes()
    clock = itertools.count(0.0, 0.25)
    monkeypatch.setattr(plans, "perf_counter", lambda: next(clock))
    for times, rows in enumerate((9, 14, 13), 1):
        y, _ = families_model(rows)
        found = plan_of(y)
        y.realize()
        assert found.shared is not None and found.final is not None and found.final.spent == 0.25 * times


def test_runs_of_parts_on_several_devices_are_added_up(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 0.25)
    monkeypatch.setattr(plans, "perf_counter", lambda: next(clock))
    for _ in range(2):
        (model().to("dummy:0") * 2).realize()
    finals = [kept.plan.final for kept in realization._plans.values() if kept.plan.final is not None]
    assert finals and {f.spent for f in finals} == {0.5}


def test_a_plan_is_asked_for_when_runs_took_half_of_what_building_does(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "ASKED_SHARE", 0.5)
    computed()
    final = _final()
    assert final is not None
    for share, times in ((0.4, 0), (0.51, 1), (0.6, 1)):
        spend(share * final.seconds)
        computed()
        assert len(asked.tasks) == times


def test_a_plan_is_asked_for_again_where_there_was_no_room(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "ask", lambda *_: False)
    for _ in range(3):
        computed()
    monkeypatch.setattr(beside, "ask", asked)
    for _ in range(3):
        computed()
    assert len(asked.tasks) == 1


def test_kernels_of_loops_count_in_a_plan_that_was_kept() -> None:
    x = weft.tensor(np.ones((10, 8), np.float32))
    last, _ = weft.scan(lambda c, row: (c @ c.T @ c + row.exp(), row), weft.ones(8, 8), x)
    own = snapshot(signature([last.value.node]))
    made = basic_plans.basic(Job(own.outputs, own.leaves, (), {}), open_device("cpu:0"))
    assert made is not None
    plan = made.plan(open_device("cpu:0"))[0]
    names = {k.name for k in tiers._kernels(plan.items)}
    assert names == {k.spec.algorithm.name for k in made.kernels} and "basic_product" in names


def test_on_one_processor_nothing_is_asked_for(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are built here, when runs took long enough."""
    monkeypatch.setattr(tiers, "ASK_AT_ONCE_SECONDS", 0.0)
    monkeypatch.setattr(beside, "has_processor", lambda: False)
    first = computed()
    final = plan().final
    assert final is not None
    final.spent = 10 * final.seconds
    computed()
    assert plan().final is final and not asked.tasks
    monkeypatch.setattr(tiers, "PATIENCE", 1.0)
    np.testing.assert_allclose(computed(), first, rtol=1e-5, atol=1e-6)
    assert plan().final is None


def test_on_one_processor_nothing_is_prepared_either(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task((), "cpu:0", None)
    monkeypatch.setattr(beside, "has_processor", lambda: False)
    tiers.prepare(task)
    assert not asked.tasks
    monkeypatch.setattr(beside, "has_processor", lambda: True)
    tiers.prepare(task)
    assert [t for t, _ in asked.tasks] == [task]


def test_what_takes_long_to_build_is_asked_for_at_once(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "ASK_AT_ONCE_SECONDS", 0.0)
    computed()
    assert len(asked.tasks) == 1 and asked.tasks[0][0].name


def test_layers_alike_are_planned_one_by_one_and_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "PIECE_SECONDS", 3.5e-3)
    x = weft.tensor(X)
    few, many = (signature([_layers(x, n).value.node]) for n in (2, 20))
    assert tiers._seconds(few, 9) < tiers._seconds(many, 9) < tiers._seconds(few, 90)


def _layers(x: Tensor, count: int) -> Tensor:
    for _ in range(count):
        x = (x @ x.T @ x).tanh()
    return x


def test_where_many_programs_are_missing_they_are_compiled_for_later(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "SMALL_SHARE", 1e6)
    monkeypatch.setattr(tiers, "ASK_AT_ONCE_SECONDS", 0.0)
    computed()
    assert len(plan().steps) < 6
    assert [t.name for t, _ in asked.tasks] == [None]
    asked.work()
    monkeypatch.setattr(tiers, "_luck", tiers._Luck())
    for table in (realization._plans, families._met):
        table.clear()
    for kept in Path(os.environ["WEFT_CACHE_DIR"]).glob("plan/*/*"):
        kept.unlink()
    computed()
    assert len(plan().steps) > 6


def test_a_plan_on_disk_is_taken_at_once(asked: Asked) -> None:
    os.environ["WEFT_TIERS"] = "0"
    computed()
    steps = len(plan().steps)
    realization._plans.clear()
    families._met.clear()
    os.environ["WEFT_TIERS"] = "1"
    computed()
    assert len(plan().steps) == steps


def test_a_basic_plan_is_kept_for_the_next_process(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    first = computed()
    steps = plan().steps
    realization._plans.clear()
    families._met.clear()
    monkeypatch.setattr(basic_plans, "draft", None)  # nothing is made anew
    np.testing.assert_array_equal(computed(), first)
    assert plan().steps == steps
    assert len(asked.tasks) == 2  # by each process


def _next_process() -> None:
    for table in (realization._plans, families._families, families._met):
        table.clear()


def test_the_graph_of_a_basic_plan_for_all_sizes_is_not_made_in_the_next_process(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before the worker is asked for its final plan: when runs have taken half of the time of building it."""
    made: list[int] = []
    rebuilt = families.rebuilt
    monkeypatch.setattr(families, "rebuilt", lambda *given: made.append(0) or rebuilt(*given))
    monkeypatch.setattr(tiers, "ASKED_SHARE", 0.5)
    _two_sizes()
    _next_process()
    made.clear()
    for rows, share in ((9, 0.0), (14, 0.4), (11, 0.6)):
        y, want = families_model(rows)
        plan = plan_of(y)
        assert plan.final is not None and not asked.tasks and not made
        np.testing.assert_allclose(y.numpy(), want, rtol=1e-5, atol=1e-6)
        plan.final.spent = share * plan.final.seconds
    for _ in range(2):
        y, want = families_model(9)
        np.testing.assert_allclose(y.numpy(), want, rtol=1e-5, atol=1e-6)
        assert len(asked.tasks) == len(made) == 1
    asked.work()
    y, want = families_model(13)
    assert plan_of(y).final is None
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-5, atol=1e-6)


def test_a_basic_plan_for_all_sizes_that_was_run_on_for_long_gives_way_in_the_next_process(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    _two_sizes()
    final = plan_of(families_model(9)[0]).final
    assert final is not None
    final.spent = tiers.PATIENCE * (final.seconds + tiers.COMPILER_SECONDS) + 1
    final._note_spent()
    _next_process()
    monkeypatch.setattr(tiers, "PATIENCE", 1.0)
    y, want = families_model(14)
    assert plan_of(y).final is None and plan_of(y).shared is not None
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("why", ["they are off", "processes that compute the same are beside"])
def test_without_basic_plans_those_on_disk_are_none_for_all_sizes(
    why: str, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    _two_sizes()
    assert plan_of(families_model(9)[0]).final is not None
    _next_process()
    if why == "they are off":
        monkeypatch.setenv("WEFT_TIERS", "0")
    else:
        monkeypatch.setattr(beside.settings, "world_size", lambda: 2)
    y, want = families_model(14)
    assert plan_of(y).final is None
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-5, atol=1e-6)


def test_a_final_plan_is_waited_for_by_processes_together(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process(share: float) -> int:
        """The steps of the plan in a process whose runs took so much of what is waited for."""
        for table in (realization._plans, families._met):
            table.clear()
        computed()
        final = _final()
        if final is not None:
            spend(final.spent + share * tiers.PATIENCE * (final.seconds + tiers.COMPILER_SECONDS))
        steps = len(plan().steps)
        for _, done in asked.tasks:
            done(None)
        asked.tasks.clear()
        return steps

    monkeypatch.setattr(tiers, "PATIENCE", 4.0)
    monkeypatch.setattr(tiers, "ASK_AT_ONCE_SECONDS", 0.0)
    first, *others = [process(0.3) for _ in range(5)]
    assert others[:2] == [first] * 2 and others[2] < first and others[3] == others[2]


def test_what_was_waited_for_long_enough_is_built_at_its_first_run(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "PATIENCE", 4.0)
    monkeypatch.setattr(tiers, "ASK_AT_ONCE_SECONDS", 0.0)
    computed()
    basic = len(plan().steps)
    spend(1e6)
    for _, done in asked.tasks:
        done(None)
    for table in (realization._plans, families._met):
        table.clear()
    computed()
    assert all(len(kept.plan.steps) < basic for kept in realization._plans.values())


def test_a_compiler_is_waited_for_as_well(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one operation, whose plan is built in no time, does not wait for it."""
    monkeypatch.setattr(tiers, "PATIENCE", 4.0)
    computed()
    final, basic = _final(), len(plan().steps)
    assert final is not None
    for more, gives_way in ((0.9, False), (1.1, True)):
        spend(4.0 * (final.seconds + more * tiers.COMPILER_SECONDS))
        computed()
        assert (len(plan().steps) < basic) == gives_way


def test_who_waited_forgets_it_when_the_plan_is_there(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "ASK_AT_ONCE_SECONDS", 0.0)
    computed()
    spend(1.0)
    task, done = asked.tasks.pop()
    done(None)
    name = tiers._name(task.name or "")
    assert tiers.files.get("waits", name)
    for table in (realization._plans, families._met):
        table.clear()
    for _ in range(2):
        computed()
    asked.work()
    assert tiers.files.get("waits", name) is None and len(plan().steps) < 6


def test_runs_of_short_processes_are_added_up_until_the_final_plan_is_built_here(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them took as long as it takes to ask the worker, and each ends without a word."""
    monkeypatch.setattr(tiers, "ASKED_SHARE", 0.5)
    monkeypatch.setattr(tiers, "PATIENCE", 1.0)
    monkeypatch.setattr(tiers, "COMPILER_SECONDS", 0.0)
    monkeypatch.setattr(tiers, "ASK_AT_ONCE_SECONDS", 0.0)
    computed()
    basic = len(plan().steps)
    assert len(asked.tasks) == 1  # a new graph
    asked.tasks.clear()
    for process in range(4):
        for table in (realization._plans, families._met):
            table.clear()
        computed()
        final = _final()
        assert final is not None and final.spent == pytest.approx(0.3 * process * final.seconds)
        spend(final.spent + 0.3 * final.seconds)
        computed()
        assert not asked.tasks
        assert (len(plan().steps) < basic) == (process == 3)
    for table in (realization._plans, families._met):
        table.clear()
    computed()
    assert _final() is None


def test_the_time_of_runs_is_written_once_for_each_quarter(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "ASKED_SHARE", 1e6)
    computed()
    final = _final()
    assert final is not None
    whole = final.seconds + tiers.COMPILER_SECONDS
    written: list[float] = []
    monkeypatch.setattr(tiers.files, "put", lambda kind, *_: written.append(final.spent / whole))
    for share in (0.1, 0.24, 0.26, 0.3, 0.5, 0.52, 1.0):
        spend(share * whole)
        computed()
    assert written == pytest.approx([0.26, 0.52, 1.0])


def test_small_graphs_are_tried_less_and_less_where_programs_are_missing(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "SMALL_SHARE", 1e6)
    tried: list[int] = []
    draft = basic_plans.draft

    def counting(job: Job) -> object:
        tried.append(k)
        return draft(job)

    monkeypatch.setattr(basic_plans, "draft", counting)
    x = weft.tensor(X)
    for k in range(12):
        y = x.sin()
        for _ in range(k):  # a structure of its own
            y = y.cos() @ x.T @ x
        y.realize()
    assert tried == [0, 1, 3, 7]  # the first one lacks one program alone
    monkeypatch.setattr(tiers, "SMALL_SHARE", 1.0)
    for k in range(12, 40):
        y = x.exp()
        for _ in range(k - 12):
            y = y.tanh() @ x.T @ x
        y.realize()
        if len(tried) > 5:
            break
    assert tried[4:] == [15, 16]


def _two_sizes() -> None:
    """Have the model computed at two sizes: from then on it has a plan for all."""
    for rows in (6, 11):
        families_model(rows)[0].realize()


def families_model(rows: int) -> tuple[Tensor, np.ndarray]:
    """The model with so many rows of its own, and what it gives."""
    data = np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)
    x = weft.tensor(data)
    scores = data @ data.T
    shares = np.exp(scores - scores.max(1, keepdims=True))
    mixed = shares / shares.sum(1, keepdims=True) @ data
    centred = mixed - mixed.mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    return F.layer_norm((x @ x.T).softmax(-1) @ x, (8,)), expected


def plan_of(t: Tensor) -> Plan:
    return realization.plan_for(signature([t.value.node]), open_device("cpu:0"), at_once=True)


def test_a_second_size_has_a_basic_plan_for_all(asked: Asked) -> None:
    steps = []
    for rows in (6, 11, 9, 14, 11):
        y, expected = families_model(rows)
        found = plan_of(y)
        steps.append(len(found.steps))
        assert all(s.name.startswith("basic_") for s in found.steps)
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert len(set(steps)) == 1
    y, expected = families_model(13)
    assert plan_of(y).shared is not None
    assert any(t.variables for t, _ in asked.tasks), "the final plan for all sizes was asked for"
    asked.work()
    for rows in (13, 9, 17):
        y, expected = families_model(rows)
        assert len(plan_of(y).steps) < steps[0], "the one that is there serves old sizes and new ones"
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_plan_for_all_sizes_that_fails_beside_is_built_here(asked: Asked) -> None:
    for k in range(12):
        families_model(6 + k)[0].realize()
    (_, done), *_ = [x for x in asked.tasks if x[0].variables]
    done(False)
    new = plan_of(families_model(23)[0])
    assert not any(s.name.startswith("basic_") for s in new.steps), (
        "sizes all different do not wait for one that comes back"
    )
    y, expected = families_model(9)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert not any(s.name.startswith("basic_") for s in plan_of(families_model(9)[0]).steps)


def _looped(length: int) -> tuple[Tensor, list[np.ndarray]]:
    """A recurrence over so many steps, and its states."""
    xs = np.random.default_rng(length).standard_normal((length, 8)).astype(np.float32)
    states, h = [], np.zeros(8, np.float32)
    for x in xs:
        h = np.tanh(h * 0.5 + x)
        states.append(h)
    found = weft.scan(lambda h, x: ((h * 0.5 + x).tanh(),) * 2, weft.zeros(8), weft.tensor(xs))[1]
    return F.layer_norm(found, (8,)) * 1.5, states


@pytest.mark.parametrize("beside", [True, False])
def test_loops_of_any_number_of_steps_have_their_final_plan(beside: bool, asked: Asked) -> None:
    """One for each number of steps, of the same programs; built beside, and here where nobody did."""

    def check(length: int) -> None:
        y, states = _looped(length)
        want = np.stack(states)
        want = (want - want.mean(1, keepdims=True)) / np.sqrt(want.var(1, keepdims=True) + 1e-5) * 1.5
        np.testing.assert_allclose(y.numpy(), want, rtol=1e-3, atol=1e-4)

    for length in range(11, 25):
        check(length)
    assert any(s.name.startswith("basic_") for s in plan_of(_looped(30)[0]).steps)
    if beside:
        asked.work()
    else:
        for _, done in [x for x in asked.tasks if x[0].variables]:
            done(False)
    for length in (30, 13, 47, 31):
        check(length)
        assert not any(s.name.startswith("basic_") for s in plan_of(_looped(length)[0]).steps)


def test_a_basic_plan_for_all_sizes_is_kept_for_the_next_process(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    _two_sizes()
    for table in (realization._plans, families._families, families._met, programs._compiled):
        table.clear()
    monkeypatch.setattr(basic_plans, "draft", None)  # nothing is made anew
    y, expected = families_model(13)
    assert plan_of(y).shared is not None
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_kernels_are_not_made_where_too_many_programs_are_missing() -> None:
    own = snapshot(signature([model().value.node]))
    found = basic_plans.draft(Job(own.outputs, own.leaves, (), {}))
    assert found is not None
    cpu = open_device("cpu:0")
    assert found.kernels(cpu, 2) is None
    made = found.kernels(cpu)
    assert made is not None
    new = len(set(made.algorithms))
    assert 2 < new <= found.distinct
    assert found.kernels(cpu, new) is not None and found.kernels(cpu, new - 1) is None
    made.plan(cpu)
    assert found.kernels(cpu, 0) is not None


def test_small_graphs_may_lack_half_of_what_building_takes(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = list[int | None]()
    kernels = basic_plans.Draft.kernels

    def noting(self: basic_plans.Draft, device: Any, most: int | None = None) -> Any:
        allowed.append(most)
        return kernels(self, device, most)

    monkeypatch.setattr(basic_plans.Draft, "kernels", noting)
    for rows, factor in ((tiers.SMALL_ROWS, 3.0), (2, 5.0)):  # another one, since the first is on disk
        monkeypatch.setattr(tiers, "SMALL_ROWS", rows)
        families.forget()
        (model() * factor).numpy()
    small, large = allowed
    assert small is not None and large is not None and small in (2 * large, 2 * large + 1) and large > 2


def test_a_small_graph_may_lack_one_program(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "SMALL_SHARE", 1e6)
    found = weft.tensor(X).sin().numpy()
    assert [k.name for k in plan_of(weft.tensor(X).sin()).steps] == ["basic_sin"]
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)


def test_what_takes_too_long_beside_is_built_here(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    first = computed()
    spend(1.0)
    computed()
    assert len(plan().steps) > 6
    monkeypatch.setattr(tiers, "PATIENCE", 0.0)
    np.testing.assert_allclose(computed(), first, rtol=1e-5, atol=1e-6)
    assert len(plan().steps) < 6
    asked.work()  # finds that it is there
    assert len(plan().steps) < 6


def test_a_basic_plan_without_room_gives_way(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    computed()
    basic, run = plan(), Plan.run

    def refusing(self: Plan, *args: Any) -> Any:
        if self is basic:
            raise MemoryPlanError("no room")
        return run(self, *args)

    monkeypatch.setattr(Plan, "run", refusing)
    computed()
    assert plan() is not basic


@pytest.mark.parametrize("case", ["several processes", "frozen"])
def test_where_no_worker_can_be_there_is_one_tier(
    case: str, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    else:
        monkeypatch.setenv("WORLD_SIZE", "2")
    computed()
    assert len(plan().steps) < 6


def test_without_a_worker_the_plan_is_built_here(asked: Asked) -> None:
    first = computed()
    computed()
    ((_, done),) = asked.tasks
    done(False)
    np.testing.assert_allclose(computed(), first, rtol=1e-5, atol=1e-6)
    assert len(plan().steps) < 6


def test_a_plan_that_cannot_be_loaded_is_built_here(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    computed()
    computed()
    ((_, done),) = asked.tasks
    done(True)  # which is not so
    computed()
    assert len(plan().steps) < 6


def test_a_basic_plan_that_fails_is_done_without(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(basic_plans, "draft", fail)
    computed()
    assert len(plan().steps) < 6 and "no basic plan" in caplog.text


def test_who_wants_the_final_plan_gets_it(asked: Asked) -> None:
    computed()
    node = model().value.node
    assert len(realization.plan_for(signature([node]), open_device("cpu:0")).steps) < 6
    assert len(plan().steps) < 6


@pytest.mark.parametrize("name", ["WEFT_DETERMINISTIC", "WEFT_TIERS"])
def test_a_setting_waits_for_the_final_plan(name: str, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1" if name == "WEFT_DETERMINISTIC" else "0")
    computed()
    assert len(plan().steps) < 6


def test_deterministic_mode_leaves_a_basic_plan(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    computed()
    assert len(plan().steps) > 6
    monkeypatch.setenv("WEFT_DETERMINISTIC", "1")
    computed()
    assert len(plan().steps) < 6


def test_no_memory_of_leaves_is_kept(asked: Asked) -> None:
    x = weft.tensor(X)
    storage = x.value.node.storage
    before = sys.getrefcount(storage)
    (x.exp() @ x.T).softmax(-1).numpy()
    assert any(k.plan.final is not None for k in realization._plans.values())
    assert sys.getrefcount(storage) == before


def test_explain_says_which_tier_runs(asked: Asked) -> None:
    assert "basic" not in str(weft.explain(model()))
    computed()
    steps = len(plan().steps)
    assert f"; runs on {steps} basic kernels until these are built" in str(weft.explain(model()))
    assert all(s.name.startswith("basic_") for s in plan().steps)
    assert "basic" not in str(weft.explain(model(), time=True))


def test_the_worker_builds_a_plan_that_is_taken() -> None:
    first = computed()
    computed()
    (kept,) = [k for k in realization._plans.values() if k.plan.final is not None and len(k.plan.steps) > 6]
    final = kept.plan.final
    assert final is not None
    end = time.monotonic() + 120
    while final.plan is None and not final.failed:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert not final.failed
    np.testing.assert_allclose(computed(), first, rtol=1e-5, atol=1e-6)
    assert plan() is final.plan


def test_threads_take_over_together(asked: Asked) -> None:
    first = computed()
    computed()
    wrong: list[object] = []

    def run() -> None:
        try:
            for _ in range(20):
                np.testing.assert_allclose(computed(), first, rtol=1e-5, atol=1e-6)
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for t in threads:
        t.start()
    asked.work()
    for t in threads:
        t.join()
    assert not wrong and len(plan().steps) < 6
