"""The native runtime: the pool covers every iteration once, the runner calls what it is told, nothing hangs."""

import ctypes
import gc
import os
import struct
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.backends.cpu.llvm import compile_ir
from weft.backends.cpu.machine import host
from weft.backends.cpu.objects import Loaded, load_object
from weft.backends.cpu.runner import Instruction, NativePlan
from weft.backends.cpu.runtime import Runtime, load_runtime
from weft.backends.direct import Access, Source

KERNELS = """
declare void @weft_parallel(ptr, ptr, i64, i64)

define void @nothing(ptr %table, ptr %slots, ptr %vars) nounwind {
  ret void
}

; vars: count, grain, repeats. Buffer 0 is i32[count]: each element is incremented by each pass.
define void @increment(ptr %table, ptr %slots, ptr %vars) nounwind {
  %slot = load i32, ptr %slots
  %slot_64 = sext i32 %slot to i64
  %at = getelementptr ptr, ptr %table, i64 %slot_64
  %buffer = load ptr, ptr %at
  %count_slot_at = getelementptr i32, ptr %slots, i64 1
  %count_slot = load i32, ptr %count_slot_at
  %grain_slot_at = getelementptr i32, ptr %slots, i64 2
  %grain_slot = load i32, ptr %grain_slot_at
  %count_at = getelementptr i64, ptr %vars, i32 %count_slot
  %count = load i64, ptr %count_at
  %grain_at = getelementptr i64, ptr %vars, i32 %grain_slot
  %grain = load i64, ptr %grain_at
  call void @weft_parallel(ptr @increment_part, ptr %buffer, i64 %count, i64 %grain)
  ret void
}

define void @increment_part(ptr %buffer, i64 %begin, i64 %end) nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %at = getelementptr i32, ptr %buffer, i64 %i
  %old = load i32, ptr %at
  %new = add i32 %old, 1
  store i32 %new, ptr %at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %exit
exit:
  ret void
}

; 16 outer iterations, each a nested parallel loop over its own 64 elements.
define void @nested(ptr %table, ptr %slots, ptr %vars) nounwind {
  %buffer = load ptr, ptr %table
  call void @weft_parallel(ptr @nested_part, ptr %buffer, i64 16, i64 1)
  ret void
}

define void @nested_part(ptr %buffer, i64 %begin, i64 %end) nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %first = mul i64 %i, 64
  %row = getelementptr i32, ptr %buffer, i64 %first
  call void @weft_parallel(ptr @increment_part, ptr %row, i64 64, i64 8)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %exit
exit:
  ret void
}

; Buffer 0 is the maximum begin misalignment seen: begin % 24 over all parts, grain 24.
define void @alignment(ptr %table, ptr %slots, ptr %vars) nounwind {
  %buffer = load ptr, ptr %table
  call void @weft_parallel(ptr @alignment_part, ptr %buffer, i64 10007, i64 24)
  ret void
}

define void @alignment_part(ptr %buffer, i64 %begin, i64 %end) nounwind {
  %rest = urem i64 %begin, 24
  %old = atomicrmw umax ptr %buffer, i64 %rest seq_cst
  ret void
}
"""

NAMES = ("nothing", "increment", "nested", "alignment")


@pytest.fixture(scope="module", params=["futex", "portable wait"])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    opened = load_runtime(host(), futex=request.param == "futex")
    yield opened
    opened.pool.shutdown()


@pytest.fixture(scope="module")
def code(runtime: Runtime) -> Loaded:
    return load_object(compile_ir(KERNELS, host().target), NAMES, runtime.symbols)


def increment(runtime: Runtime, code: Loaded) -> NativePlan:
    return runtime.plan(
        [Instruction(code.address("increment"), (0, 0, 1))], externals=1, variables=2, keep=code
    )


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 64, 1000, 4096])
@pytest.mark.parametrize("grain", [0, 1, 3, 64, 5000])
def test_every_iteration_runs_once(
    runtime: Runtime, code: Loaded, threads: int, count: int, grain: int
) -> None:
    runtime.set_threads(threads)
    values = np.zeros(count + 1, np.int32)
    plan = increment(runtime, code)
    for _ in range(20):
        plan.run((values.ctypes.data,), (count, grain))
    assert (values[:count] == 20).all()
    assert values[count] == 0


