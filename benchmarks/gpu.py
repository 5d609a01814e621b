"""Measures a GPU: weft, and torch beside it where it is installed, in turns, on the same random data.

python -m benchmarks.gpu                         everything on cuda:0, a few minutes; a Markdown table at the end
python -m benchmarks.gpu --rows matmul,softmax   rows by parts of their names
python -m benchmarks.gpu --device cpu --shrink 64 --seconds 0.01     a try of the script itself

A row is run again and again without waiting in between, for `--seconds` at a time; the variants take turns, and the
median of the rounds counts. Each result is compared with torch's (or, without torch, only computed). `share` is of the
copy bandwidth that the first row measures, for rows that memory limits.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

import weft
from weft.nn import functional as F

Run = Callable[[], Any]

ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Row:
    """`make(lib, size)` prepares a run with weft or torch; `flops` and `nbytes` are what a run cannot avoid; `goal` is
    the least speed over torch's, or, of rows that memory limits, over the copy bandwidth."""

    name: str
    make: Callable[[Library, int], Run]
    size: int
    flops: Callable[[int], float]
    nbytes: Callable[[int], float]
    goal: float
    tolerance: float = 1e-4


class Library:
    """weft or torch: what both spell alike, and what they do not."""

    def __init__(self, name: str, device: str) -> None:
        self.name, self.device = name, device
        self.random = np.random.default_rng(0)
        if name == "torch":
            import torch

            self.lib: Any = torch
            self.F: Any = torch.nn.functional
            torch.backends.cuda.matmul.allow_tf32 = False
        else:
            self.lib, self.F = weft, F

    def normal(self, *shape: int, dtype: str = "float32") -> Any:
        """Normally distributed numbers, the same for both."""
        data = self.random.standard_normal(shape, dtype=np.float32)
        x = self.lib.tensor(data, device=self.device).to(getattr(self.lib, dtype))
        return x if self.name == "torch" else x.realize()

    def compiled(self, f: Callable[..., Any], *given: Any) -> Run:
        """`f` on its arguments: torch's eager kernels, weft's plan."""
        g = f if self.name == "torch" else weft.compile(f)
        return lambda: g(*given)

    def wait(self) -> None:
        """Until all that was started is done."""
        if self.name != "torch":
            weft.synchronize()
        elif self.device.startswith("cuda"):
            self.lib.cuda.synchronize()

    def numpy(self, x: Any) -> Any:
        """A result on the host, in float32."""
        x = x.detach().to(self.lib.float32)
        return x.cpu().numpy() if self.name == "torch" else x.numpy()


def copy(lib: Library, n: int) -> Run:
    x = lib.normal(n)
    return x.clone if lib.name == "torch" else lib.compiled(lambda x: x * 1.000001, x)


def product(dtype: str) -> Callable[[Library, int], Run]:
    def make(lib: Library, n: int) -> Run:
        return lib.compiled(lambda a, b: a @ b, lib.normal(n, n, dtype=dtype), lib.normal(n, n, dtype=dtype))

    return make


def chain(lib: Library, n: int) -> Run:
    f = lambda x, y: ((x * y + 1).relu() * 0.5 - y).abs().sqrt()  # noqa: E731
    g = lib.lib.compile(f) if lib.name == "torch" and lib.device.startswith("cuda") else f
    return lib.compiled(g, lib.normal(n), lib.normal(n))


def total(lib: Library, n: int) -> Run:
    return lib.compiled(lambda x: x.sum(), lib.normal(n))


def softmax(lib: Library, n: int) -> Run:
    return lib.compiled(lambda x: lib.F.softmax(x, -1), lib.normal(n, n))


def layer_norm(lib: Library, n: int) -> Run:
    return lib.compiled(
        lambda x, w, b: lib.F.layer_norm(x, (n,), w, b), lib.normal(n, n), lib.normal(n), lib.normal(n)
    )


def attention(lib: Library, n: int) -> Run:
    q, k, v = (lib.normal(4, 16, n, 64, dtype="bfloat16") for _ in range(3))
    return lib.compiled(lambda q, k, v: lib.F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)


def mlp_step(lib: Library, n: int) -> Run:
    """A training step of three layers; torch's as a CUDA graph where it is on a GPU."""
    nn, optim = lib.lib.nn, lib.lib.optim
    lib.lib.manual_seed(0)
    net = nn.Sequential(nn.Linear(784, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 10)).to(
        lib.device
    )
    optimizer = optim.SGD(net.parameters(), lr=1e-3)
    x = lib.normal(256, 784)
    y = lib.lib.tensor(np.arange(256) % 10, device=lib.device)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = lib.F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    if lib.name != "torch" or not lib.device.startswith("cuda"):
        return lib.compiled(step, x, y)
    torch = lib.lib
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(x, y)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(x, y)
    return graph.replay


