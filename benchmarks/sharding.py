"""Measures work over many devices by the marks that it was built for: planning, choices, overlap, memory, explanations.

python -m benchmarks.sharding                    all marks: ten minutes; a Markdown table
python -m benchmarks.sharding --only 2,10        some
python -m benchmarks.sharding --busy             others use the machine: processor time

Devices are simulated ones, so that the times of their steps are exact and the same everywhere; what is measured by the
clock is planning, and the CPU beside OpenCL on its cores. Marks 4 (layouts that are found) and most of 7 (bits) hold or
do not, and are tests; mark 1 is `python -m tools.placed_samples`.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import re
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import weft
from benchmarks import placing
from benchmarks.marks import Row, clock, table, turns
from weft import nn
from weft.backends.dummy.device import describe
from weft.backends.dummy.farm import Farm
from weft.backends.dummy.links import all_to_all
from weft.backends.links import Link
from weft.core.execute.explanation import Explanation
from weft.errors import MemoryPlanError
from weft.ir.garbage import not_collected
from weft.ir.placement import Mesh
from weft.scheduler.parts import found as parts
from weft.scheduler.parts.cut import Compute, cut
from weft.scheduler.parts.proof import prove
from weft.scheduler.placing.layouts import Rates, choose
from weft.scheduler.signature import signature
from weft.scheduler.spmd.lower import lower_alike
from weft.scheduler.spmd.order import ordered_alike
from weft.testing import farm

# planning: marks 2 and 8 ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan of a training step for many devices: seconds beyond the graph's, of the proof alone, MiB beyond the
    graph's, and how many parts and programs there are."""

    seconds: float
    proof_seconds: float
    mebibytes: float
    parts: int
    programs: int


def planned(layers: int, grid: tuple[int, int], batch: int) -> Planned:
    """Choose layouts, make the graph of any device, cut it, order the steps and prove them."""
    nodes, updates = placing.training_graph(layers, batch)
    links = placing.SQUARE_LINKS if grid == (8, 8) else placing.LARGE_LINKS
    mesh = Mesh("cpu:0", tuple(f"sim:{k}" for k in range(grid[0] * grid[1])), grid)
    rates = [Rates(100e12, 2e12, placing.LAUNCH_NS)] * len(mesh.devices)
    gc.collect()
    with not_collected():  # as while planning
        before, began = _peak_mebibytes(), clock[0]()
        found = choose(nodes, mesh, rates, links, updates=updates)
        alike = lower_alike(nodes, mesh, found.layouts, found.splits)
        outputs, leaves = [alike.locals[n] for n in nodes], list(alike.leaves.values())
        steps = cut(outputs, leaves, lambda _: describe(0, "sim"), mesh.devices[0])
        ordered_alike(steps, 1)
        middle = clock[0]()
        prove(steps, outputs, leaves)
        ended = clock[0]()
    computed = [s for s in steps.steps if isinstance(s, Compute)]
    kinds = {signature(s.nodes).key for s in computed}
    return Planned(ended - began, ended - middle, _peak_mebibytes() - before, len(computed), len(kinds))