def test_a_hundred_thousand_dispatches_while_the_thread_count_changes(runtime: Runtime, code: Loaded) -> None:
    values = np.zeros(64, np.int32)
    instruction = Instruction(code.address("increment"), (0, 0, 1))
    plan = runtime.plan([instruction] * 1000, externals=1, variables=2)
    stop = threading.Event()

    def change() -> None:
        count = 1
        while not stop.wait(0.001):
            count = count % 5 + 1
            runtime.set_threads(count)

    changer = threading.Thread(target=change)
    changer.start()
    for _ in range(100):
        plan.run((values.ctypes.data,), (64, 4))
    stop.set()
    changer.join()
    assert (values == 100_000).all()


def test_callers_on_several_threads_do_not_disturb_each_other(runtime: Runtime, code: Loaded) -> None:
    runtime.set_threads(3)
    instruction = Instruction(code.address("increment"), (0, 0, 1))
    results = [np.zeros(1000, np.int32) for _ in range(4)]

    def work(values: np.ndarray) -> None:
        plan = runtime.plan([instruction] * 100, externals=1, variables=2)
        for _ in range(20):
            plan.run((values.ctypes.data,), (1000, 16))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, results))
    assert all((values == 2000).all() for values in results)


def test_one_plan_may_be_run_from_several_threads(runtime: Runtime, code: Loaded) -> None:
    runtime.set_threads(2)
    plan = increment(runtime, code)
    results = [np.zeros(500, np.int32) for _ in range(4)]

    def work(values: np.ndarray) -> None:
        for _ in range(200):
            plan.run((values.ctypes.data,), (500, 16))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, results))
    assert all((values == 200).all() for values in results)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_growing_past_the_cores_lets_workers_run_anywhere_again(runtime: Runtime, code: Loaded) -> None:
    allowed = os.sched_getaffinity(0)
    plan = increment(runtime, code)
    values = np.zeros(1000, np.int32)
    for threads in (len(allowed), len(allowed) + 1):
        runtime.set_threads(threads)
        for _ in range(10):
            time.sleep(0.001)
            plan.run((values.ctypes.data,), (1000, 10))
    assert all(os.sched_getaffinity(worker.native_id) == allowed for worker in runtime.pool.workers)
    assert os.sched_getaffinity(0) == allowed


def test_nested_parallel_loops_run_inline(runtime: Runtime, code: Loaded) -> None:
    runtime.set_threads(4)
    values = np.zeros(16 * 64, np.int32)
    plan = runtime.plan([Instruction(code.address("nested"), (0,))], externals=1)
    for _ in range(200):
        plan.run((values.ctypes.data,))
    assert (values == 200).all()


def test_ranges_begin_at_multiples_of_the_grain(runtime: Runtime, code: Loaded) -> None:
    runtime.set_threads(4)
    worst = np.zeros(1, np.int64)
    plan = runtime.plan([Instruction(code.address("alignment"), (0,))] * 100, externals=1)
    plan.run((worst.ctypes.data,))
    assert worst[0] == 0