ROWS = (
    Row("copy 256M", copy, 1 << 28, lambda n: n, lambda n: 8 * n, 0.0, 1e-5),
    Row("matmul 8192 bf16", product("bfloat16"), 8192, lambda n: 2 * n**3, lambda n: 6 * n**2, 0.70, 2e-2),
    Row("matmul 8192 fp32", product("float32"), 8192, lambda n: 2 * n**3, lambda n: 12 * n**2, 0.70, 1e-4),
    Row("chain 256M", chain, 1 << 28, lambda n: 6 * n, lambda n: 12 * n, 0.85),
    Row("sum 256M", total, 1 << 28, lambda n: n, lambda n: 4 * n, 0.85, 1e-3),
    Row("softmax 16384", softmax, 16384, lambda n: 5 * n**2, lambda n: 8 * n**2, 0.85),
    Row("layer norm 16384", layer_norm, 16384, lambda n: 8 * n**2, lambda n: 8 * n**2, 0.85, 1e-3),
    Row(
        "attention bf16, causal, 4096", attention, 4096,
        lambda n: 4 * 16 * 2 * n * n * 64, lambda n: 4 * 16 * 8 * n * 64, 0.50, 2e-2,
    ),
    Row("MLP step 512", mlp_step, 512, lambda n: 6 * 256 * (784 * n + n * n + 10 * n), lambda n: 0.0, 1.0, 1e-1),
)  # fmt: skip


def seconds(lib: Library, run: Run, enough: float) -> float:
    """The time of one run, of as many as take `enough`."""
    count, taken = 1, 0.0
    while True:
        lib.wait()
        start = time.perf_counter()
        for _ in range(count):
            run()
        lib.wait()
        taken = time.perf_counter() - start
        if taken >= enough:
            return taken / count
        count = max(count + 1, math.ceil(count * min(10.0, 1.2 * enough / max(taken, 1e-7))))


def measure(row: Row, device: str, libraries: Sequence[str], shrink: int, enough: float) -> dict[str, float]:
    """Seconds per run of each library; `error` is the largest difference, relative to the largest magnitude."""
    size = max(64, row.size // shrink)
    libs = [Library(n, device) for n in libraries]
    runs = [row.make(lib, size) for lib in libs]
    results = [run() for run in runs]
    out: dict[str, float] = {}
    if len(libs) == 2 and all(r is not None for r in results):
        a, b = (lib.numpy(r) for lib, r in zip(libs, results, strict=True))
        out["error"] = float(np.abs(a - b).max() / max(float(np.abs(b).max()), 1e-30))
    times: dict[str, list[float]] = {n: [] for n in libraries}
    for _ in range(ROUNDS):
        for lib, run in zip(libs, runs, strict=True):
            times[lib.name].append(seconds(lib, run, enough))
    return {**out, **{n: statistics.median(t) for n, t in times.items()}}


def line(row: Row, size: int, found: dict[str, float], copied: float | None) -> str:
    """One line of the table."""
    ours, theirs = found["weft"], found.get("torch")
    rate = row.nbytes(size) / ours
    cells = [
        row.name,
        f"{ours * 1e3:.3f}",
        f"{theirs * 1e3:.3f}" if theirs else "",
        f"{theirs / ours:.2f}" if theirs else "",
        f"{row.flops(size) / ours / 1e12:.2f}",
        f"{rate / 1e9:.0f}",
        f"{rate / copied:.2f}" if copied else "",
        f"{row.goal:.2f}" if row.goal else "",
        ""
        if "error" not in found
        else ("ok" if found["error"] <= row.tolerance else f"WRONG {found['error']:.1e}"),
    ]
    return f"| {' | '.join(cells)} |"


def main(given: Sequence[str] | None = None) -> None:
    """The command."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--device", default="cuda:0")
    p.add_argument("--rows", default="", help="parts of names, comma-separated")
    p.add_argument("--shrink", type=int, default=1, help="divides all sizes")
    p.add_argument("--seconds", type=float, default=0.2, help="of one measurement")
    asked = p.parse_args(given)
    libraries = ["weft", *(["torch"] if find_spec("torch") else [])]
    head = (
        "row",
        "weft ms",
        "torch ms",
        "speed over torch",
        "TFLOP/s",
        "GB/s",
        "share of copy",
        "goal",
        "result",
    )
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    wanted = [w for w in asked.rows.split(",") if w]
    copied: float | None = None
    with weft.device(asked.device):
        for row in ROWS:
            if wanted and not any(w in row.name for w in wanted):
                continue
            size = max(64, row.size // asked.shrink)
            found = measure(row, asked.device, libraries, asked.shrink, asked.seconds)
            if row.make is copy:
                copied = row.nbytes(size) / min(found.get("torch", math.inf), found["weft"])
            print(line(row, size, found, copied), flush=True)


if __name__ == "__main__":
    main()
