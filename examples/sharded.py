"""Trains one network by one script on a CPU, on four simulated devices, and on the CPU with OpenCL; shows the layouts.

Nothing in `train` knows of devices: `weft.compile(step, devices=...)` searches how each tensor lies on them, and with
numerics="same" the numbers are those of one device, bit for bit. Devices of unequal speed get unequal blocks. A CPU and
OpenCL on its cores would take turns: both are tried, and the faster one is used.

    python examples/sharded.py [--steps 8] [--devices cuda:0 cuda:1]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

import weft
import weft.nn.functional as F
from weft import nn, optim
from weft.ir.placement import Shard
from weft.testing import farm

ROWS, SHOWN = 512, 8


@dataclass(frozen=True)
class Run:
    """One training: the compiled step, its batch, each loss, and the weights afterwards."""

    step: Any
    batch: tuple[weft.Tensor, weft.Tensor]
    losses: list[float]
    weights: list[np.ndarray]


def train(devices: Sequence[str], steps: int) -> Run:
    """Train a small network on handwritten digits over `devices`."""
    weft.manual_seed(0)
    digits = load_digits()
    images = (digits.images[:ROWS] / 16).astype(np.float32).reshape(ROWS, 64)
    batch = weft.tensor(images), weft.tensor(digits.target[:ROWS].astype(np.int64))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = optim.Adam(model.parameters(), lr=1e-2)

    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = weft.compile(step, devices=devices, numerics="same")
    losses = [compiled(*batch).item() for _ in range(steps)]
    return Run(compiled, batch, losses, [p.numpy() for p in model.parameters()])


def why(step: Any) -> str:
    """The devices that are used, and what they were chosen by."""
    if step.alone:
        times = ", ".join(f"{name} {ns / 1e3:,.0f} us" for name, ns in step.alone.items())
        return f"{min(step.alone, key=step.alone.get)}: they share a processor; alone: {times}"
    if step.chosen is None:
        return "the default device"
    choice = step.chosen.choice
    return f"all: predicted {choice.ns / 1e3:,.0f} us, at most {100 * choice.gap:.1f} % from the best"


def laid(form: Any) -> str:
    """A layout in words: all elements on each device, or blocks along a dimension."""
    placement = form.layout[0]
    if not isinstance(placement, Shard):
        return "on each device"
    blocks = "even blocks" if placement.bounds is None else f"blocks of {np.diff((0, *placement.bounds))}"
    return f"dimension {placement.dim} in {blocks}"


def show_layouts(name: str, run: Run, console: Console) -> None:
    """The layouts that matter most: what another one would take longer."""
    decided = [d for d in run.step.chosen.decisions if d.others and d.node.shape]
    table = Table("tensor", "its layout", "the next best", "would take", title=name, title_justify="left")
    for d in sorted(decided, key=lambda d: -d.others[0][1])[:SHOWN]:
        (other, ns), tensor = d.others[0], f"{d.node.op.name.lower()} {list(d.node.shape)}"
        table.add_row(tensor, laid(d.form), laid(other), f"{ns / 1e3:,.1f} us longer")
    found = run.step.explain(*run.batch).exchanges
    console.print(table, f"{len(found)} exchanges a step, {sum(e.bytes for e in found):,} bytes\n")


def main() -> None:
    """Train everywhere, compare, and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--devices", nargs="+", help="devices of your own, instead of the simulated ones")
    args = parser.parse_args()
    has_opencl = any(d.name.startswith("opencl:") for d in weft.devices())
    with farm(4, name="uneven", speeds=[1, 2, 3, 4]) as uneven:
        places = [args.devices] if args.devices else [[f"dummy:{k}" for k in range(4)], uneven.names]
        if has_opencl and not args.devices:
            places.append(["cpu:0", "opencl:0"])
        runs = [train(devices, args.steps) for devices in [["cpu:0"], *places]]
        table = Table("devices", "loss", "bits", "used, and why", title="One script")
        for devices, run in zip(["cpu:0", *map(" ".join, places)], runs, strict=True):
            is_same = run.losses == runs[0].losses and all(map(np.array_equal, run.weights, runs[0].weights))
            bits = "those of cpu:0" if is_same else "others"
            table.add_row(devices, f"{run.losses[-1]:.6f}", bits, why(run.step))
        console = Console()
        console.print(table)
        for devices, run in zip(places, runs[1:], strict=True):
            if len(run.step.mesh.devices) > 1 and run.step.chosen is not None:
                show_layouts(" ".join(devices), run, console)


if __name__ == "__main__":
    main()
