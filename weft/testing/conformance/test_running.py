"""Plans: several steps, workspaces, runtime variables, threads, images, timings."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from weft.backends.protocol import Commands, CopyBytes, Device, Launch, Memory
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.expr import Const, Load, call, from_index
from weft.ir.index import Var, in_range
from weft.ir.loops import Accumulate, Alloc, Buffer, Loop, LoopKind, Program, Scope, Store
from weft.ir.ops import Op
from weft.scheduler.lowering import optimized
from weft.testing.conformance.harness import Array, Harness

F = dtypes.float32
N = 1000
MOST = Var("n", 1, N)
RUNS_OF_A_THREAD = 6


def scaled(factor: float, name: str = "scaled") -> Program:
    """y[i] = factor * x[i] for the first n elements."""
    i = Var("i", 0, N - 1)
    body = Loop(i, MOST, (Store("y", i, call(Op.MUL, Load(F, "x", (i,)), Const(F, factor))),))
    params = (Buffer("x", F, MOST, Scope.GLOBAL), Buffer("y", F, MOST, Scope.GLOBAL))
    return Program(name, params, frozenset("y"), (MOST,), (body,))


def added(a: Var, b: Var, d: DType) -> Program:
    """y[i] = x[i] + a - 2 b: two variables of which the order matters."""
    i = Var("i", 0, N - 1)
    value = call(Op.ADD, Load(F, "x", (i,)), call(Op.CAST, from_index(a - b * 2, d), dtype=F))
    params = (Buffer("x", F, N, Scope.GLOBAL), Buffer("y", F, N, Scope.GLOBAL))
    return Program("added", params, frozenset("y"), (a, b), (Loop(i, N, (Store("y", i, value),)),))


def data(seed: int = 0) -> Array:
    """Some numbers."""
    return np.random.default_rng(seed).integers(-50, 50, N).astype(np.float32)


STEPS = (Launch(0, (0, 2), (0,)), Launch(1, (2, 3), (0,)), CopyBytes(1, 3, 4 * N), Launch(0, (1, 0), (0,)))
PLAN = Commands(STEPS, 2, (0, 4096), 8192, 1)
"""w0 = 2 x; w1 = 3 w0; y = w1; x = 2 y: through two places of the workspace."""


def test_runs_are_counted(harness: Harness) -> None:
    """A run that was finished is one that was started; one that is refused is neither, or both."""
    device = harness.device
    codes, _ = device.compile([optimized(scaled(2, "two"), device.info)])
    plan = device.link(codes, Commands((Launch(0, (0, 1), (0,)),), 2, (), 0, 1))
    x = harness.put(data())
    y = harness.put(np.zeros(N, np.float32))
    before = plan.finished
    assert plan.started == before
    for k in range(1, 4):
        plan.run([x, y], [N])
        assert plan.started == plan.finished == before + k
    plan.run_timed([x, y], [N])
    assert plan.started == plan.finished == before + 4
    with pytest.raises((ValueError, TypeError)):
        plan.run([x], [N])
    assert plan.started == plan.finished
    device.synchronize()


def test_steps_run_in_order(harness: Harness) -> None:
    """Launches and copies, each of which needs the one before; again on other memory, and with another number."""
    device = harness.device
    codes, _ = device.compile(
        [optimized(scaled(2, "two"), device.info), optimized(scaled(3, "three"), device.info)]
    )
    plan = device.link(codes, PLAN)
    for seed in range(3):
        x, y = data(seed), data(seed + 10)
        memories = [harness.put(x), harness.put(y)]
        for n in (N, 17, N):
            w = x[:n] * 6
            plan.run(memories, [n])
            x[:n] = 2 * w
            y[:n] = w
            assert np.array_equal(harness.get(memories[1], y)[:n], y[:n])
            assert np.array_equal(harness.get(memories[0], x), x)
            x %= 50
            device.write(memories[0], x.data)


def test_buffers_beside_a_workspace(harness: Harness) -> None:
    """Kernels with a large buffer of their own, over places of the workspace: y[i] = x[i] + 2 x[n - 1 - i], twice."""
    n = 3000
    i, j, device = Var("i", 0, n - 1), Var("j", 0, n - 1), harness.device
    mirror = call(Op.MUL, Load(F, "x", (i,)), Const(F, 2))
    body = (
        Alloc(Buffer("own", F, n, Scope.LOCAL)),
        Loop(i, n, (Store("own", n - 1 - i, mirror),)),
        Loop(j, n, (Store("y", j, call(Op.ADD, Load(F, "x", (j,)), Load(F, "own", (j,)))),)),
    )
    params = (Buffer("x", F, n, Scope.GLOBAL), Buffer("y", F, n, Scope.GLOBAL))
    (run,) = harness.compile([Program("mirrored", params, frozenset("y"), (), body)])
    steps = (CopyBytes(2, 0, 4 * n), Launch(0, (2, 3)), Launch(0, (3, 1)))
    plan = device.link([run.code], Commands(steps, 2, (0, 4 * 4096), 8 * 4096))
    x = np.random.default_rng(0).integers(-50, 50, n).astype(np.float32)
    memories = [harness.put(x), harness.put(x)]
    plan.run(memories)
    once = x + 2 * x[::-1]
    assert np.array_equal(harness.get(memories[1], x), once + 2 * once[::-1])


def test_places_of_the_workspace(harness: Harness) -> None:
    """Each slot has bytes of its own, wherever it begins and to the end of the workspace, in launches and in copies."""
    device = harness.device
    codes, _ = device.compile([optimized(scaled(k, f"times_{k}"), device.info) for k in (2, 3, 5)])
    offsets = (4352, 256, 8448)
    steps = (
        *(Launch(k, (0, 4 + k), (0,)) for k in range(3)),
        CopyBytes(1, 4, 4 * N),
        *(Launch(0, (4 + k, 1 + k), (0,)) for k in (1, 2)),
        CopyBytes(5, 6, 4 * N - 8),
        CopyBytes(0, 5, 4 * N),
    )
    plan = device.link(codes, Commands(steps, 4, offsets, offsets[2] + 4 * N, 1))
    for seed in range(2):
        x = data(seed)
        memories = [harness.put(x), *(harness.put(np.zeros_like(x)) for _ in range(3))]
        plan.run(memories, [N])
        found = [harness.get(m, x) for m in memories]
        want = [x * 2, x * 6, x * 10]
        assert all(np.array_equal(a, b) for a, b in zip(found[1:], want, strict=True))
        assert np.array_equal(found[0], np.concatenate([x[:-2] * 5, x[-2:] * 3]))


def test_equal_names(harness: Harness) -> None:
    """Programs of one name, compiled one after the other and loaded from images, are different programs."""
    device = harness.device
    made = [device.compile([optimized(scaled(k, "same"), device.info)]) for k in (2, 3, 5)]
    codes = [next(iter(c)) for c, _ in made]
    codes += [next(iter(device.load(image, ["same"]))) for _, image in made[::-1] if image]
    factors = (2, 3, 5, 5, 3, 2)[: len(codes)]
    steps = tuple(Launch(k, (0, 1 + k), (0,)) for k in range(len(codes)))
    plan = device.link(codes, Commands(steps, 1 + len(codes), (), 0, 1))
    memories = [harness.put(data()), *(harness.put(np.zeros_like(data())) for _ in codes)]
    plan.run(memories, [N])
    for k, m in zip(factors, memories[1:], strict=True):
        assert np.array_equal(harness.get(m, data()), data() * k)


def test_what_a_run_needs_may_die(harness: Harness) -> None:
    """Memories and plans that are freed or forgotten while a run may still use them: others get the bytes after it."""
    device, n = harness.device, 1 << 16
    most = Var("n", 1, n)
    i, k = Var("i", 0, n - 1), Var("k", 0, 19)
    more = Accumulate("y", i, Op.ADD, Load(F, "x", (i,)))
    body = (Loop(i, most, (Store("y", i, Const(F, 0)), Loop(k, 20, (more,))), LoopKind.PARALLEL),)
    params = (Buffer("x", F, most, Scope.GLOBAL), Buffer("y", F, most, Scope.GLOBAL))
    codes, _ = device.compile(
        [optimized(Program("often", params, frozenset("y"), (most,), body), device.info)]
    )
    steps = (Launch(0, (0, 2), (0,)), Launch(0, (2, 1), (0,)))
    x, zero = np.arange(n, dtype=np.float32) % 97, np.zeros(n, np.float32)
    results: list[Memory] = []
    for k in range(6):
        plan = device.link(codes, Commands(steps, 2, (0,), 4 * n, 1))
        source, target = harness.put(x + k), device.allocate(4 * n)
        plan.run([source, target], [n])
        if k % 2:
            device.free(source)
        del source, plan
        results.append(target)
        harness.put(zero)  # dies at once: its bytes are taken for the next
    for k, target in enumerate(results):
        assert np.array_equal(harness.get(target, x), (x + k) * 400)


def test_indices_have_all_their_bits(harness: Harness) -> None:
    """Steps to an index, and to the bound that it is compared with, may need more bits than the index itself."""
    device = harness.device
    wide = dtypes.int64 in device.info.dtypes and device.info.bounds.index_bits == 64
    n = Var("n", 1, 2**41 if wide else 2**20)
    unit = n.hi // 8
    i = Var("i", 0, N - 1)
    at = (i * n // unit) % N  # i * n does not fit in 32 bits
    guard = in_range(i * n, None, N // 2 * unit)
    constant = i * (2**22 + 15 if wide else 2**20 + 7) // (2**15 - 9) % N
    constant = (constant + i * (2**40 + 15) // (2**33 - 9)) % N if wide else constant
    params = tuple([Buffer(name, F, N, Scope.GLOBAL) for name in "xyz"])
    steps = (Store("y", i, Load(F, "x", (at,)), guard), Store("z", i, Load(F, "x", (constant,))))
    (run,) = harness.compile([Program("wide", params, frozenset("yz"), (n,), (Loop(i, N, steps),))])
    for value in (1, unit - 1, unit, n.hi // 3, n.hi):
        run.check({"x": data(), "y": np.zeros(N, np.float32), "z": np.zeros(N, np.float32)}, {"n": value})


def test_every_step_is_timed(harness: Harness) -> None:
    """One number per step, none of them negative, and the results are there."""
    device = harness.device
    codes, _ = device.compile(
        [optimized(scaled(2, "two"), device.info), optimized(scaled(3, "three"), device.info)]
    )
    memories = [harness.put(data()), harness.put(data())]
    times = device.link(codes, PLAN).run_timed(memories, [N])
    assert len(times) == len(STEPS) and min(times) >= 0
    assert np.array_equal(harness.get(memories[1], data()), data() * 6)


def test_an_empty_plan(harness: Harness) -> None:
    """Nothing to do is done."""
    plan = harness.device.link([], Commands((), 1, (), 0))
    memory = harness.put(data())
    plan.run([memory])
    assert plan.run_timed([memory]) == []
    assert np.array_equal(harness.get(memory, data()), data())


def test_one_memory_twice(harness: Harness) -> None:
    """A result may be stored over what it is computed from, element by element."""
    device = harness.device
    codes, _ = device.compile([optimized(scaled(2), device.info)])
    plan = device.link(codes, Commands((Launch(0, (0, 0), (0,)),), 1, (), 0, 1))
    memory = harness.put(data())
    plan.run([memory], [N])
    assert np.array_equal(harness.get(memory, data()), data() * 2)


def test_variables_by_name(harness: Harness) -> None:
    """Variables may be negative, need all 64 bits of an index, and reach the program in its order."""
    device = harness.device
    info = device.info
    most = 2**40 if dtypes.int64 in info.dtypes and info.bounds.index_bits == 64 else 2**20
    a, b = Var("a", -most, most), Var("b", -100, 100)
    program = added(a, b, dtypes.int64 if most == 2**40 else dtypes.int32)
    codes, _ = device.compile([optimized(program, device.info)])
    plan = device.link(codes, Commands((Launch(0, (0, 1), (2, 0)),), 2, (), 0, 3))
    x = data()
    memories = [harness.put(x), harness.put(x)]
    for values in ([7, 99, 5], [-100, 0, -(2**20)], [0, 0, most]):
        plan.run(memories, values)
        want = x + np.float32(values[2] - 2 * values[0])
        assert np.array_equal(harness.get(memories[1], x), want)


def test_far_away(harness: Harness) -> None:
    """Elements, and whole memories, that lie behind 2 GiB, or 4, where a device has as much: y = what stands at the end
    of x, plus 1, and the same the other way. Nothing in between is touched."""
    device, info = harness.device, harness.device.info
    room = min(info.bounds.buffer_bytes, info.memory_bytes * 3 // 4)
    size = next((s for s in (1 << 32, 1 << 31) if s + 4096 <= room), None)
    if size is None:
        return
    n, i = Var("n", N, size // 4 + N), Var("i", 0, N - 1)
    x, y = Buffer("x", F, n, Scope.GLOBAL), Buffer("y", F, N, Scope.GLOBAL)
    far, one = n - 1 - i, Const(F, 1)
    programs = [
        Program("there", (x, y), frozenset("x"), (n,), (Loop(i, N, (Store("x", far, Load(F, "y", (i,))),)),)),
        Program(
            "back",
            (x, y),
            frozenset("y"),
            (n,),
            (Loop(i, N, (Store("y", i, call(Op.ADD, Load(F, "x", (far,)), one)),)),),
        ),
    ]
    try:
        large = device.allocate(size + 4096)
    except MemoryError:
        return
    there, back = harness.compile(programs)
    plan = device.link(
        [there.code, back.code], Commands((Launch(0, (0, 1), (0,)), Launch(1, (0, 2), (0,))), 3, (), 0, 1)
    )
    small = [harness.put(data()), harness.put(data(1))]  # behind it, where addresses go up
    count = size // 4 + 1000
    plan.run([large, *small], [count])
    assert np.array_equal(harness.get(small[1], data()), data() + 1)
    end = device.read(large, 4 * N, 4 * (count - N))
    assert np.array_equal(np.frombuffer(end, np.float32), data()[::-1])


def test_threads_share_a_plan(harness: Harness) -> None:
    """Runs from several threads, with a workspace, each on its own memory: many steps, and threads that take turns as
    often as Python lets them."""
    device = harness.device
    codes, _ = device.compile(
        [optimized(scaled(2, "two"), device.info), optimized(scaled(0.5, "half"), device.info)]
    )
    there, back = Launch(0, (2, 3), (0,)), Launch(1, (3, 2), (0,))
    steps = (Launch(0, (0, 2), (0,)), *(there, back) * 3, there, CopyBytes(1, 3, 4 * N))
    plan = device.link(codes, Commands(steps, 2, (0, 4096), 8192, 1))
    failures: list[str] = []
    together = threading.Barrier(4)

    def work(seed: int) -> None:
        try:
            for k in range(RUNS_OF_A_THREAD):
                x = data(seed * 100 + k)
                memories = [harness.put(x), harness.put(x)]
                together.wait(60)
                plan.run(memories, [N])
                if not np.array_equal(harness.get(memories[1], x), x * 4):
                    failures.append(f"thread {seed}, run {k}")
        except Exception as error:  # noqa: BLE001  (it would be lost with its thread)
            failures.append(repr(error))
            together.abort()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures


def test_images(harness: Harness) -> None:
    """Code from an image computes the same; code says what it is made of."""
    device = harness.device
    programs = [optimized(scaled(k, f"scaled_{k}"), device.info) for k in (2, 3)]
    codes, image = device.compile(programs)
    assert all(isinstance(c.source, str) for c in codes)
    if not image:
        return  # this backend's code cannot be stored
    loaded = device.load(image, ["scaled_3"])
    plan = device.link(loaded, Commands((Launch(0, (0, 1), (0,)),), 2, (), 0, 1))
    memories = [harness.put(data()), harness.put(data())]
    plan.run(memories, [N])
    assert np.array_equal(harness.get(memories[1], data()), data() * 3)


@pytest.mark.parametrize("image", (b"", b"not an image", bytes(range(256)) * 8))
def test_foreign_images_are_refused(device: Device, image: bytes) -> None:
    """A ValueError, so that the scheduler compiles anew."""
    with pytest.raises(ValueError):
        device.load(image, ["scaled_3"])


def test_listings(device: Device) -> None:
    """The listings of a program can be read."""
    listings = device.listings(optimized(scaled(2), device.info))
    assert all(isinstance(k, str) and text for k, text in listings.items())
