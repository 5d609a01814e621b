"""A device that is only described, for printed forms that are the same on every machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft import Tensor
from weft.autograd.value import Value
from weft.backends.cpu.compile import assembly
from weft.backends.cpu.render import render_module
from weft.backends.cpu.targets import Target
from weft.backends.llvm.scalar import NATIVE
from weft.backends.protocol import Code, Commands, DeviceInfo, Memory
from weft.backends.roofline import Limits, described
from weft.core.args.handle import wrap
from weft.ir.dtypes import float32
from weft.ir.graph import buffer
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.text import show_kernel
from weft.ir.loops import Program
from weft.scheduler.kernelize.kernels import kernelize

INFO = DeviceInfo(
    name="manual:0", kind="cpu", description="two cores with AVX2", cores=2, vector_bytes=32, vector_registers=16,
    l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=16 << 20, memory_bytes=16 << 30, local_bytes=1 << 20,
    bandwidth=40e9, flops=190e9, launch_ns=20.0, native=NATIVE, host_memory=True,
)  # fmt: skip
TARGET = Target("x86_64-unknown-linux-gnu", "x86-64-v3")


@dataclass(frozen=True, slots=True)
class Text:
    """A program that was rendered, and will not run."""

    source: str


class Unbound:
    """Commands that were not bound to anything."""

    def run(self, memories: Sequence[Memory], variables: Sequence[int] = ()) -> None:
        raise RuntimeError("a described device runs nothing")

    def run_timed(self, memories: Sequence[Memory], variables: Sequence[int] = ()) -> list[int]:
        raise RuntimeError("a described device runs nothing")


class Described:
    """A device that is only its description: it compiles to text and has no memory."""

    info = INFO

    def allocate(self, nbytes: int) -> Memory:
        raise MemoryError("a described device has no memory")

    def set_memory_limit(self, nbytes: int | None) -> None:
        pass

    def write(self, memory: Memory, data: memoryview) -> None:
        raise RuntimeError("a described device has no memory")

    def read(self, memory: Memory, nbytes: int) -> memoryview:
        raise RuntimeError("a described device has no memory")

    def compile(self, programs: Iterable[Program]) -> tuple[Sequence[Code], bytes]:
        return [Text(render_module([p], TARGET)) for p in programs], b""

    def load(self, image: bytes, names: Sequence[str]) -> Sequence[Code]:
        raise ValueError("a described device makes no images")

    def fingerprint(self) -> str:
        return "described"

    def listings(self, program: Program) -> Mapping[str, str]:
        return {"llvm": render_module([program], TARGET), "assembly": assembly([program], TARGET)}

    def limits(self) -> Limits:
        return described(self.info)

    def link(self, codes: Sequence[Code], commands: Commands) -> Unbound:
        return Unbound()

    def synchronize(self) -> None:
        pass


def leaf(*shape: int) -> Tensor:
    """A float32 tensor of which only shape and place are known."""
    return wrap(Value(buffer(shape, float32, "cpu:0", None)))


def algorithm(t: Tensor) -> Algorithm:
    """The algorithm of the only kernel that computes `t`."""
    (spec,) = kernelize([t.value.node])
    return spec.algorithm


def schedule_of(kernel: Kernel) -> str:
    """A kernel's text from its nests on: the algorithm stands elsewhere."""
    text = show_kernel(kernel)
    return text[text.index("schedule\n") :]
