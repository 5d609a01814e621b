"""Perplexity of a small language model by the format of its weights: what a quantization costs in quality.

python -m benchmarks.perplexity                  trains, measures, prints the table
python -m benchmarks.perplexity --write          also writes it into manuals/models.md

A Llama of 2 layers reads the text of the project (examples/data/wisdom.txt, King James Version of 1611, public domain)
character by character. Nine tenths are learned, the last tenth is measured: exp of the mean cross entropy, in windows
of 256 characters that overlap by half, of which the second half counts. Beside it stands how far a format's
predictions are from those of float32, whatever comes: a small change of perplexity is often luck, to either side.
Formats change the layers' matrices; the table of characters and the norms stay as they are, but for dtypes, which
convert all.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import weft
import weft.nn.functional as F
from weft import Tensor, nn, quantization
from weft.models.llama import Llama, LlamaConfig
from weft.quantization import BlockFormat

ROOT = Path(__file__).parents[1]
TEXT = ROOT / "examples" / "data" / "wisdom.txt"
PAGE = ROOT / "manuals" / "models.md"
BEGIN, END = "<!-- perplexity -->\n", "<!-- /perplexity -->\n"
WINDOW = 256

ROWS = 8

Codes = npt.NDArray[np.int64]
Chances = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Format:
    """A way to hold the weights: `name`, the bits of a weight of a layer's matrix, and what makes a model of it."""

    name: str
    bits: float
    make: Callable[[Llama], Llama]


def formats() -> list[Format]:
    """All formats that are measured."""

    def dtype(to: weft.DType) -> Format:
        return Format(to.name, to.bits, lambda m: m.to(to))

    def own(name: str, each: float, **layout: object) -> Format:
        return Format(name, each, lambda m: quantization.quantize_model_(m, **layout))  # pyright: ignore[reportArgumentType]

    def blocks(f: BlockFormat, integers: bool) -> Format:
        told = ", activations int8" if integers else ""
        return Format(f.name + told, 8 * f.nbytes / f.elements, lambda m: in_blocks(m, f, integers))

    made = [f for f in BlockFormat if f.value.make is not None]
    return [
        dtype(weft.float32), dtype(weft.bfloat16), dtype(weft.float16),
        own("float8_e4m3fn, blocks of 32", 8.5, code=weft.float8_e4m3fn),
        own("float8_e5m2, blocks of 32", 8.5, code=weft.float8_e5m2),
        own("int8, blocks of 32", 8.5, bits=8), own("int8, blocks of 128", 8.125, bits=8, block=128),
        own("int8 with offsets, blocks of 32", 9.0, bits=8, symmetric=False),
        own("int4, blocks of 32", 4.5, bits=4), own("int4, blocks of 128", 4.125, bits=4, block=128),
        own("int4 with offsets, blocks of 32", 5.0, bits=4, symmetric=False),
        *[blocks(f, False) for f in made], *[blocks(f, True) for f in made if f.even],
    ]  # fmt: skip


def in_blocks(model: Llama, format: BlockFormat, integers: bool) -> Llama:
    """The model with its layers' matrices in a block format of ggml."""
    kind = nn.IntegerLinear if integers else nn.BlockLinear
    for name, layer in list(model.named_modules()):
        if type(layer) is nn.Linear:
            model.set_submodule(name, kind(quantization.to_blocks(layer.weight, format), layer.bias))
    return model


def text() -> tuple[int, Codes, Codes]:
    """The number of characters there are, and the text as numbers: what is learned, and what is measured."""
    found = TEXT.read_text(encoding="utf-8")
    alphabet = {c: k for k, c in enumerate(sorted(set(found)))}
    codes = np.array([alphabet[c] for c in found], np.int64)
    cut = len(codes) * 9 // 10
    return len(alphabet), codes[:cut], codes[cut:]


