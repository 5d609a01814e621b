"""Measures decoding and prefill of a random Qwen3-0.6B shape: weft beside torch, onnxruntime and OpenVINO, in turns.

python -m benchmarks.decoders                                   all that are installed, all cores; a Markdown table
python -m benchmarks.decoders --runs weft-BF16,torch-bfloat16 --layers 4 --vocabulary 32000 --threads 1

Each run is a process of its own, with random weights; they take turns, and the median of all tokens counts.
Runs: weft-BF16, weft-Q8_0, weft-Q4_0 (activations in 8 bits); torch-bfloat16, torch-float32 (a static cache, eager);
onnxruntime-float32, onnxruntime-int8, onnxruntime-int4 (MatMulNBits in blocks of 32 with activations in 8 bits, and
GroupQueryAttention over one buffer); openvino-float32, openvino-int8 (steps of rows). Where a framework's numbers are
those of a file in BF16, `agrees` says how many of its first tokens are those of weft in BF16.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import decoder_graphs as graphs
from benchmarks.llama_cpp import CONTEXT, FEATURES, HEADS, KEYS, Timed, Weft, written

RUNS = (
    "weft-BF16", "torch-bfloat16", "torch-float32", "onnxruntime-float32", "openvino-float32",
    "weft-Q8_0", "onnxruntime-int8", "openvino-int8", "weft-Q4_0", "onnxruntime-int4",
)  # fmt: skip
ROOM = 256
clock: Callable[[], float] = time.perf_counter
"""The clock that all is measured by."""

PROMPT = list(range(1, CONTEXT + 1))


class Decoding:
    """A model: `next(ids)` takes ids behind those before, and gives the likeliest next one; `reset` begins anew."""

    def reset(self) -> None:
        """Forget all tokens."""

    def next(self, ids: list[int]) -> int:
        """The likeliest token behind these."""
        raise NotImplementedError

    def round(self, count: int, into: Timed) -> list[int]:
        """A prefill, and `count` tokens behind it; the tokens."""
        self.reset()
        begin = clock()
        made = [self.next(PROMPT)]
        into.prefills.append(clock() - begin)
        for _ in range(count):
            begin = clock()
            made.append(self.next(made[-1:]))
            into.tokens.append(clock() - begin)
        return made


class InWeft(Decoding):
    """weft, from a GGUF file."""

    def __init__(self, path: Path) -> None:
        self.weft = Weft(path, "int8", ROOM - CONTEXT)

    def reset(self) -> None:
        self.weft.cache.length.zero_()
        self.weft.cache.length.realize()

    def next(self, ids: list[int]) -> int:
        with self.weft.weft.no_grad():
            return int(self.weft.step(self.weft.weft.tensor([ids])).item())


class InTorch(Decoding):
    """torch in eager mode, the cache written in place."""

    def __init__(self, weights: dict[str, Any], dtype: str, threads: int) -> None:
        torch: Any = import_module("torch")
        self.torch = torch
        torch.set_num_threads(threads)
        self.dtype = getattr(torch, dtype)
        self.w = {n: torch.from_numpy(np.array(w)).to(self.dtype) for n, w in weights.items()}
        self.layers = graphs.layers(weights)
        self.cache = torch.zeros(self.layers, 2, 1, KEYS, ROOM, FEATURES, dtype=self.dtype)
        cos, sin = graphs.angles(ROOM)
        self.cos, self.sin = torch.from_numpy(cos).to(self.dtype), torch.from_numpy(sin).to(self.dtype)
        self.length = 0

    def reset(self) -> None:
        self.length = 0

    def turned(self, x: Any) -> Any:
        a, b = x.chunk(2, -1)
        span = slice(self.length, self.length + x.shape[2])
        cos, sin = self.cos[span], self.sin[span]
        return self.torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def next(self, ids: list[int]) -> int:
        with self.torch.inference_mode():
            return self._next(ids)

    def _next(self, ids: list[int]) -> int:
        f, w, t = self.torch.nn.functional, self.w, len(ids)
        past = self.length + t
        x = w["token_embd.weight"][self.torch.tensor(ids)][None]

        def norm(x: Any, name: str) -> Any:
            return f.rms_norm(x, x.shape[-1:], w[name], 1e-6)

        def heads(x: Any, count: int) -> Any:
            return x.view(1, t, count, FEATURES).transpose(1, 2)

        for k in range(self.layers):
            p = f"blk.{k}."
            y = norm(x, p + "attn_norm.weight")
            q, key, value = (f.linear(y, w[f"{p}attn_{n}.weight"]) for n in "qkv")
            q = self.turned(norm(heads(q, HEADS), p + "attn_q_norm.weight"))
            self.cache[k, 0, :, :, self.length : past] = self.turned(
                norm(heads(key, KEYS), p + "attn_k_norm.weight")
            )
            self.cache[k, 1, :, :, self.length : past] = heads(value, KEYS)
            seen = self.cache[k, :, :, :, :past]
            y = f.scaled_dot_product_attention(q, seen[0], seen[1], is_causal=t > 1, enable_gqa=True)
            x = x + f.linear(y.transpose(1, 2).reshape(1, t, -1), w[p + "attn_output.weight"])
            y = norm(x, p + "ffn_norm.weight")
            y = f.silu(f.linear(y, w[p + "ffn_gate.weight"])) * f.linear(y, w[p + "ffn_up.weight"])
            x = x + f.linear(y, w[p + "ffn_down.weight"])
        self.length = past
        return int(f.linear(norm(x[:, -1:], "output_norm.weight"), w["token_embd.weight"]).argmax())


class InOnnxRuntime(Decoding):
    """onnxruntime, the cache in buffers that are read and written."""

    def __init__(self, weights: dict[str, Any], kind: str, threads: int, folder: Path) -> None:
        ort: Any = import_module("onnxruntime")
        path = graphs.saved(graphs.fused(weights, kind), folder)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        shape = (1, KEYS, ROOM, FEATURES)
        self.kept: list[Any] = []
        for k in range(graphs.layers(weights)):
            for n in ("key", "value"):
                kept = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
                self.kept.append(kept)
                self.binding.bind_ortvalue_input(f"past_{n}_{k}", kept)
                self.binding.bind_ortvalue_output(f"present_{n}_{k}", kept)
        self.length = 0

    def reset(self) -> None:
        self.length = 0

    def next(self, ids: list[int]) -> int:
        self.length += len(ids)
        bind = self.binding.bind_cpu_input
        bind("ids", np.array([ids], np.int64))
        bind("seen", np.array([self.length - 1], np.int32))
        bind("total", np.array(self.length, np.int32))
        self.binding.bind_output("logits", "cpu")
        self.session.run_with_iobinding(self.binding)
        logits = next(
            v
            for n, v in zip(
                [o.name for o in self.session.get_outputs()], self.binding.get_outputs(), strict=False
            )
            if n == "logits"
        )
        return int(logits.numpy().argmax())


class InOpenVino(Decoding):
    """OpenVINO, the cache as state of the request."""

    def __init__(self, weights: dict[str, Any], kind: str, threads: int, folder: Path) -> None:
        ov: Any = import_module("openvino")
        stateful: Any = import_module("openvino._offline_transformations").apply_make_stateful_transformation
        core = ov.Core()
        model = core.read_model(graphs.saved(graphs.plain(weights, kind), folder))
        count = graphs.layers(weights)
        pairs = {f"past_{n}_{k}": f"present_{n}_{k}" for k in range(count) for n in ("key", "value")}
        stateful(model, pairs)
        how = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        }
        self.request: Any = core.compile_model(model, "CPU", how).create_infer_request()
        self.length = 0

    def reset(self) -> None:
        self.request.reset_state()
        self.length = 0

    def next(self, ids: list[int]) -> int:
        at = np.arange(self.length, self.length + len(ids), dtype=np.int64)
        self.length += len(ids)
        self.request.infer({"ids": np.array([ids], np.int64), "at": at})
        return int(self.request.get_tensor("logits").data.argmax())


def opened(run: str, path: Path, threads: int, folder: Path) -> Decoding:
    """The model of a run."""
    framework, _, kind = run.partition("-")
    if framework == "weft":
        return InWeft(path)
    weights = graphs.weights(path)
    match framework:
        case "torch":
            return InTorch(weights, kind, threads)
        case "onnxruntime":
            return InOnnxRuntime(weights, kind, threads, folder)
        case "openvino":
            return InOpenVino(weights, kind, threads, folder)
        case _:
            raise SystemExit(f"no run {run!r}; there are {', '.join(RUNS)}")


def child(run: str, path: Path, threads: int) -> None:
    """Rounds as they are asked for: a number of tokens a line, the times as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        model = opened(run, path, threads, Path(folder))
    model.round(2, Timed())
    print("ready", flush=True)
    for line in sys.stdin:
        times = Timed()
        made = model.round(int(line), times)
        print(json.dumps([times.tokens, times.prefills, made]), flush=True)


