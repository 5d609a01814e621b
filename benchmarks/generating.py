"""Measures `generate` on a random Qwen3-0.6B shape: its start, its memory, and many requests at once.

python -m benchmarks.generating                    all marks, all cores: some minutes; a Markdown table
python -m benchmarks.generating --only 1,2         the start and the memory
python -m benchmarks.generating --only 4 --busy    others use the machine: processor time, for one thread

Tokens per second beside llama.cpp, torch, onnxruntime and OpenVINO are measured by `benchmarks.llama_cpp` and
`benchmarks.decoders`, quality by `benchmarks.perplexity`. Files are written anew, with a vocabulary of 151,936 texts.
The start of a process is that of its interpreter; it is measured with an empty cache folder, and with what runs leave.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.llama_cpp import VOCABULARY, written
from benchmarks.marks import Row, clock, table, turns
from benchmarks.results import ROOT

FORMATS = {"BF16": "float32", "Q8_0": "float32", "Q8_0, int8": "int8", "Q4_0, int8": "int8"}
"""What is measured, and the activations of each."""

KINDS = [*dict.fromkeys(name.split(",")[0] for name in FORMATS)]
"""The files for it."""

PROMPT = "The weaver sat at the loom and passed the weft between the threads of the warp, " * 3
NEW_TOKENS = 32

_START = """
import json, sys, time
began, path, activations = float(sys.argv[1]), sys.argv[2], sys.argv[3]
import weft
tokenizer = weft.models.Tokenizer(path)
ids = tokenizer.encode(sys.argv[4])[:47]
model = weft.models.from_gguf(path, activations=activations)
loaded = time.monotonic()
made = iter(weft.models.generate(model, [ids], int(sys.argv[5])))
next(made)
first, used = time.monotonic(), time.process_time()
list(made)
kilobytes = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmRSS"))
print(json.dumps({"first": first - began, "used": used, "loaded": loaded - began, "bytes": kilobytes << 10}))
"""


def vocabulary(count: int) -> dict[str, Any]:
    """The entries of a file for a tokenizer of pairs: each text but the bytes is two earlier ones, side by side."""
    rng = np.random.default_rng(0)
    texts = [*map(chr, [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)])]
    known, merges = set(texts), list[str]()
    while len(texts) < count:
        a, b = (texts[k] for k in rng.integers(0, min(len(texts), 4096), 2))
        if len(a + b) <= 16 and a + b not in known:
            known.add(a + b)
            texts.append(a + b)
            merges.append(f"{a} {b}")
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.merges": merges, "tokenizer.ggml.token_type": np.ones(count, np.int32),
        "tokenizer.ggml.eos_token_id": np.uint32(0),
    }  # fmt: skip


@contextmanager
def models(kinds: Sequence[str], layers: int = 28, count: int = VOCABULARY) -> Iterator[dict[str, Path]]:
    """Files of random models by their format."""
    with tempfile.TemporaryDirectory() as folder:
        paths, text = {kind: Path(folder) / f"{kind}.gguf" for kind in kinds}, vocabulary(count)
        for kind, path in paths.items():
            written(path, kind, layers, count, text)
        yield paths


def start(path: Path, activations: str, cache: Path, new: int = NEW_TOKENS) -> dict[str, float]:
    """A process that generates from a file: seconds from its start until the model is there (`loaded`) and until the
    `first` token, its processor seconds until then (`used`), and resident `bytes` at its end."""
    given = [repr(time.monotonic()), str(path), activations, PROMPT, str(new)]
    out = subprocess.run(
        [sys.executable, "-c", _START, *given], cwd=ROOT, check=True, capture_output=True, text=True,
        env=os.environ | {"WEFT_CACHE_DIR": str(cache)},
    )  # fmt: skip
    return json.loads(out.stdout)


def starting(rounds: int) -> Iterator[Row]:
    """Marks 1 and 2: from the start of the process to the first token, and the memory it takes with 32 tokens."""
    with models(KINDS) as paths:
        for name, activations in FORMATS.items():
            path = paths[name.split(",")[0]]
            cold: list[dict[str, float]] = []
            warm: list[dict[str, float]] = []
            for _ in range(max(rounds // 3, 1)):
                with tempfile.TemporaryDirectory() as cache:
                    cold.append(start(path, activations, Path(cache)))
                    start(path, activations, Path(cache))  # which leaves what takes longer to build
                    warm += [start(path, activations, Path(cache)) for _ in range(3)]
            for what, runs, most in (("empty cache", cold, 3.0), ("warm", warm, 1.0)):
                first = statistics.median(r["first"] for r in runs)
                used = statistics.median(r["used"] for r in runs)
                yield Row(
                    1, f"{name}: first token, {what} ({used:.2f} s of processor)", first, most=most, unit="s"
                )
            yield Row(
                1,
                f"{name}: model there, warm",
                statistics.median(r["loaded"] for r in warm),
                most=1.0,
                unit="s",
            )
            resident = statistics.median(r["bytes"] for r in warm)
            yield Row(2, f"{name}: resident / file", resident / path.stat().st_size, most=1.15)


def outside(rounds: int) -> Iterator[Row]:
    """Mark 3: a token of 28 layers so narrow that kernels take next to nothing: what is left is outside of them."""
    import weft
    from weft.models.qwen3 import Qwen3Config

    config = Qwen3Config(
        vocab_size=256, hidden_size=32, intermediate_size=32, num_hidden_layers=28, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=512,
    )  # fmt: skip
    model = weft.models.Qwen3(config).eval()
    times: list[float] = []
    for _ in range(max(rounds // 3, 1) + 1):
        made = iter(weft.models.generate(model, [[1, 2, 3]], 200))
        for _ in range(8):
            next(made)
        while True:
            begin = clock[0]()
            if next(made, None) is None:
                break
            times.append(clock[0]() - begin)
    yield Row(3, "token of 28 narrow layers", 1e3 * statistics.median(times), most=0.2, unit="ms")


def together(rounds: int) -> Iterator[Row]:
    """Mark 4: eight requests at once beside one, tokens per second of a batch, prompts included."""
    import weft

    with models(KINDS) as paths:
        for name, activations in FORMATS.items():
            model = weft.models.from_gguf(paths[name.split(",")[0]], activations=activations)
            batch = weft.models.Batch(model, rows=8, size=256)

            def served(count: int, batch: Any = batch) -> None:
                for k in range(count):
                    batch.add(weft.models.Writing([*range(k + 1, k + 17)], limit=NEW_TOKENS))
                while batch.is_busy:
                    batch.step()

            one, eight = turns([lambda _: served(1), lambda _: served(8)], max(rounds // 3, 2), 2)
            yield Row(4, f"{name}: eight at once / one, tokens per second", 8 * one / eight, least=3.0)


MARKS = {"1,2": starting, "3": outside, "4": together}


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print."""
    table("python -m benchmarks.generating", __doc__, MARKS, 9, given)


if __name__ == "__main__":
    main()