def _peak_mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def alone(*arguments: Any) -> Planned:
    """`planned` in a process of its own, whose peak is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(planned, arguments)


def planning(rounds: int) -> Iterator[Row]:
    """Mark 2: plans of a training step of a transformer, and proving the largest, mark 8."""
    square, deep, wide = alone(32, (8, 8), 64), alone(96, (8, 8), 64), alone(32, (125, 8), 1000)
    yield Row(2, "plan, 32 layers on 8 x 8", square.seconds, most=2, unit="s")
    yield Row(2, "plan, 96 layers / 32 layers", deep.seconds / square.seconds, most=1.3)
    yield Row(2, "plan, 32 layers on 1,000 devices", wide.seconds, most=5, unit="s")
    yield Row(2, "its memory", wide.mebibytes, most=1024, unit="MiB")
    yield Row(2, "programs, 1,000 devices - 64", wide.programs - square.programs, most=2, unit="programs")
    yield Row(2, "kept plan, 32 layers on 8 x 8", 1e3 * _kept_seconds(32, rounds), most=10, unit="ms")
    huge = alone(126, (125, 8), 1000)
    yield Row(8, "plan, 126 layers on 1,000 devices", huge.seconds, unit="s")
    yield Row(8, "its proof", huge.proof_seconds, most=10, unit="s")
    yield Row(8, "its memory, plan and proof", huge.mebibytes, most=1024, unit="MiB")


def _kept_seconds(layers: int, rounds: int) -> float:
    """The time in which a kept plan is found for a graph that was built anew."""
    from weft.ir.graph import buffer, toposort
    from weft.ir.ops import Op
    from weft.ir.rewrite import rebuilt
    from weft.scheduler.mesh_plans import plan_for

    with farm(64, flops=100e12, bandwidth=2e12, launch_ns=placing.LAUNCH_NS, timing_only=True) as f:
        mesh = weft.distributed.init_device_mesh(f.names, (8, 8)).root
        nodes, updates = placing.training_graph(layers, 64)
        leaves = [n for n in toposort(nodes) if n.op is Op.BUFFER]
        there = {n: buffer(n.shape, n.dtype, mesh.name, None) for n in leaves}
        made = rebuilt(nodes, there)
        place = {n: made[k] for k, n in enumerate(nodes)}
        rates = [Rates(100e12, 2e12, placing.LAUNCH_NS)] * 64
        pairs = [(place[new], there[old]) for new, old in updates]
        found = choose(made, mesh, rates, placing.SQUARE_LINKS, updates=pairs)
        lie = {n: found.layouts[n] for n in there.values() if n in found.layouts}
        plan_for(made, lie)
        (seconds,) = turns([lambda _: plan_for(made, lie)], rounds)
    return seconds


# choices: marks 3 and 5 -----------------------------------------------------------------------------------------------


def choices(rounds: int) -> Iterator[Row]:
    """Mark 3: how near to the best the choices of 500 random graphs are, by their certificates."""
    rng = np.random.default_rng(0)
    gaps = [placing.solve(placing.random_problem(rng, k % 2)).gap for k in range(500)]
    best = 100 * sum(g < 1e-6 for g in gaps) / len(gaps)
    yield Row(3, "random graphs that are proved the best", best, least=95, unit="%")
    yield Row(3, "the largest gap", 100 * max(gaps), most=2, unit="%")


SPEEDS = (1.0, 2.0, 3.0, 4.0)


def speeds(rounds: int) -> Iterator[Row]:
    """Mark 5: training steps on unequal devices, and orders of random graphs beside those of HEFT and PEFT."""
    for name, optimizer, rows, width, rate in (
        ("SGD, batch 8,192, width 256", weft.optim.SGD, 8192, 256, 1e11),
        ("Adam, batch 4,096, width 256", weft.optim.Adam, 4096, 256, 1e11),
        ("Adam, batch 2,048, width 512", weft.optim.Adam, 2048, 512, 16e9),
        ("Adam, batch 512, width 512", weft.optim.Adam, 512, 512, 16e9),
    ):
        one = step_ns((1.0, 1.0), 1, optimizer, rows, width, rate)
        all_ns = step_ns(SPEEDS, 4, optimizer, rows, width, rate)
        asked = 1.05 if rows > 512 else None
        yield Row(5, f"speeds 1:2:3:4 / work over their sum: {name}", all_ns * sum(SPEEDS) / one, most=asked)
    means: list[float] = []
    for sent in placing.SENT:
        ahead = placing.ahead(sent, 20)
        means.append(float(np.mean(ahead)))
        yield Row(5, f"order ahead of HEFT and PEFT, messages {sent} x tasks", 100 * means[-1], unit="%")
        yield Row(5, "    at least", 100 * min(ahead), least=0, unit="%")
    yield Row(5, "order ahead, mean of all", 100 * float(np.mean(means)), least=10, unit="%")


def network(width: int, layers: int) -> nn.Module:
    """Linear maps and ReLUs."""
    weft.manual_seed(0)
    return nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())])


def training(model: nn.Module, optimizer: Any) -> Callable[[weft.Tensor, weft.Tensor], None]:
    """A training step of a model."""

    def step(x: weft.Tensor, y: weft.Tensor) -> None:
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()

    return step


def step_ns(
    given: Sequence[float], used: int, optimizer: Any, rows: int, width: int, rate: float,
    mode: Literal["free", "same"] | None = None,
) -> float:  # fmt: skip
    """The simulated time of a training step that comes again, on the first `used` devices of these speeds."""
    with farm(len(given), speeds=given, timing_only=True, link_bandwidth=rate) as f:
        model = network(width, 3)
        step = training(model, optimizer(model.parameters(), lr=0.01))
        compiled = weft.compile(step, devices=f.names[:used], numerics=mode)
        x, y = weft.zeros(rows, width), weft.zeros(rows, width)
        ns = 0.0
        for _ in range(4):
            before = f.host.ns
            compiled(x, y)
            for device in f.devices:
                device.synchronize()
            ns = f.host.ns - before
        return ns


# memory: mark 6 -------------------------------------------------------------------------------------------------------

LEAST = re.compile(r"a limit of ([\d,]+) for ([\w:]+)")


def memory(rounds: int) -> Iterator[Row]:
    """Mark 6: random graphs within 1.05 times the least limit, and what is planned beside what is taken."""
    with farm(1, "tight", flops=1e9, link_bandwidth=1e5) as f:
        device = f.devices[0]
        rng = np.random.default_rng(0)
        leaves = [
            weft.tensor(rng.standard_normal((16, 16)).astype(np.float32), device="tight:0").realize()
            for _ in range(3)
        ]
        used = device.used_bytes()
        refused = wrong = above = 0
        for seed in range(1000):
            want = _bits(random_graph(seed, leaves))
            with weft.memory_limit(used + 1, "tight:0"):
                try:
                    weft.realize(*random_graph(seed, leaves))
                except MemoryPlanError as error:
                    least = LEAST.search(str(error))
            assert least is not None
            limit = used + int(1.05 * (int(least[1].replace(",", "")) - used))
            device.pool.peak_bytes = device.used_bytes()
            with weft.memory_limit(limit, "tight:0"):
                try:
                    wrong += _bits(random_graph(seed, leaves)) != want
                except MemoryError:
                    refused += 1
            above += device.pool.peak_bytes > limit
    yield Row(6, "1,000 random graphs at 1.05 x the least limit: refused", refused, most=0, unit="graphs")
    yield Row(6, "    others' bits", wrong, most=0, unit="graphs")
    yield Row(6, "    above the limit", above, most=0, unit="graphs")


def random_graph(seed: int, leaves: Sequence[weft.Tensor]) -> list[weft.Tensor]:
    """Stored values, each made from some before it: products, norms, updated slices; results near the end."""
    r = random.Random(seed)
    values = list(leaves)
    for _ in range(r.randint(4, 12)):
        a, b = r.choice(values[-3:]), r.choice(values)
        match r.randrange(6):
            case 0 | 1:
                y = (a @ b) * 0.1
            case 2:
                y = (a - a.mean(1, keepdim=True)).exp() + b
            case 3:
                y = weft.cat([a[:4], b[4:]], 0)
            case 4:
                y = weft.slice_scatter(a, b[:2], 0, 1, 3)
            case _:
                y = a.tanh() * b
        values.append(y.contiguous())
    if r.random() < 0.5:
        return [values[-1], sum(values[len(leaves) :], start=values[0])]
    return [values[-1] + values[-2]]


def _bits(results: Sequence[weft.Tensor]) -> list[bytes]:
    weft.realize(*results)
    return [t.numpy().tobytes() for t in results]


# the mode "same": mark 7 ----------------------------------------------------------------------------------------------


def same(rounds: int) -> Iterator[Row]:
    """Mark 7: the price of one device's bits, in simulated time."""
    for world in (2, 3, 4, 8):
        for rows, width in ((4096, 256), (2048, 512)):
            free, pinned = (
                step_ns((1.0,) * world, world, weft.optim.Adam, rows, width, 16e9, mode)
                for mode in ("free", "same")
            )
            name = f'"same" / "free", Adam, batch {rows:,}, width {width}, {world} devices'
            yield Row(7, name, pinned / free, most=1.3)


