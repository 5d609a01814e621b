"""Trains a small convolutional classifier on scikit-learn's handwritten digits (1,797 images of 8x8 pixels).

One training step - forward, backward, AdamW - is a single compiled function. Afterwards the example shows what was
fused into which kernel and how long each one takes, and draws the loss and the confusion matrix.

    python examples/digits.py [--epochs 30] [--seed 0] [--out out/digits.png]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import weft
import weft.nn.functional as F
from weft import nn, optim
from weft.core.compile.compile import CompiledFunction

CLASSES = 10
BATCH = 64

Step: TypeAlias = CompiledFunction[[weft.Tensor, weft.Tensor], weft.Tensor]


@dataclass(frozen=True)
class Digits:
    """Images (n, 1, 8, 8), float32 in 0 .. 1, and their labels (n,), int64; a fifth is held out."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray

    @classmethod
    def load(cls) -> Digits:
        """The data, split the same way in every run, with every class equally frequent on both sides."""
        digits = load_digits()
        images = (digits.images / 16).astype(np.float32)[:, None]
        train_x, test_x, train_y, test_y = train_test_split(
            images, digits.target.astype(np.int64), test_size=0.2, random_state=0, stratify=digits.target
        )
        return cls(train_x, train_y, test_x, test_y)

    def batch(self, rows: np.ndarray) -> tuple[weft.Tensor, weft.Tensor]:
        """The training images and labels at `rows`."""
        return weft.tensor(self.train_x[rows]), weft.tensor(self.train_y[rows])


def classifier() -> nn.Module:
    """(n, 1, 8, 8) images -> (n, 10) logits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 4 * 4, CLASSES),
    )  # fmt: skip


def training_step(model: nn.Module, lr: float) -> Step:
    """One AdamW step on a batch, compiled: (images, labels) -> loss."""
    optimizer = optim.AdamW(model.parameters(), lr=lr)

    @weft.compile
    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def fit(step: Step, data: Digits, epochs: int, rng: np.random.Generator, console: Console) -> list[float]:
    """Trains for `epochs` passes over the data; the loss of every step."""
    losses: list[float] = []
    columns = (TextColumn("training"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=epochs, state="")
        for epoch in range(1, epochs + 1):
            order = rng.permutation(len(data.train_x))
            for batch in order[: len(order) // BATCH * BATCH].reshape(-1, BATCH):
                losses.append(step(*data.batch(batch)).item())
            mean = np.mean(losses[-(len(order) // BATCH) :])
            progress.update(task, advance=1, state=f"epoch {epoch}/{epochs}, loss {mean:.4f}")
    return losses


def predict(model: nn.Module, images: np.ndarray) -> np.ndarray:
    """The most likely class of each image."""
    model.eval()
    with weft.no_grad():
        return model(weft.tensor(images)).argmax(1).numpy()


def confusion_matrix(truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """counts[i, j]: how many images of digit i were taken for digit j."""
    counts = np.zeros((CLASSES, CLASSES), np.int64)
    np.add.at(counts, (truth, predicted), 1)
    return counts


def plot(losses: list[float], confusion: np.ndarray, path: Path) -> None:
    """Draws the loss over the steps and the confusion matrix side by side."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.semilogy(losses, linewidth=0.8)
    left.set(xlabel="step", ylabel="cross entropy", title="Training loss")
    right.imshow(np.log1p(confusion), cmap="Blues")
    for (i, j), count in np.ndenumerate(confusion):
        if count:
            right.text(j, i, str(count), ha="center", va="center", color="white" if i == j else "black")
    ticks = range(CLASSES)
    right.set(xlabel="predicted", ylabel="digit", title="Held-out images", xticks=ticks, yticks=ticks)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def reason(why: Sequence[str]) -> str:
    """Why the first result of a kernel is stored rather than computed where it is used."""
    return next((w.partition(" is stored: ")[2] for w in why if " is stored: " in w), "")


def show_kernels(step: Step, x: weft.Tensor, y: weft.Tensor, console: Console) -> None:
    """What one training step runs: each kernel, named after the ops fused into it, its time and why it ends there."""
    kernels = step.explain(x, y).kernels
    runs = [[t for t in step.profile(x, y) if t.name != "copy"] for _ in range(9)]
    table = Table(title=f"One training step: {len(kernels)} kernels", title_justify="left")
    for name, justify in (("kernel", "left"), ("moved", "right"), ("flops", "right"), ("time", "right")):
        table.add_column(name, justify=justify, no_wrap=True)
    table.add_column("why it ends where it does")
    for kernel, timings in zip(kernels, zip(*runs, strict=True), strict=True):
        microseconds = statistics.median(t.ns for t in timings) / 1e3
        moved, flops = f"{kernel.bytes / 1e3:,.1f} kB", f"{kernel.flops / 1e3:,.0f} k"
        table.add_row(kernel.name, moved, flops, f"{microseconds:,.1f} us", escape(reason(kernel.why)))
    console.print(table)
    console.print(f"all kernels: {statistics.median(sum(t.ns for t in run) for run in runs) / 1e6:.2f} ms")


def main() -> None:
    """Trains, reports and draws."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default=None, help="where it is trained, such as opencl")
    parser.add_argument("--out", type=Path, default=Path("out/digits.png"))
    args = parser.parse_args()
    console = Console()
    with weft.device(args.device) if args.device else nullcontext():
        train(args, console)


def train(args: argparse.Namespace, console: Console) -> None:
    """Trains, reports and draws, on the current device."""
    weft.manual_seed(args.seed)
    data = Digits.load()
    model = classifier()
    step = training_step(model, lr=2e-3)
    start = time.perf_counter()
    losses = fit(step, data, args.epochs, np.random.default_rng(args.seed), console)
    seconds = time.perf_counter() - start

    confusion = confusion_matrix(data.test_y, predict(model, data.test_x))
    right, total = int(np.trace(confusion)), len(data.test_y)
    model.train()
    show_kernels(step, *data.batch(np.arange(BATCH)), console)
    console.print(
        f"{right} of {total} held-out digits right ({right / total:.2%}), trained in {seconds:.1f} s"
    )
    plot(losses, confusion, args.out)
    console.print(f"loss and confusion matrix: {args.out}")


if __name__ == "__main__":
    main()
