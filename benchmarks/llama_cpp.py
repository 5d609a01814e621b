"""Measures decoding and prefill of a random Qwen3-0.6B shape from a GGUF file: weft, and llama.cpp beside it, in turns.

python -m benchmarks.llama_cpp --library FOLDER                      Q8_0, Q4_0 and BF16 on all cores; a Markdown table
python -m benchmarks.llama_cpp --library FOLDER --threads 1 --formats Q8_0 --layers 4

FOLDER has llama.cpp's libraries (`bins/linux-x64` of the npm package `@node-llama-cpp/linux-x64`); without one, weft
is measured alone. Each round decodes `--tokens` tokens behind a context of 128, first one, then the other; the median
of all tokens counts. `limit` is what a sum over 256 MiB reads per second, before and after, over the weights' bytes:
measure on an idle machine, since llama.cpp's threads spin where they wait.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

clock: Callable[[], float] = time.perf_counter
"""The clock that all is measured by."""

CONTEXT = 128
WIDTH, INNER, HEADS, KEYS, FEATURES, VOCABULARY = 1024, 3072, 16, 8, 128, 151_936


def written(
    path: Path, kind: str, layers: int, vocabulary: int, text: Mapping[str, Any] | None = None
) -> int:
    """A random model in a file, with entries for a tokenizer if given; the bytes of its weights that a token reads."""
    import weft
    from weft.quantization import BlockFormat, BlockTensor, to_blocks

    rng = np.random.default_rng(0)

    def weight(rows: int, columns: int) -> Any:
        if kind == "BF16":
            drawn = rng.standard_normal((rows, columns), np.float32) * np.float32(columns**-0.5)
            return weft.tensor(drawn).bfloat16().realize()
        f = BlockFormat[kind]
        if f.value.make is None:
            raise SystemExit(f"weft makes no {kind}")
        # blocks drawn once and repeated: what they hold takes no part in how long a product takes
        some: Any = to_blocks(
            weft.tensor(rng.standard_normal((64, columns), np.float32) * np.float32(columns**-0.5)), f
        )
        data = np.resize(some.data.numpy(), (rows, *map(int, some.data.shape[1:])))
        return BlockTensor(weft.tensor(data), f, (rows, columns))

    tensors: dict[str, Any] = {
        "token_embd.weight": weight(vocabulary, WIDTH),
        "output_norm.weight": weft.ones(WIDTH),
    }
    for k in range(layers):
        shapes = {
            "attn_q": (HEADS * FEATURES, WIDTH), "attn_k": (KEYS * FEATURES, WIDTH), "attn_v": (KEYS * FEATURES, WIDTH),
            "attn_output": (WIDTH, HEADS * FEATURES), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH),
            "ffn_down": (WIDTH, INNER),
        }  # fmt: skip
        tensors |= {f"blk.{k}.{n}.weight": weight(*s) for n, s in shapes.items()}
        norms = {"attn_norm": WIDTH, "ffn_norm": WIDTH, "attn_q_norm": FEATURES, "attn_k_norm": FEATURES}
        tensors |= {f"blk.{k}.{n}.weight": weft.ones(s) for n, s in norms.items()}
    about = {
        "block_count": layers, "context_length": 4096, "embedding_length": WIDTH, "feed_forward_length": INNER,
        "attention.head_count": HEADS, "attention.head_count_kv": KEYS, "attention.key_length": FEATURES,
        "attention.value_length": FEATURES, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6,
        "vocab_size": vocabulary,
    }  # fmt: skip
    entries: dict[str, Any] = {
        "general.architecture": "qwen3",
        "tokenizer.ggml.model": "none",
        **(text or {}),
    }
    weft.io.save_gguf(tensors, path, entries | {f"qwen3.{k}": typed(v) for k, v in about.items()})
    return sum(t.nbytes for n, t in tensors.items() if not n.endswith("norm.weight"))


def typed(value: float) -> Any:
    """Whole numbers as files of llama.cpp have them."""
    return np.uint32(value) if isinstance(value, int) else np.float32(value)


@dataclass
class Timed:
    """Seconds of each decoded token, and of each prefill."""

    tokens: list[float] = field(default_factory=list[float])
    prefills: list[float] = field(default_factory=list[float])


class Weft:
    """A model in weft, with a compiled step."""

    def __init__(self, path: Path, activations: str, tokens: int) -> None:
        import weft

        self.weft = weft
        begin = clock()
        self.model = weft.models.from_gguf(path, activations=activations)
        self.loaded = clock() - begin
        self.cache = self.model.cache(1, -(-(CONTEXT + tokens) // 64) * 64)  # as `generate` has it

        def step(ids: Any) -> Any:
            return self.model(ids, self.cache, last=True)[:, 0].argmax(-1, keepdim=True)

        self.step = weft.compile(step)
        self.prompt = weft.tensor([list(range(1, CONTEXT + 1))])

    def round(self, count: int, into: Timed) -> None:
        """A prefill, and `count` tokens behind it."""
        with self.weft.no_grad():
            self.cache.length.zero_()
            self.cache.length.realize()
            begin = clock()
            ids = self.step(self.prompt)
            ids.tolist()
            into.prefills.append(clock() - begin)
            for _ in range(count):
                begin = clock()
                ids = self.step(ids)
                ids.tolist()
                into.tokens.append(clock() - begin)


class _Params(ctypes.Structure):
    """More than any of llama.cpp's structs of parameters, which are passed in memory and read from the front."""

    _fields_ = (("ints", ctypes.c_int32 * 256),)