def file_of(run: str, folder: Path, layers: int, vocabulary: int) -> Path:
    """The file of a run's weights, written where it is not there."""
    kind = run.partition("-")[2]
    kind = kind if kind in ("Q8_0", "Q4_0") else "BF16"
    path = folder / f"{kind}.gguf"
    if not path.exists():
        written(path, kind, layers, vocabulary)
    return path


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", default=",".join(RUNS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument(
        "--processor-time", action="store_true", help="of one thread, on a machine that others use"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.processor_time:
        globals()["clock"] = time.process_time
    os.environ["WEFT_NUM_THREADS"] = str(given.threads)  # before weft opens its device
    if given.child:
        child(given.child, given.path, given.threads)
        return
    runs = [r for r in given.runs.split(",") if find_spec(r.partition("-")[0]) is not None]
    with tempfile.TemporaryDirectory() as folder:
        table(given, {r: file_of(r, Path(folder), given.layers, given.vocabulary) for r in runs})


def table(given: argparse.Namespace, paths: dict[str, Path]) -> None:
    """The rows, after rounds in turns."""
    children: dict[str, subprocess.Popen[str]] = {}
    for run, path in paths.items():
        order = [sys.executable, "-m", "benchmarks.decoders", "--child", run, "--path", str(path)]
        made = subprocess.Popen(
            [*order, "--threads", str(given.threads), *["--processor-time"] * given.processor_time],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children[run] = made
        if _answer(made) != "ready":
            raise SystemExit(f"{run} does not start")
    times = {run: Timed() for run in paths}
    first: dict[str, list[int]] = {}
    for _ in range(given.rounds):
        for run, process in children.items():
            assert process.stdin is not None
            process.stdin.write(f"{given.tokens}\n")
            process.stdin.flush()
            tokens, prefills, first[run] = json.loads(_answer(process))
            times[run].tokens += tokens
            times[run].prefills += prefills
    for process in children.values():
        process.communicate()
    print(f"{given.threads} threads, {given.layers} layers, vocabulary {given.vocabulary}, context {CONTEXT}")
    print("| run | tokens/s | least, ms | prefill, tokens/s | agrees |\n|---|---|---|---|---|")
    for run, t in times.items():
        known = first.get("weft-BF16", []) if "float" in run else []
        same = [a == b for a, b in zip(first[run], known, strict=False)]
        agrees = f"{[*same, False].index(False)} of {len(same)}" if same else ""
        row = f"{1 / statistics.median(t.tokens):.1f} | {min(t.tokens) * 1e3:.2f}"
        print(f"| {run} | {row} | {CONTEXT / statistics.median(t.prefills):.0f} | {agrees} |")


def _answer(process: subprocess.Popen[str]) -> str:
    """The next line of a process."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


if __name__ == "__main__":
    main()
