"""Digests of the loops that a fixed set of graphs becomes on described devices: what a refactoring must not change.

    python tools/loops_digest.py                    # a line per graph and device: kernels, digest of their loops
    python tools/loops_digest.py --only conv        # graphs whose names contain that
    python tools/loops_digest.py --write FILE       # and the loops' text, to be compared by diff
    python tools/loops_digest.py --golden           # kernels and schedules as text, into the files that tests compare

No device is needed: graphs are kernelized, scheduled, lowered and optimized as for a CPU with AVX2, one with AVX-512
and a GPU with matrix units.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from described import INFO, leaf
from performance_forms import KERNELS, WIDE

import weft
import weft.nn.functional as F
from weft import Tensor, nn
from weft.autograd.value import Value
from weft.backends.llvm import scalar
from weft.backends.protocol import Bounds, DeviceInfo
from weft.core.args.handle import wrap
from weft.ir.graph import buffer
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.text import show_algorithm, show_nests
from weft.ir.loops import LoopKind
from weft.ir.loops_text import show_program
from weft.ir.ops import ELEMENTWISE
from weft.scheduler.generalize import generalize
from weft.scheduler.kernelize.kernels import kernelize_all, kernels
from weft.scheduler.lowering import lowered
from weft.scheduler.optimize.rules import schedule

GPU = DeviceInfo(
    name="cuda:0", kind="cuda", description="a GPU with matrix units", cores=132, vector_bytes=16,
    vector_registers=255, l1_bytes=228 << 10, l2_bytes=50 << 20, l3_bytes=0, memory_bytes=141 << 30,
    local_bytes=227 << 10, bandwidth=4.8e12, flops=6.7e13, launch_ns=2500.0, task_kind=LoopKind.BLOCK,
    native=ELEMENTWISE & scalar.NATIVE, warp=32, shuffles=True, bounds=Bounds(threads=1024, parameters=480),
)  # fmt: skip
FEW_CORES = replace(INFO, name="manual:2", cores=16)
DEVICES = {"avx2": INFO, "avx512": WIDE, "16 cores": FEW_CORES, "gpu": GPU}

Graph = Callable[[], Sequence[Tensor]]


def parameters(module: nn.Module) -> nn.Module:
    """The module with described tensors for its parameters."""
    for owner in module.modules():
        for name, p in owner.named_parameters(recurse=False):
            setattr(owner, name, nn.Parameter(leaf(*p.shape)))
    return module


def step(module: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """A forward and backward pass: the loss and all gradients."""
    module = parameters(module)
    found = module(*inputs)
    first = found[0] if isinstance(found, tuple) else found
    loss = first.square().mean()
    return [loss, *weft.autograd.grad(loss, [p for p in module.parameters() if p.requires_grad])]


def gradients(build: Callable[..., Tensor], *shapes: tuple[int, ...]) -> list[Tensor]:
    """The gradients of the sum of squares of what is built."""
    given = [leaf(*s).requires_grad_() for s in shapes]
    return list(weft.autograd.grad(build(*given).square().sum(), given))


def network() -> nn.Module:
    """Convolutions, normalization, pooling and a linear head."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 4, 10),
    )  # fmt: skip


def half(*shape: int) -> Tensor:
    """A float16 tensor of which only shape and place are known."""
    return wrap(Value(buffer(shape, weft.float16, "cpu:0", None)))


def byte(*shape: int) -> Tensor:
    """An int8 tensor of which only shape and place are known."""
    return wrap(Value(buffer(shape, weft.int8, "cpu:0", None)))


