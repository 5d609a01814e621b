"""Trains a small GPT to write like the Book of Proverbs, one character at a time, and lets it write.

The text (examples/data/wisdom.txt: Proverbs, Ecclesiastes and the Song of Solomon, King James Version of 1611) has
120,000 characters. One training step - forward, backward, AdamW - is a single compiled function. Every now and then
everything that the run consists of is saved; a run that was stopped, at any moment, goes on from there and gets bit for
bit the same losses as one that was not.

    python examples/gpt.py [--steps 1500] [--device opencl] [--out out/gpt]

Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners (GPT-2); Loshchilov and Hutter 2019,
arXiv:1711.05101 (AdamW); arXiv:1608.03983 (cosine schedule).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import weft
import weft.nn.functional as F
from weft import Tensor, nn, optim

TEXT = Path(__file__).parent / "data" / "wisdom.txt"


@dataclass(frozen=True)
class Config:
    """The sizes of the model and of its training."""

    context: int = 128  # characters that it sees
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.1
    batch: int = 16
    steps: int = 1500
    warmup: int = 100
    rate: float = 1e-3  # of learning, at its highest
    decay: float = 0.1
    save_every: int = 250
    seed: int = 0


@dataclass(frozen=True)
class Text:
    """A text as numbers: `alphabet` are its characters, and the last tenth is held out."""

    alphabet: str
    train: np.ndarray
    held_out: np.ndarray

    @classmethod
    def load(cls, path: Path = TEXT) -> Text:
        """The text in a file."""
        text = path.read_text()
        alphabet = "".join(sorted(set(text)))
        codes = np.array([alphabet.index(c) for c in text], np.int64)
        return cls(alphabet, *np.split(codes, [len(codes) * 9 // 10]))

    def encode(self, text: str) -> list[int]:
        """Characters as numbers; those that the text lacks are left out."""
        return [self.alphabet.index(c) for c in text if c in self.alphabet]

    def decode(self, codes: list[int]) -> str:
        """Numbers as characters."""
        return "".join(self.alphabet[c] for c in codes)


def batch(codes: np.ndarray, rows: int, context: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Random pieces of a text, and the same pieces one character on: two (rows, context)."""
    starts = rng.integers(0, len(codes) - context, rows)[:, None] + np.arange(context)
    return weft.tensor(codes[starts]), weft.tensor(codes[starts + 1])


