"""Fits the cost model to this machine: what its core takes for the things that schedule rules count.

python -m benchmarks.costs           prints each number as it was and as it is, and keeps them for the cpu
python -m benchmarks.costs --look    keeps nothing

Each number is the time of a loop that does little else, over that of a multiply-add of vectors. The best of several
rounds counts, since whatever disturbs one makes it slower; the spread says how much slower half of them were. Numbers
that no such loop shows (what the arithmetic beside it hides, how far to prefetch, the layout of caches) stay. Whether
schedules are better by the new numbers, `python -m benchmarks` says; `python -m weft cache --clear` forgets them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median

from weft.backends.costs import CostModel
from weft.backends.cpu.device import CpuDevice
from weft.backends.cpu.runtime import open_runtime
from weft.backends.protocol import Commands, Device, DeviceInfo, Launch
from weft.ir.dtypes import float32
from weft.ir.expr import Expr, Load, call
from weft.ir.index import Int, Var, high
from weft.ir.loops import Accumulate, Alloc, Block, Buffer, Loop, LoopKind, Program, Scope, Stmt, Store
from weft.ir.ops import Op
from weft.scheduler.lowering import optimized

ROUNDS = 15
STEPS = 1_000_000
"""Things that one run does, at least."""

CHAINS = 8
"""Independent accumulators: as many as two units with a latency of four cycles keep busy."""

APART = 16
"""Elements from one access to another that is on a line of its own."""

MAX_SPREAD = 0.25
"""Beyond, something else runs on the machine, and nothing is kept."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lanes of a vector; elements that stay in the first cache and in the second; things to do in a run."""

    lanes: int
    near: int
    far: int
    steps: int


@dataclass(frozen=True, slots=True)
class Probe:
    """A loop, and how often it does its one thing."""

    program: Program
    count: int


@dataclass(frozen=True, slots=True)
class Fit:
    """A number of the model: as it was, as measured, and by how much the median of the rounds was above the best."""

    old: float
    new: float
    spread: float


def _loop(
    name: str, extent: int, body: Callable[[Var], Sequence[Stmt]], kind: LoopKind = LoopKind.SERIAL
) -> Loop:
    v = Var(name, 0, extent - 1)
    return Loop(v, extent, tuple(body(v)), kind)


def _vector(z: Sizes, body: Callable[[Var], Stmt], name: str = "lane") -> Loop:
    return _loop(name, z.lanes, lambda lane: [body(lane)], LoopKind.VECTOR)


def _x(at: Int) -> Load:
    return Load(float32, "x", (at,))


