"""Trains a small convolutional classifier on scikit-learn's handwritten digits (1,797 images of 8x8 pixels).

One training step - forward, backward, AdamW - is a single compiled function. Afterwards the example shows what was
fused into which kernel and how long each one takes, and draws the loss and the confusion matrix.

    python examples/digits.py [--epochs 30] [--seed 0] [--out out/digits.png]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import weft.nn.functional as F
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import weft
from weft import nn, optim

CLASSES = 10
BATCH = 64


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


def classifier() -> nn.Module:
    """(n, 1, 8, 8) images -> (n, 10) logits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 4 * 4, CLASSES),
    )  # fmt: skip


@dataclass
class Trainer:
    """A model, its optimizer, and the loss of every step so far."""

    model: nn.Module
    optimizer: optim.AdamW
    losses: list[float] = field(default_factory=list)

    def step(self, x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        """One AdamW step on a batch; the loss."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def fit(self, data: Digits, epochs: int, rng: np.random.Generator, console: Console) -> float:
        """Trains for `epochs` passes over the data; the seconds it took, compiling included."""
        step = weft.compile(self.step)
        self.model.train()
        start = time.perf_counter()
        columns = (
            TextColumn("training"),
            BarColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("training", total=epochs, loss="")
            for epoch in range(epochs):
                order = rng.permutation(len(data.train_x))
                batches = order[: len(order) // BATCH * BATCH].reshape(-1, BATCH)
                losses = [step(weft.tensor(data.train_x[b]), weft.tensor(data.train_y[b])) for b in batches]
                self.losses += [loss.item() for loss in losses]
                mean = np.mean(self.losses[-len(batches) :])
                progress.update(task, advance=1, loss=f"epoch {epoch + 1}/{epochs}  loss {mean:.4f}")
        return time.perf_counter() - start


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


def main() -> None:
    """Trains, reports and draws."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/digits.png"))
    args = parser.parse_args()
    console = Console()

    weft.manual_seed(args.seed)
    data = Digits.load()
    model = classifier()
    trainer = Trainer(model, optim.AdamW(model.parameters(), lr=2e-3))
    seconds = trainer.fit(data, args.epochs, np.random.default_rng(args.seed), console)

    confusion = confusion_matrix(data.test_y, predict(model, data.test_x))
    right, total = int(np.trace(confusion)), len(data.test_y)
    console.print(
        f"{right} of {total} held-out digits right ({right / total:.2%}), trained in {seconds:.1f} s"
    )
    plot(trainer.losses, confusion, args.out)
    console.print(f"loss and confusion matrix: {args.out}")


if __name__ == "__main__":
    main()
