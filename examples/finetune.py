"""Fine-tunes a language model on a text, within a limit of memory: adapters of low rank over weights of few bits.

The base's weights stay as they are, in 4 bits or in their file's blocks; adapters (weft.nn.lora) learn, AdamW keeps
their moments in 8 bits, layers are computed again for gradients instead of kept, and one training step is a single
compiled function. What does not fit even so leaves memory as weft.memory_limit plans it. All of a run but the base is
saved now and then; a run that was stopped goes on from there.

    python examples/finetune.py                                                 # a random Qwen3, on bytes
    python examples/finetune.py --model gemma-3-270m-q4_k_m.gguf --memory 2G    # `make gemma` has the file
    python examples/finetune.py --model Qwen3-0.6B --text notes.txt --memory 3G --prompt "Dear"

Source: Hu et al. 2021, arXiv:2106.09685 (LoRA); Dettmers et al. 2023, arXiv:2305.14314 (QLoRA).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import weft
import weft.nn.functional as F
from weft import Tensor, models, optim
from weft.models.qwen3 import Qwen3Config
from weft.nn import lora
from weft.nn.parameter import Parameter

TEXT = Path(__file__).parent / "data" / "wisdom.txt"
RANDOM = Qwen3Config(
    vocab_size=256, hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=4,
    num_key_value_heads=2, head_dim=64, tie_word_embeddings=True,
)  # fmt: skip
UNITS = {"K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class Config:
    """What a run does."""

    model: str | None = None  # a folder, a GGUF file, or a random Qwen3
    names: tuple[str, ...] = ("*_proj",)
    rank: int = 8
    bits: int = 4  # of the base's weights, where they are not in blocks already
    rate: float = 2e-3
    steps: int = 200
    batch: int = 4
    context: int = 64
    memory: int | None = None  # bytes
    save_every: int = 25
    seed: int = 0


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def encode(self, text: str) -> list[int]:
        """The bytes of a text."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """The text of bytes."""
        return bytes(ids).decode(errors="replace")


def loaded(c: Config, shape: Qwen3Config = RANDOM) -> tuple[Any, Any]:
    """The base, with weights of few bits, and its tokenizer."""
    if c.model is None:
        weft.manual_seed(c.seed)
        model, tokenizer = models.Qwen3(shape), Bytes()
    elif Path(c.model).is_file():
        return models.from_gguf(c.model), models.Tokenizer(c.model)
    else:
        model, tokenizer = models.from_pretrained(c.model), models.Tokenizer(c.model)
    return weft.quantization.quantize_model_(model, bits=c.bits), tokenizer


@dataclass
class Run:
    """A training run: the base is loaded anew, and all else is saved."""

    config: Config
    tokens: np.ndarray[Any, Any]
    model: Any
    tokenizer: Any
    weights: list[Parameter]
    optimizer: optim.AdamW
    rng: np.random.Generator
    losses: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, config: Config, text: str, shape: Qwen3Config = RANDOM) -> Run:
        """A run at its beginning. SystemExit for a text that is too short."""
        model, tokenizer = loaded(config, shape)
        tokens = np.array(tokenizer.encode(text), np.int64)
        if len(tokens) <= config.context:
            raise SystemExit(f"the text has {len(tokens)} tokens; needs more than --context {config.context}")
        weft.manual_seed(config.seed)
        weights = lora.add(model.train(), config.names, config.rank, alpha=2 * config.rank)
        model.checkpoint_layers()
        optimizer = optim.AdamW(weights, lr=config.rate, weight_decay=0.0, state_bits=8)
        return cls(config, tokens, model, tokenizer, weights, optimizer, np.random.default_rng(config.seed))

    def save(self, path: Path) -> None:
        """Writes all but the base; the file that was there stays until the new one is whole."""
        state = {
            "config": json.dumps(asdict(self.config)), "adapters": lora.state_dict(self.model),
            "optimizer": self.optimizer.state_dict(), "batches": self.rng.bit_generator.state, "losses": self.losses,
        }  # fmt: skip
        weft.save(state, path)

    @classmethod
    def resume(cls, path: Path, config: Config, text: str, shape: Qwen3Config = RANDOM) -> Run:
        """The run saved in a file, to go on to the steps of `config`. SystemExit if it has other settings."""
        state = weft.load(path)
        free = {"steps": 0, "memory": 0, "save_every": 0}
        if json.loads(state["config"]) | free != json.loads(json.dumps(asdict(config))) | free:
            raise SystemExit(f"{path} holds a run with other settings: give another --out, or remove it")
        run = cls.start(config, text, shape)
        lora.load_state_dict(run.model, state["adapters"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.rng.bit_generator.state, run.losses = state["batches"], state["losses"]
        return run

    def batch(self) -> Tensor:
        """Random pieces of the text, with the token after each: (batch, context + 1)."""
        c = self.config
        starts = self.rng.integers(0, len(self.tokens) - c.context, c.batch)[:, None]
        return weft.tensor(self.tokens[starts + np.arange(c.context + 1)])

    def train(
        self, path: Path, show: Callable[[Run], None] = lambda run: None, until: int | None = None
    ) -> None:
        """Trains to the end, or `until` a step, within the limit; saves to `path` and calls `show` on the way."""
        c = self.config

        @weft.compile
        def step(ids: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            self.optimizer.step()
            return loss.detach()

        with weft.memory_limit(c.memory):
            while len(self.losses) < min(c.steps, until or c.steps):
                self.losses.append(step(self.batch()).item())
                if len(self.losses) % c.save_every == 0 or len(self.losses) == c.steps:
                    self.save(path)
                show(self)

    def write(self, prompt: str, count: int = 48) -> str:
        """The prompt, gone on with, by the adapters and their base."""
        self.model.eval()
        how = models.Sampling(temperature=0.7, top_p=0.9)
        ids = self.tokenizer.encode(prompt)
        made = [
            t for (t,) in models.generate(self.model, [ids], count, sampling=how, seed=0) if t is not None
        ]
        self.model.train()
        return prompt + self.tokenizer.decode(made)


def size(text: str) -> int:
    """Bytes of "1.5G", "800M" or "1000000"."""
    unit = UNITS.get(text[-1:].upper())
    return int(float(text[:-1]) * unit) if unit else int(text)


def main() -> None:
    """Trains, or goes on training; then writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a folder of the hub, or a GGUF file; without one, a random Qwen3")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--names", nargs="+", default=list(Config.names), help="layers that get adapters")
    parser.add_argument("--memory", type=size, help="the limit, as 800M or 2G")
    for name in ("rank", "bits", "rate", "steps", "batch", "context", "save_every", "seed"):
        default = getattr(Config, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--prompt", default="My son, ")
    parser.add_argument("--out", type=Path, default=Path("out/finetune"))
    args = vars(parser.parse_args())
    out, prompt, text = args.pop("out"), args.pop("prompt"), args.pop("text").read_text(encoding="utf-8")
    config, console = Config(**args | {"names": tuple(args["names"])}), Console()
    out.mkdir(parents=True, exist_ok=True)
    saved = out / "run.safetensors"
    run = Run.resume(saved, config, text) if saved.exists() else Run.start(config, text)
    learned = sum(p.numel() for p in run.weights)
    console.print(f"{learned:,} weights learn; {len(run.losses)} of {config.steps} steps are done ({saved})")
    columns = TextColumn("training"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=config.steps, state="")

        def show(run: Run) -> None:
            done, recent = len(run.losses), np.mean(run.losses[-20:])
            progress.update(task, completed=done, state=f"step {done}/{config.steps}, loss {recent:.3f}")

        run.train(saved, show)
    weft.save(lora.state_dict(run.model), out / "adapters.safetensors")
    console.print(run.write(prompt), markup=False, highlight=False)
    console.print(f"adapters: {out / 'adapters.safetensors'}; the run: {saved}")


if __name__ == "__main__":
    main()