def byte_sums(rows: int, columns: int, depth: int, block: int) -> Tensor:
    """Products of bytes summed by blocks as integers, and the blocks' sums with a scale each."""
    x, w = byte(rows, 1, depth // block, block).int(), byte(columns, depth // block, block).int()
    sums = (x * w).sum(-1, dtype=weft.int32).float()
    return (sums * leaf(rows, 1, depth // block) * leaf(columns, depth // block)).sum(-1)


def index(*shape: int) -> Tensor:
    """An int64 tensor of which only shape and place are known."""
    return wrap(Value(buffer(shape, weft.int64, "cpu:0", None)))


GRAPHS: dict[str, Graph] = {
    **{name: (lambda f=f: [f()]) for name, f in KERNELS.items()},
    "matmul 67x129x31": lambda: [leaf(67, 129) @ leaf(129, 31)],
    "batched matmul": lambda: [leaf(8, 256, 64) @ leaf(8, 64, 256)],
    "matmul, transposed": lambda: [leaf(512, 256).T @ leaf(512, 128)],
    "matmul with a gelu": lambda: [F.gelu(leaf(256, 512) @ leaf(512, 512) + leaf(512))],
    "a deep product": lambda: [leaf(16, 65536) @ leaf(65536, 16)],
    "dot": lambda: [leaf(1 << 20) @ leaf(1 << 20)],
    "outer": lambda: [weft.outer(leaf(1024), leaf(1024))],
    "variance": lambda: [leaf(1024, 1024).var(-1)],
    "running sums": lambda: [leaf(256, 256).cumsum(-1), leaf(256, 256).cumsum(0)],
    "log_softmax 37": lambda: [leaf(1000, 37).log_softmax(-1)],
    "argmax": lambda: [leaf(512, 1000).argmax(-1)],
    "sort": lambda: list(leaf(64, 512).sort(-1)),
    "top k": lambda: list(leaf(32, 1000).topk(10)),
    "transposes": lambda: [
        leaf(512, 768).T.contiguous(),
        leaf(8, 16, 32, 4).permute(3, 1, 0, 2).contiguous(),
    ],
    "concatenation": lambda: [weft.cat([leaf(64, 64), leaf(64, 32)], 1) * 2],
    "depthwise conv": lambda: [F.conv2d(leaf(1, 64, 56, 56), leaf(64, 1, 3, 3), padding=1, groups=64)],
    "strided conv": lambda: [F.conv2d(leaf(8, 3, 224, 224), leaf(64, 3, 7, 7), leaf(64), 2, 3)],
    "transposed conv": lambda: [
        F.conv_transpose2d(leaf(2, 32, 16, 16), leaf(32, 16, 4, 4), stride=2, padding=1)
    ],
    "conv1d": lambda: [F.conv1d(leaf(4, 16, 1000), leaf(32, 16, 5))],
    "pools": lambda: [F.max_pool2d(leaf(8, 64, 56, 56), 3, 2, 1), F.avg_pool2d(leaf(8, 64, 56, 56), 2)],
    "embedding": lambda: [F.embedding(weft.arange(128).reshape(8, 16), leaf(1000, 64))],
    "float16, chosen and computed": lambda: [
        weft.where(half(64, 48) > 0, half(64, 48), 1.5),
        weft.where(half(64, 48) > 0, half(64, 48), 0.1).T.abs(),
        half(64, 48) * half(64, 1) + 1,
        half(64, 48).float().sum(0).half(),
    ],
    "float16 products": lambda: [F.gelu(half(64, 48) @ half(48, 96) + half(96))],
    "sums of bytes": lambda: [byte_sums(1, 256, 512, 32), byte_sums(48, 256, 512, 32)],
    "masked products": lambda: [
        leaf(64, 64).masked_fill(weft.ones(64, 64).triu(1).bool(), -weft.inf).softmax(-1) @ leaf(64, 32),
        leaf(64, 64).tril() @ leaf(64, 32),
        F.pad(leaf(30, 64), (0, 0, 1, 1)) @ leaf(64, 32),
    ],
    "moved by index": lambda: [
        leaf(8, 12).roll((3, 1), (0, 1)),
        leaf(8, 12).flip(1),
        leaf(8, 12).unfold(1, 4, 2),
        leaf(8, 12).repeat(2, 3),
        leaf(8, 12).repeat_interleave(3, 1),
        F.pad(leaf(1, 8, 12), (2, 3), mode="reflect"),
        F.pixel_shuffle(leaf(2, 16, 5, 5), 2),
        weft.stack([leaf(4, 6), leaf(4, 6)], -1).flatten(),
        leaf(9, 9).diagonal() * 2,
    ],
    "taken by index": lambda: [
        leaf(64, 32)[index(16)],
        leaf(64, 32).gather(0, index(5, 32)),
        leaf(64, 32)[index(7), index(7)],
        leaf(64, 32).index_add(0, index(16), leaf(16, 32)),
        leaf(64, 32).scatter(1, index(64, 3), leaf(64, 3)),
        F.one_hot(index(10), 64),
        weft.arange(100) // 7 % 5,
    ],
    "integers": lambda: [
        leaf(40, 30).to(weft.int8).sum(1),
        leaf(40, 30).long() // 3 % 7,
        (leaf(40, 30) > 0).any(0),
        leaf(40, 30).round().to(weft.uint8),
        leaf(40, 30).int().cumsum(1),
        leaf(40, 30).int() << 2,
    ],
    "a loop with gradients": lambda: gradients(
        lambda w, x: weft.scan(lambda c, r: ((c @ w + r).tanh(), c.sum()), weft.zeros(4, 16), x)[1],
        (16, 16),
        (6, 4, 16),
    ),
    "bilinear, adaptive": lambda: [
        F.interpolate(leaf(1, 3, 9, 9), size=(20, 14), mode="bilinear"),
        F.adaptive_avg_pool2d(leaf(2, 4, 9, 7), (4, 3)),
    ],
    "cross entropy with gradients": lambda: gradients(
        lambda x: F.cross_entropy(x, index(64), label_smoothing=0.1), (64, 100)
    ),
    "attention with gradients": lambda: gradients(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *[(2, 4, 256, 64)] * 3
    ),
    "conv with gradients": lambda: gradients(
        lambda x, w: F.conv2d(x, w, padding=1), (8, 64, 28, 28), (64, 64, 3, 3)
    ),
    "depthwise conv with gradients": lambda: gradients(
        lambda x, w: F.conv2d(x, w, padding=1, groups=64), (8, 64, 28, 28), (64, 1, 3, 3)
    ),
    "layer norm with gradients": lambda: gradients(
        lambda x, w, b: F.layer_norm(x, (1024,), w, b), (512, 1024), (1024,), (1024,)
    ),
    "group norm with gradients": lambda: gradients(
        lambda x, w, b: F.group_norm(x, 8, w, b), (4, 64, 28, 28), (64,), (64,)
    ),
    "step: a small network": lambda: step(network(), leaf(64, 1, 8, 8)),
    "step: a transformer layer": lambda: step(
        nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True), leaf(8, 64, 128)
    ),
    "step: an LSTM": lambda: step(nn.LSTM(64, 128, batch_first=True), leaf(4, 16, 64)),
}
"""Name -> tensors that are computed together."""


TESTS = Path(__file__).parents[1] / "tests" / "scheduler"


def algorithms(graph: Graph, info: DeviceInfo) -> list[Algorithm]:
    """The algorithms of a graph's kernels, each once."""
    specs = kernels(kernelize_all([t.value.node for t in graph()], info.bounds.parameters))
    return list(dict.fromkeys(g.algorithm for g in generalize([s.algorithm for s in specs])))


def loops(graph: Graph, info: DeviceInfo) -> list[str]:
    """The text of each kernel's loops."""
    return [show_program(lowered(a, info)) for a in algorithms(graph, info)]


def chosen(name: str) -> str:
    """What the rules choose for the kernels of a graph, on each device that they choose something else for.

    Loops of each nest, where it is computed, and the size and place of what it keeps.
    """
    found: dict[str, list[str]] = {}
    for device, info in DEVICES.items():
        made = [schedule(a, info) for a in algorithms(GRAPHS[name], info)]
        text = "\n".join(f"  {k.algorithm.name}\n{show_nests(k, binds=False)}" for k in made)
        found.setdefault(text, []).append(device)
    return "\n".join(f"{name}, {', '.join(devices)}\n{text}" for text, devices in found.items())


def fused(name: str) -> str:
    """The kernels that a graph becomes, in order, for a device without bounds that matter here."""
    return f"{name}\n" + "\n".join(show_algorithm(a) for a in algorithms(GRAPHS[name], INFO))


GOLDEN: dict[Path, Callable[[str], str]] = {
    TESTS / "kernelize" / "fused.txt": fused,
    TESTS / "optimize" / "chosen.txt": chosen,
}
"""File -> what it has of each graph, as it was when it was last looked at; an empty line between graphs."""


def main() -> None:
    """Print the digests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="graphs whose names contain this")
    parser.add_argument("--devices", nargs="*", default=list(DEVICES), choices=list(DEVICES))
    parser.add_argument("--golden", action="store_true", help="write the files that tests compare anew")
    parser.add_argument("--write", type=Path, help="a file for the text of all loops")
    asked = parser.parse_args()
    if asked.golden:
        for file, text in GOLDEN.items():
            file.write_text("\n\n".join(map(text, GRAPHS)) + "\n", encoding="utf-8")
        return
    whole, texts = hashlib.sha256(), list[str]()
    for name, graph in GRAPHS.items():
        if asked.only not in name:
            continue
        for device in asked.devices:
            found = loops(graph, DEVICES[device])
            text = "\n".join(found)
            whole.update(text.encode())
            texts.append(f"# {name}, {device}\n{text}\n")
            digest = hashlib.sha256(text.encode()).hexdigest()[:12]
            sys.stdout.write(f"{name:32} {device:8} {len(found):4} kernels  {digest}\n")
    sys.stdout.write(f"all: {whole.hexdigest()[:16]}\n")
    if asked.write:
        asked.write.write_text("\n".join(texts))


if __name__ == "__main__":
    main()