def parallel_calls(
    runtime: Runtime, count: int, grain: int, threads: int
) -> dict[int, list[tuple[int, int]]]:
    """The ranges that each thread, none of which begins its second before all have begun, runs of a job, in order."""
    calls: dict[int, list[tuple[int, int]]] = {}
    begun = threading.Barrier(threads)

    def run(_context: object, begin: int, end: int) -> None:
        mine = threading.get_ident()
        first = mine not in calls
        calls.setdefault(mine, []).append((begin, end))
        if first:
            begun.wait(10)

    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    parallel = ctypes.CFUNCTYPE(None, body, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    parallel(runtime.symbols["weft_parallel"])(body(run), None, count, grain)
    return calls


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_begin_with_the_same_share_in_each_job(runtime: Runtime, threads: int) -> None:
    runtime.set_threads(threads)
    for _ in range(5):
        calls = parallel_calls(runtime, 24 * threads, 3, threads)
        assert calls[threading.get_ident()][0] == (0, 12), "half of the first share is the caller's"
        assert sorted(c[0] for c in calls.values()) == [(24 * t, 24 * t + 12) for t in range(threads)]
        assert sum(end - begin for c in calls.values() for begin, end in c) == 24 * threads


def test_a_loop_of_more_iterations_than_blocks_have_numbers_for(runtime: Runtime) -> None:
    runtime.set_threads(2)
    for grain in (1, 3, 1 << 20):
        count = (1 << 40) + 5
        ranges = sorted(r for c in parallel_calls(runtime, count, grain, 2).values() for r in c)
        assert ranges[0][0] == 0 and ranges[-1][1] == count
        assert all(a[1] == b[0] and b[0] % grain == 0 for a, b in pairwise(ranges))


def test_thread_counts_out_of_range_are_refused(runtime: Runtime) -> None:
    for count in (0, -1, 1024):
        with pytest.raises(ValueError, match="between 1 and 1023"):
            runtime.set_threads(count)


def test_shrinking_ends_the_threads(runtime: Runtime) -> None:
    runtime.set_threads(6)
    workers = runtime.pool.workers
    assert len(workers) == 5 and all(thread.is_alive() for thread in workers)
    runtime.set_threads(1)
    assert runtime.pool.threads == 1 and not runtime.pool.workers
    assert not any(thread.is_alive() for thread in workers)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_plans_run_their_instructions_in_order(data: st.DataObject) -> None:
    """A random sequence of copies between slots gives what Python's own copying gives."""
    runtime = _plain_runtime()
    slots = 6
    sizes = data.draw(
        st.lists(
            st.tuples(st.integers(0, slots - 1), st.integers(0, slots - 1), st.integers(0, 40)), max_size=30
        )
    )
    externals = data.draw(st.integers(0, slots))
    real = [np.full(40, k, np.uint8) for k in range(slots)]
    expected = [buffer.copy() for buffer in real]
    steps = []
    for target, source, count in sizes:
        if target == source:
            continue
        expected[target][:count] = expected[source][:count]
        steps.append(runtime.runner.copy_instruction(target, source, count))
    addresses = [buffer.ctypes.data for buffer in real]
    plan = runtime.plan(steps, addresses[externals:], externals=externals)
    plan.run(addresses[:externals])
    assert all((a == b).all() for a, b in zip(real, expected, strict=True))


_RUNTIMES: list[Runtime] = []


def _plain_runtime() -> Runtime:
    if not _RUNTIMES:
        _RUNTIMES.append(load_runtime(host()))
    return _RUNTIMES[0]


@pytest.mark.parametrize("nbytes", [0, 1, 4095, (1 << 20) - 1, (1 << 20) + 1, 5_000_001])
@pytest.mark.parametrize("threads", [1, 2])
def test_copies(runtime: Runtime, nbytes: int, threads: int) -> None:
    runtime.set_threads(threads)
    source = np.random.default_rng(0).integers(0, 256, nbytes + 8, np.uint8)
    runner = runtime.runner
    for instruction in (runner.copy_instruction(1, 0, nbytes), runner.copy_variable_instruction(1, 0, 1)):
        target = np.zeros(nbytes + 8, np.uint8)
        plan = runtime.plan([instruction], externals=2, variables=2)
        plan.run((source.ctypes.data, target.ctypes.data), (-1, nbytes))
        assert (target[:nbytes] == source[:nbytes]).all()
        assert (target[nbytes:] == 0).all()


def test_byte_counts_beyond_32_bits_are_encoded(runtime: Runtime) -> None:
    for nbytes in (1 << 31, (1 << 32) + 5, 3 << 40):
        slots = runtime.runner.copy_instruction(3, 2, nbytes).slots
        assert slots[:2] == (3, 2)
        assert (slots[2] & 0xFFFFFFFF) + (slots[3] << 32) == nbytes
        assert all(-(1 << 31) <= slot < 1 << 31 for slot in slots)


def test_timed_runs_do_the_same_and_time_each_instruction(runtime: Runtime, code: Loaded) -> None:
    values = np.zeros(1_000_000, np.int32)
    plan = runtime.plan(
        [Instruction(code.address("nothing"), ()), Instruction(code.address("increment"), (0, 0, 1))],
        externals=1,
        variables=2,
    )
    nothing, work = plan.run_timed((values.ctypes.data,), (1_000_000, 1000))
    assert (values == 1).all()
    assert 0 <= nothing < work


def test_fixed_pointers_may_be_replaced(runtime: Runtime) -> None:
    source, first, second = np.ones(8, np.uint8), np.zeros(8, np.uint8), np.zeros(8, np.uint8)
    plan = runtime.plan([runtime.runner.copy_instruction(1, 0, 8)], [first.ctypes.data], externals=1)
    plan.run((source.ctypes.data,))
    plan.set_pointers(1, (second.ctypes.data,))
    plan.run((source.ctypes.data,))
    assert first.sum() == second.sum() == 8
    with pytest.raises(ValueError, match="not all in the table"):
        plan.set_pointers(1, (0, 0))


def test_a_plan_runs_again_on_the_pointers_of_its_last_run_but_for_those_that_changed(
    runtime: Runtime,
) -> None:
    arrays = [np.zeros(8, np.uint8) for _ in range(3)]
    copy = runtime.runner.copy_variable_instruction(1, 0, 0)
    plan = runtime.plan([copy], externals=2, variables=1)
    source, first, second = arrays
    source[:] = 1
    plan.run((source.ctypes.data, first.ctypes.data), (4,))
    plan.run_again([(1, second.ctypes.data)], (8,))
    source[:] = 2
    plan.run_again([], (2,))
    assert first.tolist() == [1] * 4 + [0] * 4 and second.tolist() == [2] * 2 + [1] * 6
    with pytest.raises(struct.error):
        plan.run_again([], ())


class Bytes:
    """Memory as a direct call sees it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.address = array, array.ctypes.data


MEMORIES = (Source(Access.MEMORY, index=0), Source(Access.MEMORY, index=1))


def test_direct_calls_run_or_say_that_they_did_not(runtime: Runtime) -> None:
    source, target = Bytes(np.arange(8, dtype=np.uint8)), Bytes(np.zeros(8, np.uint8))
    plan = runtime.plan([runtime.runner.copy_instruction(1, 0, 8)], externals=2)
    found = plan.direct(MEMORIES, 2)
    if sys.implementation.name != "cpython":
        assert found is None
        return
    assert found is not None
    direct = found.run
    before = [sys.getrefcount(x) for x in (source, source.address, True, False)]
    for wrong in ((), (source,), (source, target, target), (source, 7), (source, None)):
        assert direct(*wrong) is False
    assert not target.array.any() and found.runs[0] == 0
    for _ in range(100):
        assert direct(source, target) is True
    assert (target.array == source.array).all() and found.runs[0] == 100
    after = [sys.getrefcount(x) for x in (source, source.address, True, False)]
    assert all(abs(x - y) < 50 for x, y in zip(before, after, strict=True))
    with pytest.raises(TypeError):
        direct(source, target, queue=0)
    del plan  # the function keeps what it runs
    target.array[:] = 0
    assert direct(source, target) and (target.array == source.array).all()


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="no direct calls")
def test_direct_calls_know_fixed_pointers_and_memories(runtime: Runtime) -> None:
    source, target, other = (Bytes(np.full(8, k, np.uint8)) for k in range(3))
    plan = runtime.plan([runtime.runner.copy_instruction(1, 0, 8)], [target.address], externals=1)
    found = plan.direct([Source(Access.MEMORY, source)], 0, holds=True)
    assert found is not None and found.run() and not target.array.any()
    plan.set_pointers(1, [other.address])  # read at each run
    assert found.run() and not other.array.any()
    with pytest.raises(ValueError, match="takes 1 memories, not 2"):
        plan.direct(MEMORIES, 2)
    assert runtime.plan([], externals=1, variables=1).direct(MEMORIES[:1], 1) is None


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="no direct calls")
def test_direct_calls_compare_stamps(runtime: Runtime) -> None:
    source, target = Bytes(np.ones(8, np.uint8)), Bytes(np.zeros(8, np.uint8))
    plan, stamps = runtime.plan([runtime.runner.copy_instruction(1, 0, 8)], externals=2), [5]

    def stamp() -> int:
        return stamps[0] if stamps else int("none")

    found = plan.direct([replace(s, index=1 + s.index) for s in MEMORIES], 3, stamp=stamp)
    assert found is not None
    assert not found.run(4, source, target) and not found.run("5", source, target)
    assert not target.array.any() and found.run(5, source, target) and target.array.all()
    stamps.clear()
    assert not found.run(5, source, target)


def test_an_empty_plan_runs(runtime: Runtime) -> None:
    plan = runtime.plan([])
    plan.run()
    assert plan.run_timed() == []


def run_python(source: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


def test_a_process_with_workers_and_live_blocks_ends_cleanly() -> None:
    assert (
        run_python("""
        from weft.backends.cpu.runtime import open_runtime
        runtime = open_runtime(threads=4)
        assert open_runtime() is runtime
        blocks = [runtime.allocator.allocate(1 << k) for k in range(24)]
        print(runtime.pool.threads)
    """)
        == "4"
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_workers_of_its_own() -> None:
    assert (
        run_python("""
        import ctypes, os, threading
        from weft.backends.cpu.runtime import open_runtime
        from weft.backends.direct import Access, Source
        runtime = open_runtime(threads=3)
        source, target = ctypes.create_string_buffer(b"x" * (4 << 20)), ctypes.create_string_buffer(4 << 20)
        plan = runtime.plan([runtime.runner.copy_instruction(1, 0, 4 << 20)], externals=2)
        both = (ctypes.addressof(source), ctypes.addressof(target))
        memories = [runtime.allocator.allocate(4 << 20) for _ in both]
        plan.run(both)
        direct = plan.direct([Source(Access.MEMORY, index=k) for k in (0, 1)], 2)
        child = os.fork()
        if child == 0:
            assert direct is None or not direct.run(*memories)  # not before there are workers
            plan.run(both)
            assert direct is None or direct.run(*memories)
            workers = [t for t in runtime.pool.workers if t.is_alive()]
            runtime.allocator.allocate(100)
            os._exit(0 if len(workers) == 2 and target.raw[-2:] == b"xx" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        plan.run(both)
        print("parent lives")
    """)
        == "parent lives"
    )


def test_the_runtime_takes_its_object_from_a_cache() -> None:
    kept: dict[object, bytes] = {}

    def build(*key: object) -> bytes:
        if key not in kept:
            kept[key] = compile_ir(*key)  # type: ignore[arg-type]
        return kept[key]

    first, second = load_runtime(host(), build), load_runtime(host(), build)
    assert len(kept) == 1
    assert first.symbols != second.symbols
    address = first.symbols["weft_parallel"]
    calls: list[tuple[int, int]] = []
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    record = body(lambda _context, begin, end: calls.append((begin, end)))
    parallel = ctypes.CFUNCTYPE(None, body, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)
    parallel(record, None, 10, 4)
    assert calls == [(0, 10)]


def test_the_code_of_a_forgotten_runtime_stays_for_forks_and_the_end_of_the_process() -> None:
    runtime = load_runtime(host())
    code = weakref.ref(runtime.code)
    del runtime
    gc.collect()
    assert code() is not None