class Block(nn.Module):
    """x + attention(norm(x)), then x + perceptron(norm(x)).   Shapes: (n, t, width) -> the same."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.heads, self.dropout = c.heads, c.dropout
        self.norm1, self.norm2 = nn.LayerNorm(c.width), nn.LayerNorm(c.width)
        self.query_key_value = nn.Linear(c.width, 3 * c.width)
        self.project = nn.Linear(c.width, c.width)
        self.perceptron = nn.Sequential(
            nn.Linear(c.width, 4 * c.width), nn.GELU(), nn.Linear(4 * c.width, c.width), nn.Dropout(c.dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        heads = self.query_key_value(self.norm1(x)).reshape(n, t, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, width)
        x = x + F.dropout(self.project(seen), self.dropout, self.training)
        return x + self.perceptron(self.norm2(x))


class GPT(nn.Module):
    """Characters -> logits of the next one.   Shapes: (n, t) int64 -> (n, t, alphabet)."""

    def __init__(self, alphabet: int, c: Config) -> None:
        super().__init__()
        self.characters = nn.Embedding(alphabet, c.width)
        self.positions = nn.Embedding(c.context, c.width)
        self.blocks = nn.Sequential(*(Block(c) for _ in range(c.layers)))
        self.norm = nn.LayerNorm(c.width)
        for name, p in self.named_parameters():
            if p.ndim == 2:  # narrower where it is added to a sum of 2 * layers terms
                deep = name.endswith(("project.weight", "perceptron.2.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * c.layers) if deep else 0.02)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.characters(codes) + self.positions.weight[: codes.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.characters.weight)


def loss_of(model: GPT, codes: Tensor, following: Tensor) -> Tensor:
    """The mean cross entropy of each next character, in nats."""
    return F.cross_entropy(model(codes).flatten(0, 1), following.flatten())


@dataclass
class Run:
    """All that a training run consists of: what is saved of it is enough to go on as if it had not been stopped."""

    config: Config
    text: Text
    model: GPT
    optimizer: optim.AdamW
    schedule: optim.lr_scheduler.LambdaLR
    rng: np.random.Generator
    losses: list[float] = field(default_factory=list)
    held_out: list[tuple[int, float]] = field(default_factory=list)

    @classmethod
    def start(cls, config: Config, text: Text) -> Run:
        """A run at its beginning."""
        weft.manual_seed(config.seed)
        model = GPT(len(text.alphabet), config)
        decays = [p for p in model.parameters() if p.ndim == 2]
        others = [p for p in model.parameters() if p.ndim != 2]
        groups = [{"params": decays, "weight_decay": config.decay}, {"params": others, "weight_decay": 0.0}]
        optimizer = optim.AdamW(groups, lr=config.rate, betas=(0.9, 0.99))

        def factor(step: int) -> float:
            if step < config.warmup:
                return (step + 1) / config.warmup
            done = (step - config.warmup) / max(1, config.steps - config.warmup)
            return 0.1 + 0.9 * (1 + math.cos(math.pi * min(done, 1))) / 2

        schedule = optim.lr_scheduler.LambdaLR(optimizer, factor)
        return cls(config, text, model, optimizer, schedule, np.random.default_rng(config.seed))

    def save(self, path: Path) -> None:
        """Writes all of it; the file that was there stays until the new one is whole."""
        state = {
            "config": asdict(self.config), "alphabet": self.text.alphabet, "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict(),
            "batches": self.rng.bit_generator.state, "dropout": weft.get_rng_state(),
            "losses": self.losses, "held_out": self.held_out,
        }  # fmt: skip
        weft.save(state, path)

    @classmethod
    def resume(cls, path: Path, config: Config, text: Text) -> Run:
        """The run saved in a file. SystemExit if it is a run of another model or text."""
        state = weft.load(path)
        if state["config"] != asdict(config) or state["alphabet"] != text.alphabet:
            raise SystemExit(f"{path} holds a run with other settings: give another --out, or remove it")
        run = cls.start(config, text)
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.schedule.load_state_dict(state["schedule"])
        run.rng.bit_generator.state = state["batches"]
        weft.set_rng_state(state["dropout"])
        run.losses, run.held_out = state["losses"], state["held_out"]
        return run

    def train(
        self, path: Path, show: Callable[[Run], None] = lambda run: None, until: int | None = None
    ) -> None:
        """Trains to the end, or `until` a step; saves to `path` and calls `show` on the way."""
        c = self.config

        @weft.compile
        def step(codes: Tensor, following: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = loss_of(self.model, codes, following)
            loss.backward()
            self.optimizer.step()
            return loss.detach()

        while len(self.losses) < min(c.steps, until or c.steps):
            self.losses.append(step(*batch(self.text.train, c.batch, c.context, self.rng)).item())
            self.schedule.step()
            if len(self.losses) % c.save_every == 0 or len(self.losses) == c.steps:
                self.held_out.append((len(self.losses), self.evaluate()))
                self.save(path)
            show(self)

    def evaluate(self, pieces: int = 32) -> float:
        """The loss on pieces of the text that is held out, always the same ones."""
        self.model.eval()
        with weft.no_grad():
            pair = batch(self.text.held_out, pieces, self.config.context, np.random.default_rng(1))
            loss = loss_of(self.model, *pair).item()
        self.model.train()
        return loss

    def write(self, prompt: str, characters: int, temperature: float = 0.8, seed: int = 0) -> str:
        """The prompt, gone on with: each next character is drawn from softmax(logits / temperature)."""
        self.model.eval()
        rng, context = np.random.default_rng(seed), self.config.context

        @weft.compile
        def following(codes: Tensor, last: Tensor) -> Tensor:
            with weft.no_grad():
                return (self.model(codes)[0, last] / temperature).softmax(-1)

        codes = self.text.encode(prompt) or [0]
        for _ in range(characters):
            seen = codes[
                -context:
            ]  # what follows the last character is padding, which causal attention cannot see
            likely = following(weft.tensor([seen + [0] * (context - len(seen))]), weft.tensor(len(seen) - 1))
            codes.append(
                int(np.searchsorted(np.cumsum(likely.numpy()), rng.random())) % len(self.text.alphabet)
            )
        self.model.train()
        return self.text.decode(codes)


def plot(run: Run, path: Path) -> None:
    """Draws the loss over the steps."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(run.losses) + 1), run.losses, linewidth=0.6, label="training")
    axes.plot(*zip(*run.held_out, strict=True), "o-", label="held out")
    axes.set(xlabel="step", ylabel="cross entropy, nats per character", title="A small GPT on Proverbs")
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Trains, or goes on training; then draws the losses and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=Config.steps)
    parser.add_argument("--prompt", default="My son, ")
    parser.add_argument("--length", type=int, default=600, help="characters to write at the end")
    parser.add_argument("--device", default=None, help="where it is trained, such as opencl")
    parser.add_argument("--out", type=Path, default=Path("out/gpt"))
    args = parser.parse_args()
    console = Console()
    args.out.mkdir(parents=True, exist_ok=True)
    saved, config, text = args.out / "run.safetensors", Config(steps=args.steps), Text.load()
    with weft.device(args.device) if args.device else nullcontext():
        run = Run.resume(saved, config, text) if saved.exists() else Run.start(config, text)
        weights = sum(p.numel() for p in run.model.parameters())
        console.print(f"{weights:,} weights; {len(run.losses)} of {config.steps} steps are done ({saved})")
        columns = (
            TextColumn("training"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("training", total=config.steps, state="")

            def show(run: Run) -> None:
                done, recent = len(run.losses), np.mean(run.losses[-50:])
                progress.update(task, completed=done, state=f"step {done}/{config.steps}, loss {recent:.3f}")
                if run.held_out and run.held_out[-1][0] == done:
                    progress.console.print(f"[dim]step {done}: held out {run.held_out[-1][1]:.3f}[/dim]")
                    progress.console.print(run.write(args.prompt, 120), markup=False, highlight=False)

            run.train(saved, show)
        console.print(run.write(args.prompt, args.length), markup=False, highlight=False)
        plot(run, args.out / "loss.png")
    console.print(f"losses: {args.out / 'loss.png'}; the run: {saved}")


if __name__ == "__main__":
    main()