def trained(alphabet: int, codes: Codes, steps: int, rows: int = ROWS) -> tuple[Llama, float]:
    """A model that has learned a text, and its last loss (mean of 20)."""
    weft.manual_seed(0)
    model = Llama(LlamaConfig(alphabet, 256, 768, 2, 4, max_position_embeddings=WINDOW))
    optimizer = weft.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1, betas=(0.9, 0.99))
    rng = np.random.default_rng(0)

    @weft.compile
    def step(ids: Tensor, following: Tensor, rate: Tensor) -> Tensor:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids).flatten(0, 1), following.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses: list[float] = []
    for n in range(steps):
        at = rng.integers(0, len(codes) - WINDOW - 1, rows)[:, None] + np.arange(WINDOW + 1)
        rate = 2e-3 * min((n + 1) / 50, 0.05 + 0.95 * (1 + math.cos(math.pi * n / steps)) / 2)
        pieces = codes[at]
        losses.append(step(weft.tensor(pieces[:, :-1]), weft.tensor(pieces[:, 1:]), weft.tensor(rate)).item())
    return model.eval(), float(np.mean(losses[-20:]))


def predictions(model: Llama, codes: Codes) -> tuple[Chances, Codes]:
    """The log probabilities of the characters that may follow, (n, alphabet), each seen behind at least half a window,
    and those that do, (n,)."""
    half = WINDOW // 2
    starts = np.arange(0, len(codes) - WINDOW, half)
    starts = starts[: len(starts) // ROWS * ROWS].reshape(-1, ROWS)

    @weft.compile
    def chances(ids: Tensor) -> Tensor:
        return F.log_softmax(model(ids)[:, half:].float(), -1).flatten(0, 1)

    with weft.no_grad():
        pieces = [codes[row[:, None] + np.arange(WINDOW + 1)] for row in starts]
        found = [chances(weft.tensor(p[:, :-1])).numpy() for p in pieces]
    return np.concatenate(found).astype(np.float64), np.concatenate(
        [p[:, 1 + half :].ravel() for p in pieces]
    )


def perplexity(chances: Chances, following: Codes) -> float:
    """exp of the mean cross entropy of the characters that follow."""
    return math.exp(-float(np.take_along_axis(chances, following[:, None], 1).mean()))


def divergence(base: Chances, chances: Chances) -> float:
    """The mean of sum p log(p / q), in nats: how far the predictions q are from p, whatever comes."""
    return float((np.exp(base) * (base - chances)).sum(1).mean())


def table(model: Llama, codes: Codes, chosen: Sequence[Format]) -> str:
    """The perplexity of each format, and its distance to float32, as Markdown."""
    lines = [
        "| weights | bits each | perplexity | to float32 | divergence, 1e-6 nats |",
        "|---|---:|---:|---:|---:|",
    ]
    base, following = predictions(model, codes)
    known = perplexity(base, following)
    with weft.no_grad():
        for f in chosen:
            found, _ = predictions(f.make(copy.deepcopy(model)), codes)
            now, far = perplexity(found, following), divergence(base, found)
            lines.append(
                f"| {f.name} | {f.bits:g} | {now:.4f} | {100 * (now / known - 1):+.2f} % | {far * 1e6:,.0f} |"
            )
    return "\n".join(lines) + "\n"


def with_table(page: str, found: str) -> str:
    """A page with a table in place of what stands between its marks; ValueError where there are none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no place for the table: the lines {BEGIN!r} and {END!r}")
    return f"{before}{begin}\n{found}\n{end}{after}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, measures, and prints or writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--write", action="store_true", help="write the table into manuals/models.md")
    chosen = parser.parse_args(arguments)
    alphabet, known, new = text()
    start = time.perf_counter()
    model, last = trained(alphabet, known, chosen.steps)
    print(f"{chosen.steps} steps, loss {last:.3f}, {time.perf_counter() - start:.0f} s")
    found = table(model, new, formats())
    told = f"{chosen.steps} steps, trained to a loss of {last:.3f}.\n\n{found}"
    print(told)
    if chosen.write:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), told), encoding="utf-8")


if __name__ == "__main__":
    main()
