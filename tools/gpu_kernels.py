"""What the GPU benchmark's kernels ask of a multiprocessor, without a GPU: a static model, no measurement.

python tools/gpu_kernels.py [--arch sm_90a] [--rows matmul,softmax] [--instructions] [--ptx DIR]

Every kernel of `benchmarks/gpu.py` is compiled as for an H200. The tests' PTX executor runs a block of it and counts:

    instr     instructions of all warps for one block (moves aside), and for each product or fma of a matrix unit
    banks     wavefronts of shared memory over the least that its accesses could take
    sectors   sectors of global memory over the least
    barriers  of a block
    regs, at once   registers of a thread, and blocks that find room on a multiprocessor (NVIDIA's assembler)

and the model takes for each kernel the largest of: all blocks' bytes that must come from memory at 4.8 TB/s, sectors
at the second-level cache's 7 TB/s, wavefronts at one per cycle and multiprocessor, instructions at four, products at
989 TFLOP/s (62 % of it for `mma.sync`, of which nobody got more), and a chain of 600 ns for every time that a block
waits for memory before it goes on. Nothing overlaps perfectly: times are lower bounds, and what they are good for is
which bound is next. `--instructions` lists the accesses that take more than they must.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from weft import Tensor
from weft.autograd.value import Value
from weft.backends.cuda import warpgroups
from weft.backends.cuda.compile import compile_programs, target
from weft.backends.cuda.matrix import units
from weft.backends.launches import Part
from weft.backends.llvm import scalar
from weft.backends.protocol import Bounds, DeviceInfo
from weft.core.args.handle import wrap
from weft.ir.dtypes import DType, bfloat16, float16, float32, int64
from weft.ir.graph import buffer
from weft.ir.index import high
from weft.ir.loops import LoopKind, Program
from weft.ir.ops import ELEMENTWISE
from weft.nn import functional as F
from weft.scheduler.kernelize.kernels import kernelize
from weft.scheduler.lowering import lowered

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.backends.cuda.assembler import Resources, assemble, resources
from tests.backends.cuda.ptx.machine import launch
from tests.backends.cuda.ptx.profile import Profile
from tests.backends.cuda.ptx.text import Kernel, Module, parse
from tests.backends.cuda.sass import Flight, flights

H200 = DeviceInfo(
    name="cuda:0", kind="cuda", description="", cores=132, vector_bytes=16, vector_registers=255,
    l1_bytes=228 << 10, l2_bytes=50 << 20, l3_bytes=0, memory_bytes=141 << 30, local_bytes=227 << 10,
    bandwidth=4.8e12, flops=6.7e13, launch_ns=2500.0, task_kind=LoopKind.BLOCK, native=ELEMENTWISE & scalar.NATIVE,
    warp=32, shuffles=True, bounds=Bounds(threads=1024, parameters=480),
)  # fmt: skip

CLOCK, MEMORY, CACHE, MATRIX, WARP_SHARE, LATENCY, LAUNCH = 1.755e9, 4.8e12, 7e12, 989e12, 0.62, 6e-7, 2e-6
REGISTERS, THREADS, SHARED = 1 << 16, 2048, 228 << 10
"""Of a multiprocessor."""

SAMPLES = 1
"""Blocks that are run of a kernel."""


def leaf(*shape: int, dtype: DType = float32) -> Tensor:
    """A tensor of which only shape and place are known."""
    return wrap(Value(buffer(shape, dtype, "cpu:0", None)))


def product(n: int, dtype: DType) -> list[Tensor]:
    """A square product."""
    return [leaf(n, n, dtype=dtype) @ leaf(n, n, dtype=dtype)]


def chain(n: int) -> list[Tensor]:
    """Elementwise work on two inputs."""
    x, y = leaf(n), leaf(n)
    return [((x * y + 1).relu() * 0.5 - y).abs().sqrt()]


def attention(n: int, backward: bool = False) -> list[Tensor]:
    """Causal attention, or its gradients."""
    q, k, v = (leaf(4, 16, n, 64, dtype=bfloat16) for _ in "qkv")
    if not backward:
        return [F.scaled_dot_product_attention(q, k, v, is_causal=True)]
    for x in (q, k, v):
        x.requires_grad_()
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    y.backward(leaf(4, 16, n, 64, dtype=bfloat16))
    return [x.grad for x in (q, k, v) if x.grad is not None]


def mlp_step(n: int) -> list[Tensor]:
    """A training step of three layers."""
    sizes = (784, n, n, 10)
    w = [leaf(b, a).requires_grad_() for a, b in pairwise(sizes)]
    bias = [leaf(b).requires_grad_() for b in sizes[1:]]
    x = leaf(256, 784)
    for k in range(3):
        x = F.linear(x, w[k], bias[k])
        x = x.relu() if k < 2 else x
    loss = F.cross_entropy(x, leaf(256, dtype=int64))
    loss.backward()
    return [loss, *(p.detach() - 1e-3 * p.grad for p in (*w, *bias) if p.grad is not None)]


ROWS: dict[str, tuple[Callable[[], list[Tensor]], int, float]] = {
    "matmul 8192 bf16": (lambda: product(8192, bfloat16), 1, 2 * 8192.0**3),
    "matmul 8192 f16": (lambda: product(8192, float16), 1, 2 * 8192.0**3),
    "matmul 8192 tf32": (lambda: product(8192, float32), 1, 2 * 8192.0**3),
    "matmul 8192 f32": (lambda: product(8192, float32), 1, 2 * 8192.0**3),
    "chain 256M": (lambda: chain(1 << 28), 1, 0.0),
    "sum 256M": (lambda: [leaf(1 << 28).sum()], 1, 0.0),
    "softmax 16384": (lambda: [F.softmax(leaf(16384, 16384), -1)], 1, 0.0),
    "softmax 4096": (lambda: [F.softmax(leaf(4096, 4096), -1)], 1, 0.0),
    "layer norm 16384": (
        lambda: [F.layer_norm(leaf(16384, 16384), (16384,), leaf(16384), leaf(16384))], 1, 0.0,
    ),
    "attention bf16": (lambda: attention(4096), 32, 4 * 64 * 4096.0**2 * 64 / 2),
    "attention bf16 backward": (lambda: attention(4096, True), 32, 10 * 64 * 4096.0**2 * 64 / 2),
    "MLP step 512": (lambda: mlp_step(512), 1, 6 * 256 * (784 * 512 + 512 * 512 + 5120.0)),
    "convolution 64x56": (
        lambda: [F.conv2d(leaf(32, 64, 56, 56), leaf(64, 64, 3, 3), padding=1)], 1, 2 * 32 * 56 * 56 * 64 * 576.0,
    ),
}  # fmt: skip
"""By name: the results, blocks that differ in work (causal rows: those in their middle are run), operations."""


@dataclass(frozen=True, slots=True)
class Counted:
    """One launch: what a block does on average, and what the assembler gave it."""

    name: str
    blocks: int
    part: Part
    profile: Profile
    sampled: int
    resources: Resources
    kernel: Kernel
    nbytes: int
    """Of the parameters."""
    flight: Flight

    @property
    def at_once(self) -> int:
        r = self.resources
        warps = -(-self.part.threads // 32)
        return max(1, min(
            REGISTERS // (warps * -(-r.registers * 32 // 256) * 256),
            THREADS // self.part.threads,
            SHARED // (r.shared + self.part.local_bytes + 1024), 32,
        ))  # fmt: skip

    def bounds(self) -> dict[str, float]:
        """Seconds by what would limit the launch."""
        p, share = self.profile, self.blocks / self.sampled
        kinds = p.instructions(self.kernel.blocks)
        each = 1 / (132 * CLOCK)
        waves = max(1.0, self.blocks / (132 * self.at_once))
        tail = -(-self.blocks // 132) / (self.blocks / 132) if self.blocks < 132 * self.at_once * 4 else 1.0
        issued = sum(n for k, n in kinds.items() if k != "free")
        matrix = self.multiplied() * share
        group = any(i.op[0] == "wgmma" for b in self.kernel.blocks for i in b)
        return {
            "memory": self.nbytes / MEMORY,
            "cache": (p.reads.taken + p.writes.taken) * 32 * share / CACHE,
            "shared": p.shared.taken * share * each * tail,
            "issue": (issued / 4 + kinds["special"] * 2) * share * each * tail,
            "matrix": matrix / MATRIX / (1 if group else WARP_SHARE) * tail,
            "waiting": self.waits() / self.sampled * LATENCY * -(-waves // 1),
        }

    def multiplied(self) -> float:
        """Operations of matrix units in the sampled blocks."""
        total = 0.0
        for (b, k), n in self.profile.executed.items():
            i = self.kernel.blocks[b][k]
            if i.op[0] == "mma":
                rows, columns, terms = (
                    int(x) for x in i.op[3][1:].replace("n", " ").replace("k", " ").split()
                )
                total += 2.0 * rows * columns * terms * n
            elif i.op[:2] == ("wgmma", "mma_async"):
                rows, columns, terms = (
                    int(x) for x in i.op[4][1:].replace("n", " ").replace("k", " ").split()
                )
                total += 2.0 * rows * columns * terms * n / 4
        return total

    def waits(self) -> float:
        """How often blocks wait for global memory: their loads over those that the machine code has on their way
        together, and waits for copies over the groups that may be on their way. Barriers, and matrix units' waits,
        are none of these."""
        return waits(self.kernel, self.profile, -(-self.part.threads // 32), self.flight)


def waits(kernel: Kernel, profile: Profile, warps: int, flight: Flight) -> float:
    """Round trips to memory of a warp, of `warps` that ran."""
    total = 0.0
    for (b, k), n in profile.executed.items():
        i = kernel.blocks[b][k]
        if i.op[0] == "ld" and "global" in i.op:
            total += n / flight.together
        elif i.op[:3] == ("cp", "async", "wait_group"):
            total += n / (int(i.operands[0]) + 1)
        elif i.op[:3] == ("cp", "async", "wait_all"):
            total += n
    return total / warps


def info(name: str, arch: str) -> DeviceInfo:
    """The described GPU with the units that the row may use."""
    capability = (9, 0) if arch.startswith("sm_90") else (8, 0)
    groups = warpgroups.units(capability) if arch == "sm_90a" else ()
    return replace(H200, matrix_units=(*groups, *units(capability, "tf32" in name)))


def count(name: str, arch: str, ptx_to: Path | None) -> Iterator[Counted]:
    """Every launch of a row."""
    make, period, _ = ROWS[name]
    device = info(name, arch)
    specs = kernelize([t.value.node for t in make()])
    for number, spec in enumerate(specs):
        program = replace(lowered(spec.algorithm, device), name=f"k{number}")
        chip = replace(target((9, 0) if arch.startswith("sm_90") else (8, 0)), cpu=arch)
        ptx, (entry,) = compile_programs([program], chip, device.local_bytes, arch == "sm_90a")
        if ptx_to is not None:
            (ptx_to / f"{name.replace(' ', '_')}_{number}_{arch}.ptx").write_text(ptx)
        module, found, flying = parse(ptx), resources(ptx, arch), flights(assemble(ptx, arch))
        for part in entry.parts:
            yield _counted(spec.algorithm.name, program, part, module.kernels[part.name], found, module, period,
                           entry.scratch, flying[part.name])  # fmt: skip


def _counted(
    name: str, program: Program, part: Part, kernel: Kernel, found: dict[str, Resources], module: Module, period: int,
    scratch: Sequence[int], flight: Flight,
) -> Counted:  # fmt: skip
    assert isinstance(part.blocks, int)
    sizes = [high(b.size) * b.dtype.itemsize for b in program.params] + list(scratch)
    arrays = [np.zeros(max(256, sizes[k]) + 256, np.uint8) for k in part.args]
    starts = [-(-a.ctypes.data // 256) * 256 for a in arrays]
    memory = {s: a[s - a.ctypes.data :] for s, a in zip(starts, arrays, strict=True)}
    profile = Profile()
    middle = part.blocks // 2 + (period - 1) // 2
    only = sorted({min(middle, part.blocks - 1), min(middle + 1, part.blocks - 1)})[:SAMPLES]
    launch(
        module, part.name, part.blocks, part.threads, part.local_bytes, starts, memory, False, profile, only
    )
    nbytes = sum(sizes[k] for k in part.args)
    return Counted(name, part.blocks, part, profile, len(only), found[part.name], kernel, nbytes, flight)


HEAD = (
    "kernel", "blocks", "threads", "regs", "spilled", "at once", "instr", "per product", "index", "banks", "sectors",
    "barriers", "us at least", "bound", "next",
)  # fmt: skip


def line(c: Counted, flops: float) -> str:
    """One row of the table."""
    p, r = c.profile, c.resources
    kinds = p.instructions(c.kernel.blocks)
    n = c.sampled
    total = sum(v for k, v in kinds.items() if k != "free")
    units_ = kinds["mma"] or kinds["fma"]
    order = sorted(c.bounds().items(), key=lambda x: -x[1])
    moved, least = p.reads.taken + p.writes.taken, p.reads.least + p.writes.least
    cells = [
        c.name[:28], c.blocks, c.part.threads, r.registers, r.spilled + r.stack, c.at_once, total // n,
        f"{total / units_:.2f}" if units_ else "", f"{(kinds['index'] + kinds['branch']) / max(1, total):.2f}",
        f"{p.shared.taken / p.shared.least:.2f}" if p.shared.least else "",
        f"{moved / max(1, least):.2f}", kinds["barrier"] // n // -(-c.part.threads // 32), f"{order[0][1] * 1e6:.1f}",
        order[0][0], f"{order[1][0]} {order[1][1] / max(order[0][1], 1e-12):.2f}",
    ]  # fmt: skip
    return f"| {' | '.join(str(x) for x in cells)} |"


def write(text: str) -> None:
    """A line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def details(c: Counted) -> Iterator[str]:
    """Instructions by kind, and accesses that take more than they must."""
    kinds = c.profile.instructions(c.kernel.blocks)
    yield "    " + ", ".join(f"{k} {v // c.sampled}" for k, v in kinds.most_common())
    yield "    " + ", ".join(f"{k} {v * 1e6:.1f} us" for k, v in c.bounds().items())
    for (b, k, _), t in sorted(c.profile.by_instruction.items(), key=lambda x: x[1].least - x[1].taken)[:6]:
        if t.taken > t.least:
            yield f"    {t.taken / t.requests:.1f} for {t.least / t.requests:.1f}: {c.kernel.blocks[b][k].text[:100]}"


def main() -> None:
    """The command."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--arch", default="sm_80,sm_90a")
    p.add_argument("--rows", default="", help="parts of names, comma-separated")
    p.add_argument("--instructions", action="store_true")
    p.add_argument("--ptx", type=Path, help="a folder for the kernels' PTX")
    asked = p.parse_args()
    wanted = [w for w in asked.rows.split(",") if w]
    for arch in asked.arch.split(","):
        write(f"\n{arch} (a static model of an H200: lower bounds, no measurement)\n")
        write(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
        for name, (_, _, flops) in ROWS.items():
            if wanted and not any(w in name for w in wanted):
                continue
            taken, launches = 0.0, 0
            lines: list[str] = []
            for c in count(name, arch, asked.ptx):
                lines.append(line(c, flops))
                lines += details(c) if asked.instructions else ()
                taken += max(*c.bounds().values(), LAUNCH)
                launches += 1
            rate = f", {flops / taken / 1e12:.0f} TFLOP/s" if flops else ""
            write(f"| **{name}**: {launches} launches, {taken * 1e6:.0f} us{rate} |{' |' * (len(HEAD) - 1)}")
            write("\n".join(lines))


if __name__ == "__main__":
    main()
