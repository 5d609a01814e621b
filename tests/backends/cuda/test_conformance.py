"""The conformance suite's tests that ask for most of the driver, over the emulated one, which executes the PTX: memory,
copies, queues, errors, plans, schedules. A real GPU runs all of it (`pytest --pyargs weft.testing.conformance --device
cuda`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weft.backends.registry import open_device
from weft.testing.conformance import (
    test_copies,
    test_description,
    test_errors,
    test_loops,
    test_memory,
    test_ops,
    test_queues,
    test_running,
    test_schedules,
)
from weft.testing.conformance.harness import Harness

TESTS: dict[str, Callable[[Harness], None]] = {
    "names": lambda h: test_description.test_names(h.device, "cuda:0"),
    "listed": lambda h: test_description.test_it_is_listed(h.device, "cuda:0"),
    "sizes": lambda h: test_description.test_sizes_and_rates(h.device),
    "bytes": lambda h: test_memory.test_bytes_come_back(h, 70_001),
    "memories": test_memory.test_memories_do_not_overlap,
    "freed": lambda h: test_memory.test_freed_memory_is_not_used(h.device),
    "limit": lambda h: test_memory.test_a_limit_is_kept_and_lifted(h.device),
    "too much": lambda h: test_memory.test_a_request_beyond_the_machine(h.device),
    "parts": test_copies.test_parts,
    "taken": test_copies.test_the_source_may_change_after_a_write,
    "sources": test_copies.test_read_only_and_typed_sources,
    "outside": lambda h: test_copies.test_outside_of_a_memory(h.device, 60),
    "within": test_copies.test_within_the_device,
    "between": lambda h: test_copies.test_between_pools(h, "cuda:0"),
    "order": test_queues.test_one_queue_is_in_order,
    "turns": test_queues.test_writes_and_runs_take_turns,
    "events": lambda h: test_queues.test_events(h.device, h),
    "an event": lambda h: test_queues.test_an_event_comes_by_itself(h.device, h),
    "chain": lambda h: test_queues.test_queues_wait_for_events(h.device, h),
    "numbers": lambda h: test_queues.test_queues_are_numbered(h.device, h),
    "no device": lambda h: test_errors.test_there_is_no_such_device("cuda:0"),
    "strangers": lambda h: test_errors.test_memory_of_others(h.device, h),
    "freed in a run": lambda h: test_errors.test_freed_memory_in_a_run(h.device, h),
    "memories of a run": lambda h: test_errors.test_wrong_number_of_memories(h.device, h, 3),
    "variables of a run": lambda h: test_errors.test_wrong_number_of_variables(h.device, h),
    "steps": test_running.test_steps_run_in_order,
    "workspace": test_running.test_places_of_the_workspace,
    "wide indices": test_running.test_indices_have_all_their_bits,
    "timed": test_running.test_every_step_is_timed,
    "nothing": test_running.test_an_empty_plan,
    "twice": test_running.test_one_memory_twice,
    "variables": test_running.test_variables_by_name,
    "threads of the host": test_running.test_threads_share_a_plan,
    "images": test_running.test_images,
    "foreign images": lambda h: test_running.test_foreign_images_are_refused(h.device, b"not an image"),
    "ops": lambda h: test_ops.test_ops(h, "float16"),
    "ops of two": lambda h: test_ops.test_ops(h, "int32,int32"),
    "ops of two longs": lambda h: test_ops.test_ops(h, "int64,int64"),
    "ops of two floats": lambda h: test_ops.test_ops(h, "float32,float32"),
    "ops of two doubles": lambda h: test_ops.test_ops(h, "float64,float64"),
    "tasks": test_loops.test_tasks,
    "threads": test_loops.test_threads,
    "empty schedule": lambda h: test_schedules.test_empty_schedule(h, "attention"),
    "schedule of the rules": lambda h: test_schedules.test_schedule_of_the_rules(h, "softmax"),
}


@pytest.mark.parametrize("name", TESTS)
def test_conformance(emulated: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_queues, "N", 64)  # one thread's loop, an instruction at a time
    monkeypatch.setattr(test_running, "RUNS_OF_A_THREAD", 2)
    emulated.races = name in ("threads", "empty schedule", "schedule of the rules")
    TESTS[name](Harness(open_device("cuda:0")))