class _Batch(ctypes.Structure):
    _fields_ = (("count", ctypes.c_int32), *((f"p{k}", ctypes.c_void_p) for k in range(6)))


class LlamaCpp:
    """A model in llama.cpp, through its C interface."""

    def __init__(self, folder: Path, path: Path, threads: int) -> None:
        names = ("libggml-base.so", "libggml.v*.so", "libllama.v*.so")
        found = [next(folder.glob(n)) for n in names]
        *_, ggml, self.lib = [ctypes.CDLL(str(p), mode=ctypes.RTLD_GLOBAL) for p in found]
        quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        self.kept: list[Any] = [quiet]
        self.lib.llama_log_set(quiet, None)
        ggml.ggml_backend_load_all_from_path(str(folder).encode())
        self.lib.llama_backend_init()
        for name, result, arguments in (
            ("llama_model_default_params", _Params, ()),
            ("llama_context_default_params", _Params, ()),
            ("llama_model_load_from_file", ctypes.c_void_p, (ctypes.c_char_p, _Params)),
            ("llama_init_from_model", ctypes.c_void_p, (ctypes.c_void_p, _Params)),
            ("llama_batch_get_one", _Batch, (ctypes.c_void_p, ctypes.c_int32)),
            ("llama_decode", ctypes.c_int32, (ctypes.c_void_p, _Batch)),
            ("llama_get_memory", ctypes.c_void_p, (ctypes.c_void_p,)),
            ("llama_memory_clear", None, (ctypes.c_void_p, ctypes.c_bool)),
            ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), (ctypes.c_void_p, ctypes.c_int32)),
        ):
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        begin = clock()
        model = self.lib.llama_model_load_from_file(str(path).encode(), self.lib.llama_model_default_params())
        self.loaded = clock() - begin
        params = self.lib.llama_context_default_params()
        head = params.ints[:12]
        at = next(
            (k for k in range(4, 11) if head[k : k + 2] == [4, 4]), 0
        )  # the threads of tokens and of prompts
        if head[:4] != [512, 2048, 512, 1] or not at:
            raise SystemExit("llama.cpp's parameters lie otherwise than this script knows")
        params.ints[at] = params.ints[at + 1] = threads
        self.context = self.lib.llama_init_from_model(model, params)
        if not model or not self.context:
            raise SystemExit(f"llama.cpp does not load {path}")

    def decode(self, ids: list[int]) -> int:
        """The likeliest token after these."""
        given = (ctypes.c_int32 * len(ids))(*ids)
        if self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(given, len(ids))):
            raise SystemExit("llama.cpp does not decode")
        logits = self.lib.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())

    vocabulary = VOCABULARY

    def round(self, count: int, into: Timed) -> None:
        """A prefill, and `count` tokens behind it."""
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        begin = clock()
        token = self.decode(list(range(1, CONTEXT + 1)))
        into.prefills.append(clock() - begin)
        for _ in range(count):
            begin = clock()
            token = self.decode([token])
            into.tokens.append(clock() - begin)


def bandwidth() -> float:
    """Bytes per second of a sum over more than the caches hold, the best of some."""
    import weft

    x = weft.zeros(64 << 20).realize()
    total: Any = weft.compile(lambda x: x.sum())
    total(x).item()
    best = 1e9
    for _ in range(5):
        begin = clock()
        total(x).item()
        best = min(best, clock() - begin)
    return (256 << 20) / best


def measured(rounds: int, tokens: int, runs: dict[str, Callable[[int, Timed], None]]) -> dict[str, Timed]:
    """Rounds in turns, after one of each that does not count."""
    times = {name: Timed() for name in runs}
    for run in runs.values():
        run(2, Timed())
    for _ in range(rounds):
        for name, run in runs.items():
            run(tokens, times[name])
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", type=Path)
    parser.add_argument("--formats", default="Q8_0,Q4_0,BF16")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--activations", default="int8")
    parser.add_argument(
        "--processor-time", action="store_true", help="of one thread, on a machine that others use"
    )
    given = parser.parse_args()
    if given.processor_time:
        globals()["clock"] = time.process_time
    os.environ["WEFT_NUM_THREADS"] = str(given.threads)  # before weft opens its device
    print(f"{given.threads} threads, {given.layers} layers, context {CONTEXT}")
    print("| format | | tokens/s | ms | GB/s | of the limit | prefill, tokens/s | load, s |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in given.formats.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            nbytes = written(path, kind, given.layers, given.vocabulary)
            before = bandwidth()
            models: dict[str, Any] = {"weft": Weft(path, given.activations, given.tokens)}
            if given.library is not None:
                models["llama.cpp"] = LlamaCpp(given.library, path, given.threads)
                models["llama.cpp"].vocabulary = given.vocabulary
            times = measured(given.rounds, given.tokens, {n: m.round for n, m in models.items()})
            limit = statistics.mean((before, bandwidth()))
            for name, t in times.items():
                one, many = statistics.median(t.tokens), statistics.median(t.prefills)
                print(
                    f"| {kind} | {name} | {1 / one:.1f} | {one * 1e3:.2f} | {nbytes / one / 1e9:.1f} | "
                    f"{nbytes / one / limit:.2f} | {CONTEXT / many:.0f} | {models[name].loaded:.2f} |",
                    flush=True,
                )
            print(f"| {kind} | limit | {limit / nbytes:.1f} | | {limit / 1e9:.1f} | | | |", flush=True)


if __name__ == "__main__":
    main()