# overlap: mark 10 -----------------------------------------------------------------------------------------------------


def overlap(rounds: int) -> Iterator[Row]:
    """Mark 10: the part of what can be hidden that is, where exchanging takes as long as computing."""
    layers, size = 32, 128
    compute, _ = chain_ns(layers, size, 1e15, away=False)
    both, predicted = chain_ns(layers, size, 4 * size * size * layers / (compute / 1e9), away=True)
    moved = compute + 2000 * layers
    least = max(compute, moved) + min(compute, moved) / layers
    part = (compute + moved - both) / (compute + moved - least)
    yield Row(10, "hidden of what can be, weights that arrive, 32 layers", 100 * part, least=90, unit="%")
    yield Row(9, "predicted / simulated", predicted / both, most=1.02)
    whole, ideal = stages_ns()
    yield Row(10, "four microbatches over two stages / five stages", whole / ideal, most=1.05)
    for stages, parts_of in ((2, 4), (4, 8)):
        one, ns = pipeline_ns(1, parts_of), pipeline_ns(stages, parts_of)
        ideal = one * (parts_of + stages - 1) / parts_of / stages
        name = f"training, {parts_of} microbatches over {stages} stages / ideal"
        yield Row(10, name, ns / ideal, most=1.05)


def chain_ns(layers: int, size: int, rate: float, away: bool) -> tuple[float, float]:
    """The simulated and the predicted time of products one after the other, whose weights are there or `away`."""
    spec = Farm.of(2, "chain", topology=all_to_all(Link(2e-6, rate)), timing_only=True)
    with farm(spec) as f:
        here, there = f.names

        def on(device: str) -> weft.Tensor:
            return weft.zeros(size, size, device=device).contiguous().realize()

        x, ws = on(here), [on(there if away else here) for _ in range(layers)]

        def result() -> weft.Tensor:
            y = x
            for w in ws:
                y = (y @ w.to(here)).relu()
            return y

        plan = parts.parts_plan(signature([result().value.node])) if away else None
        f.clear()
        result().realize()
        return f.makespan_ns, 0.0 if plan is None else plan.order.ns


