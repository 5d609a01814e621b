"""The command line: `python -m weft devices | demo | explain | bench | cache`."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import weft
from weft import Tensor, disk_cache


def devices() -> None:
    """Lists the devices of every installed backend; for one that cannot be used, why, and what to install."""
    for status in weft.devices():
        print(status)


def explain(expression: str) -> None:
    """Prints the kernels that would compute a Python expression over `weft`, and why each one ends where it does."""
    value = eval(expression, {"weft": weft, "F": weft.nn.functional})
    if not isinstance(value, Tensor):
        raise SystemExit(f"the expression is a {type(value).__name__}, not a Tensor: {expression}")
    print(weft.explain(value))


def demo(steps: int = 300) -> None:
    """Fits a small network to two interleaved spirals through one compiled training step."""
    weft.manual_seed(0)
    turn = weft.linspace(0.5, 3.0, 200)
    arm = weft.stack([turn * (3 * turn).cos(), turn * (3 * turn).sin()], dim=1)
    x, y = weft.cat([arm, -arm]).realize(), (weft.arange(400) >= 200).long().realize()
    nn = weft.nn
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = weft.optim.Adam(model.parameters(), lr=1e-2)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    with weft.no_grad():
        print("The kernels of the forward pass:\n")
        print(weft.explain(model(x)))
    compiled = weft.compile(step)
    start = time.perf_counter()
    for n in range(1, steps + 1):
        loss = compiled(x, y)
        if n % 100 == 0 or n == 1:
            print(f"step {n:4d}   loss {loss.item():.4f}   {time.perf_counter() - start:.2f} s")
    with weft.no_grad():
        right = (model(x).argmax(1) == y).sum().item()
    print(f"{right} of {len(y)} points on the right spiral")


@dataclass(frozen=True, slots=True)
class Workload:
    """A function to time on random float32 tensors of `shapes`; one run of it is `work` flops or bytes."""

    name: str
    run: Callable[[Sequence[Tensor]], Tensor]
    shapes: tuple[tuple[int, ...], ...]
    work: float
    unit: str


_N, _M = 16 * 2**20, 1024
WORKLOADS = (
    Workload("matmul 1024", lambda t: t[0] @ t[1], ((_M, _M),) * 2, 2 * _M**3, "GFLOP/s"),
    Workload("relu(a*b+c)-d, 16M", lambda t: (t[0] * t[1] + t[2]).relu() - t[3], ((_N,),) * 4, 20 * _N, "GB/s"),
    Workload("sum 16M", lambda t: t[0].sum(), ((_N,),), 4 * _N, "GB/s"),
    Workload("softmax 4096x4096", lambda t: t[0].softmax(-1), ((4096, 4096),), 8 * _N, "GB/s"),
)  # fmt: skip


def bench(repetitions: int = 9) -> None:
    """Times a few compiled functions: the median, the fastest and the slowest run, and the rate of the median."""
    for w in WORKLOADS:
        inputs = [weft.randn(*shape).realize() for shape in w.shapes]
        compiled = weft.compile(w.run)
        times: list[float] = []
        for _ in range(repetitions + 2):
            start = time.perf_counter()
            result = compiled(inputs)
            weft.synchronize()
            times.append(time.perf_counter() - start)
            del result
        seconds = sorted(times[2:])  # the first two compile and fetch fresh memory
        median = statistics.median(seconds)
        spread = f"[{seconds[0] * 1e3:.3f} {seconds[-1] * 1e3:.3f}]"
        print(f"{w.name:24s} {median * 1e3:9.3f} ms {spread:20s} {w.work / median / 1e9:8.1f} {w.unit}")


def cache(clear: bool) -> None:
    """Says where compiled programs are kept on disk and how much they take; removes them first if asked to."""
    if clear:
        disk_cache.clear()
    used = disk_cache.usage()
    if used.folder is None:
        print("no cache on disk: WEFT_CACHE_DIR is empty")
    else:
        print(f"{used.folder}: {used.entries} entries, {used.nbytes:,} bytes")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command."""
    parser = argparse.ArgumentParser(prog="weft", description=__doc__)
    parser.add_argument("--version", action="version", version=weft.__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("devices", help="the devices of every installed backend")
    commands.add_parser("demo", help="train a small network, and show its kernels")
    explained = commands.add_parser("explain", help="the kernels behind an expression")
    explained.add_argument("expression", help='such as "weft.randn(512, 512).softmax(-1)"')
    commands.add_parser("bench", help="time a few compiled functions on the default device")
    cached = commands.add_parser("cache", help="where compiled programs are kept, and how much they take")
    cached.add_argument("--clear", action="store_true", help="remove them")
    chosen = parser.parse_args(arguments)
    try:
        match chosen.command:
            case "devices":
                devices()
            case "demo":
                demo()
            case "explain":
                explain(chosen.expression)
            case "bench":
                bench()
            case _:
                cache(chosen.clear)
    except weft.WeftError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