def _repeated(z: Sizes, each: int, body: Block, setup: Block = (), after: Block = ()) -> Probe:
    """A probe whose body does `each` things, often enough."""
    times = -(-z.steps // each)
    size = max(z.far, z.near, CHAINS * z.lanes)
    buffers = (Buffer("x", float32, size, Scope.GLOBAL), Buffer("y", float32, size, Scope.GLOBAL))
    loop = _loop("time", times, lambda _: body)
    return Probe(Program("probe", buffers, frozenset("y"), (), (*setup, loop, *after)), times * each)


def _in_registers(z: Sizes, chains: int, step: Callable[[Load], Expr]) -> Probe:
    """So many vectors, each of which becomes `step` of itself over and over."""

    def every(name: str, body: Callable[[Int], Stmt]) -> Loop:
        return _loop(
            name,
            chains,
            lambda k: [_vector(z, lambda lane: body(k * z.lanes + lane), f"{name}_lane")],
            LoopKind.UNROLL,
        )

    def kept(at: Int) -> Load:
        return Load(float32, "kept", (at,))

    start = Alloc(Buffer("kept", float32, chains * z.lanes, Scope.REGISTER))
    first = every("first", lambda at: Store("kept", at, _x(at)))
    steps = every("chain", lambda at: Store("kept", at, step(kept(at))))
    last = every("last", lambda at: Store("y", at, kept(at)))
    return _repeated(z, chains, (steps,), (start, first), (last,))


def multiply_add(z: Sizes) -> Probe:
    """Multiply-adds of vectors in registers: the unit of all numbers."""
    return _in_registers(z, CHAINS, lambda v: call(Op.ADD, call(Op.MUL, v, _x(0)), _x(1)))


def _dependent_add(z: Sizes) -> Probe:
    return _in_registers(z, 1, lambda v: call(Op.ADD, v, _x(0)))


def _operation(z: Sizes) -> Probe:
    return _in_registers(z, CHAINS, lambda v: call(Op.MUL, v, _x(0)))


def _summed(z: Sizes, terms: int, width: int, at: Callable[[Int, Int], Int]) -> Probe:
    """The sums of `terms` groups of `width` elements each, which are read at (group, number in it)."""
    total = Buffer("total", float32, CHAINS * width, Scope.REGISTER)

    def chain(group: Int, k: Int) -> Stmt:
        if width == 1:
            return Accumulate("total", k, Op.ADD, _x(at(group, 0)))
        return _vector(z, lambda lane: Accumulate("total", k * width + lane, Op.ADD, _x(at(group, lane))))

    def chains(body: Callable[[Var], Stmt]) -> Loop:
        return _loop("chain", CHAINS, lambda k: [body(k)], LoopKind.UNROLL)

    def every(name: str, body: Callable[[Int], Stmt]) -> Loop:
        return _loop(name, CHAINS * width, lambda k: [body(k)], LoopKind.UNROLL)

    groups = max(terms // CHAINS, 1)
    body = _loop("group", groups, lambda i: [chains(lambda k: chain(i * CHAINS + k, k))])
    setup = (Alloc(total), every("first", lambda k: Store("total", k, _x(0))))
    after = (every("last", lambda k: Store("y", k, Load(float32, "total", (k,)))),)
    return _repeated(z, groups * CHAINS, (body,), setup, after)


def _near_vectors(z: Sizes) -> Probe:
    return _summed(z, z.near // z.lanes, z.lanes, lambda group, lane: group * z.lanes + lane)


def _far_vectors(z: Sizes) -> Probe:
    return _summed(z, z.far // z.lanes, z.lanes, lambda group, lane: group * z.lanes + lane)


def _far_elements(z: Sizes) -> Probe:
    return _summed(z, z.far // APART, 1, lambda group, _: group * APART)


def _moved(z: Sizes, rows: int, to: Callable[[Int, Int], Int], source: Callable[[Int, Int], Int]) -> Probe:
    """Vectors that are written to, and read from, places by (row, lane)."""
    body = _loop(
        "row", rows, lambda i: [_vector(z, lambda lane: Store("y", to(i, lane), _x(source(i, lane))))]
    )
    return _repeated(z, rows * z.lanes, (body,))


def _copied(z: Sizes) -> Probe:
    return _moved(
        z, z.near // z.lanes, lambda i, lane: i * z.lanes + lane, lambda i, lane: i * z.lanes + lane
    )


def _gathered(z: Sizes) -> Probe:
    rows = z.near // z.lanes
    return _moved(z, rows, lambda i, lane: i * z.lanes + lane, lambda i, lane: lane * rows + i)


def _scattered(z: Sizes) -> Probe:
    rows = z.far // (APART * z.lanes)
    return _moved(z, rows, lambda i, lane: (lane * rows + i) * APART, lambda i, lane: i * z.lanes + lane)


def _lane_sums(z: Sizes) -> Probe:
    rows = z.near // z.lanes
    body = _loop(
        "row", rows, lambda i: [_vector(z, lambda lane: Accumulate("y", 0, Op.ADD, _x(i * z.lanes + lane)))]
    )
    return _repeated(z, rows, (body,))


def _functions(z: Sizes) -> Probe:
    rows = z.near // z.lanes

    def body(i: Var) -> list[Stmt]:
        return [_vector(z, lambda l: Store("y", i * z.lanes + l, call(Op.EXP, _x(i * z.lanes + l))))]

    return _repeated(z, rows, (_loop("row", rows, body),))


PROBES: dict[str, Callable[[Sizes], Probe]] = {
    "add_latency_cycles": _dependent_add,
    "vector_load_cycles": _near_vectors,
    "l2_vector_cycles": _far_vectors,
    "l2_element_cycles": _far_elements,
    "copy_cycles": _copied,
    "gather_cycles": _gathered,
    "scatter_store_cycles": _scattered,
    "call_cycles": _operation,
    "function_cycles": _functions,
    "lane_sum_cycles": _lane_sums,
}
"""The numbers of the model that are measured, each by a loop."""


def sizes(info: DeviceInfo, steps: int) -> Sizes:
    """What fits where: a quarter of the first cache, and half of the second, for the two buffers together."""
    lanes = info.lanes(float32)
    row = APART * lanes * float32.itemsize
    near, far = (n // (2 * row) * APART * lanes for n in (info.l1_bytes // 4, info.l2_bytes // 2))
    return Sizes(lanes, max(near, APART * lanes), max(far, APART * lanes), steps)


def sampled(device: Device, probes: Mapping[str, Probe], rounds: int, clock: Clock) -> dict[str, list[float]]:
    """The nanoseconds that each probe's loop takes once, in every round. The first round does not count."""
    programs = [replace(optimized(p.program, device.info), name=name) for name, p in probes.items()]
    codes, _ = device.compile(programs)
    runs = [device.link([code], Commands((Launch(0, (0, 1)),), 2, (), 0)) for code in codes]
    nbytes = max(high(p.program.params[0].size) for p in probes.values()) * float32.itemsize
    memories = [device.allocate(nbytes) for _ in range(2)]
    for memory in memories:
        device.write(memory, memoryview(bytes(nbytes)))
    times: dict[str, list[float]] = {name: [] for name in probes}
    for _ in range(rounds + 1):
        for name, run in zip(probes, runs, strict=True):
            start = clock()
            run.run(memories)
            device.synchronize()
            times[name].append(clock() - start)
    return {name: found[1:] for name, found in times.items()}


def fitted(model: CostModel, each: Mapping[str, Sequence[float]]) -> dict[str, Fit]:
    """The numbers for which there are times, of doing each thing once; "cycle" is the unit."""
    unit = min(each["cycle"])
    return {
        name: Fit(getattr(model, name), min(times) / unit, median(times) / min(times) - 1)
        for name, times in each.items()
        if name != "cycle"
    }


def measured(device: Device, steps: int, rounds: int, clock: Clock) -> dict[str, Fit]:
    """All numbers that are measured, on this device now."""
    z = sizes(device.info, steps)
    probes = {"cycle": multiply_add(z), **{name: make(z) for name, make in PROBES.items()}}
    times = sampled(device, probes, rounds, clock)
    return fitted(
        device.info.costs, {name: [t / probes[name].count for t in found] for name, found in times.items()}
    )


def main(given: Sequence[str] | None = None, clock: Clock = time.perf_counter_ns) -> int:
    """The command. 1 where the rounds differ too much for their best to be kept."""
    p = argparse.ArgumentParser(
        prog="benchmarks.costs", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    p.add_argument("--look", action="store_true", help="print only")
    p.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of each loop (default: {ROUNDS})")
    p.add_argument("--steps", type=int, default=STEPS, help=f"steps of one loop (default: {STEPS:,})")
    options = p.parse_args(given)
    device = CpuDevice(open_runtime())
    fits = measured(device, options.steps, options.rounds, clock)
    print(f"{'':24}{'was':>12}{'is':>12}{'spread':>9}")
    for f in fields(CostModel):
        fit, old = fits.get(f.name), getattr(device.info.costs, f.name)
        print(f"{f.name:24}{old:12,.2f}" + (f"{fit.new:12,.2f}{fit.spread:9.0%}" if fit else ""))
    worst = max(fit.spread for fit in fits.values())
    if worst > MAX_SPREAD:
        print(f"Nothing is kept: half of the rounds were up to {worst:.0%} slower than the best.")
        return 1
    if not options.look:
        device.keep_costs(replace(device.info.costs, **{name: fit.new for name, fit in fits.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