def stages_ns() -> tuple[float, float]:
    """The simulated time of four microbatches through two devices, and of five times one stage."""
    with farm(2, flops=1e9, bandwidth=1e12, timing_only=True) as f:
        ws = [weft.zeros(256, 256, device=name).contiguous().realize() for name in f.names]
        xs = [weft.zeros(256, 256, device=f.names[0]).contiguous().realize() for _ in range(4)]

        def ns(results: Callable[[], list[weft.Tensor]]) -> float:
            f.clear()
            weft.realize(*results())
            return f.makespan_ns

        one = ns(lambda: [xs[0] @ ws[0]])
        return ns(lambda: [(x @ ws[0]).to(f.names[1]) @ ws[1] for x in xs]), 5 * one


def pipeline_ns(devices: int, microbatches: int) -> float:
    """The simulated time of a training step of an `nn.Pipeline` that comes again."""
    with farm(devices, timing_only=True, link_bandwidth=1e11) as f:
        x, y = (
            weft.zeros(4096, 256, device=name).contiguous().realize() for name in (f.names[0], f.names[-1])
        )
        layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(8)]
        model = nn.Pipeline(layers, f.names, microbatches, x, output_device=f.names[-1])
        step = weft.compile(training(model, weft.optim.SGD(model.parameters(), lr=0.01)))
        for _ in range(4):
            f.clear()
            step(x, y)
            weft.realize(*model.parameters())
        return f.makespan_ns


# explanations: mark 13 ------------------------------------------------------------------------------------------------


def explanations(rounds: int) -> Iterator[Row]:
    """Mark 13: collectives and layouts with everything that is to be said of them."""
    for world in (4, 8, 16):
        found = explained(world)
        full = [
            c.pattern and c.bytes and c.ns and c.others and c.line and c.reader for c in found.collectives
        ]
        laid = [of for of in found.layouts if of.why.startswith("searched")]
        yield Row(
            13, f"collectives with reason, bytes, price, alternative and line, {world} devices",
            100 * sum(map(bool, full)) / len(full), least=100, unit="%",
        )  # fmt: skip
        lines = 100 * sum(of.line is not None for of in laid) / len(laid)
        yield Row(
            13,
            "    layouts that were searched: line, and the next one's price",
            lines,
            least=100,
            unit="%",
        )


def explained(world: int) -> Explanation:
    """The explanation of a training step of a transformer."""
    with farm(world, flops=1e12, bandwidth=4e11) as f, weft.device(f.names[0]):
        model = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
        optimizer = weft.optim.AdamW(model.parameters(), lr=1e-3)

        def step(x: weft.Tensor) -> weft.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        compiled, x = weft.compile(step, devices=f.names), weft.ones(32, 16, 64).realize()
        while compiled.chosen is None:
            compiled(x)
        return weft.explain(compiled, x)


# the processor and OpenCL on its cores --------------------------------------------------------------------------------


def beside(rounds: int) -> Iterator[Row]:
    """Not numbered: a forward pass of large batches over the CPU and OpenCL, beside each of them by itself."""
    if not any(d.name.startswith("opencl:") for d in weft.devices()):
        return
    w = [weft.randn(512, 512) for _ in range(3)]
    x = weft.randn(1024, 512).realize()
    weft.realize(*w)

    def work(*devices: str) -> Callable[[int], object]:
        own = [t.to(devices[0]).realize() for t in w]
        given = x.to(devices[0]).realize()

        def f(x: weft.Tensor) -> weft.Tensor:
            for t in own:
                x = (x @ t).relu()
            return x

        with weft.device(devices[0]):
            compiled: Any = weft.compile(f, devices=list(devices)) if len(devices) > 1 else weft.compile(f)
        return lambda _: compiled(given).numpy()

    cpu, opencl, both = turns([work("cpu:0"), work("opencl:0"), work("cpu:0", "opencl:0")], rounds, warm=6)
    yield Row(14, "the better of cpu and opencl / both", min(cpu, opencl) / both, least=0.95)


MARKS: dict[str, Callable[[int], Iterator[Row]]] = {
    "2,8": planning, "3": choices, "5": speeds, "6": memory, "7": same, "9,10": overlap, "13": explanations,
    "14": beside,
}  # fmt: skip


def main(given: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    table("benchmarks.sharding", __doc__, MARKS, 12, given)


if __name__ == "__main__":
    main()
