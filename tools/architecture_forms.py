"""Writes the printed forms into manuals/architecture.md: python tools/architecture_forms.py [--check]

A block between ``` fences that follows a line `<!-- form: NAME -->` is replaced by the form of that name, as the code
prints it now. All forms are made for one described device, so that they are the same on every machine; nothing runs.
With --check nothing is written, and the exit code says whether the manual is up to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft import Tensor
from weft.autograd.value import Value
from weft.backends.cpu.compile import assembly
from weft.backends.cpu.device import NATIVE
from weft.backends.cpu.llvm import Target, version
from weft.backends.cpu.render import render_module
from weft.backends.limits import Limits, described
from weft.backends.protocol import Code, Commands, CopyBytes, DeviceInfo, Memory
from weft.core.handle import wrap
from weft.ir.dtypes import float32
from weft.ir.graph import buffer
from weft.ir.graph_text import show_graph
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import Kernel, initial
from weft.ir.kernel.text import show_algorithm, show_kernel
from weft.ir.loops import Program
from weft.ir.loops_text import show_program
from weft.scheduler.build import Job, build
from weft.scheduler.kernelize import kernelize
from weft.scheduler.kernelize.text import show_specs
from weft.scheduler.optimize.rules import schedule
from weft.scheduler.plan import Plan
from weft.scheduler.programs import lowered
from weft.scheduler.signature import signature

MANUAL = Path(__file__).parents[1] / "manuals" / "architecture.md"

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

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[Code], bytes]:
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


def layer() -> Tensor:
    """relu(x @ w + b): a product with something fused behind it."""
    return (leaf(8, 16) @ leaf(16, 16) + leaf(16)).relu()


def softmax() -> Tensor:
    """Two reductions, and elementwise work that reads both."""
    return leaf(4, 64).softmax(-1)


def tail() -> Tensor:
    """Elementwise work whose size no vector divides."""
    return leaf(100) * 2.0 + 1.0


def attention() -> Tensor:
    """Two products joined by a softmax."""
    q, k, v = leaf(64, 16), leaf(512, 16), leaf(512, 16)
    return (q @ k.T).softmax(-1) @ v


def network() -> Tensor:
    """Several kernels with intermediate tensors between them."""
    x, w, b = leaf(64, 128), leaf(128, 128), leaf(128)
    for _ in range(3):
        x = (x @ w + b).relu()
    return x @ leaf(128, 10)


def algorithm(t: Tensor) -> Algorithm:
    """The algorithm of the only kernel that computes `t`."""
    (spec,) = kernelize([t.value.node])
    return spec.algorithm


def schedule_of(kernel: Kernel) -> str:
    """A kernel's text from its nests on: the algorithm stands elsewhere."""
    text = show_kernel(kernel)
    return text[text.index("schedule\n") :]


def loop_with(text: str, label: str, instruction: str) -> list[str]:
    """The lines from the last label before the first `instruction` to the jump behind it."""
    lines = text.splitlines()
    found = next(k for k, line in enumerate(lines) if re.match(instruction, line))
    first = max(k for k in range(found) if re.match(label, lines[k]))
    last = next(k for k in range(found, len(lines)) if re.match(r"\s+(br|j\w+)\s", lines[k]))
    return lines[first : last + 1]


def llvm_loop() -> str:
    """The innermost loop of the product in LLVM IR."""
    text = render_module([lowered(algorithm(layer()), INFO)], TARGET)
    return "\n".join(loop_with(text, r"\w+:$", r".*= call .*@llvm\.fma"))


def machine_loop() -> str:
    """The same loop as machine code; its first line says which LLVM made it."""
    text = assembly([lowered(algorithm(layer()), INFO)], TARGET)
    lines = [line.expandtabs(8).rstrip() for line in loop_with(text, r"\.L\w+:", r"\s+vfmadd")]
    return "\n".join([f"# {version()}", *(line for line in lines if not line.strip().startswith("#"))])


def plan_of(t: Tensor) -> Plan:
    """The plan that computes `t` on the described device."""
    sig = signature([t.value.node])
    plan, _ = build(Job((t.value.node,), sig.leaves, sig.variables, {}), Described())
    return plan


def show_plan(plan: Plan) -> str:
    """Steps, and where in the workspace the tensors between them live."""
    c = plan.commands
    lines = [f"{c.externals} tensors from outside: slots 0 to {c.externals - 1}, the result last", "steps"]
    for step, info in zip(c.steps, plan.steps, strict=True):
        match step:
            case CopyBytes():
                lines.append(f"  copy slot {step.source} to slot {step.target}, {step.nbytes} bytes")
            case _:
                slots = ", ".join(map(str, step.slots))
                lines.append(f"  launch program {step.program} ({info.name}) on slots {slots}")
    lines.append(f"workspace of {c.workspace_bytes} bytes")
    lines += [f"  slot {c.externals + k} at byte {at}" for k, at in enumerate(c.offsets)]
    return "\n".join(lines)


FORMS: dict[str, Callable[[], str]] = {
    "graph": lambda: show_graph([layer().value.node]),
    "kernels": lambda: show_specs(kernelize([layer().value.node])),
    "initial": lambda: schedule_of(initial(algorithm(layer()))),
    "initial loops": lambda: show_program(lower(initial(algorithm(layer())))),
    "schedule": lambda: schedule_of(schedule(algorithm(layer()), INFO)),
    "loops": lambda: show_program(lower(schedule(algorithm(layer()), INFO))),
    "loops after passes": lambda: show_program(lowered(algorithm(layer()), INFO)),
    "llvm": llvm_loop,
    "machine": machine_loop,
    "softmax graph": lambda: show_graph([softmax().value.node]),
    "softmax schedule": lambda: show_kernel(schedule(algorithm(softmax()), INFO)),
    "softmax loops": lambda: show_program(lower(schedule(algorithm(softmax()), INFO))),
    "softmax loops after passes": lambda: show_program(lowered(algorithm(softmax()), INFO)),
    "tail loops": lambda: show_program(lower(schedule(algorithm(tail()), INFO))),
    "tail loops after passes": lambda: show_program(lowered(algorithm(tail()), INFO)),
    "attention algorithm": lambda: show_algorithm(algorithm(attention())),
    "attention loops": lambda: show_program(lower(schedule(algorithm(attention()), INFO))),
    "network kernels": lambda: show_specs(kernelize([network().value.node])),
    "network plan": lambda: show_plan(plan_of(network())),
}
"""Name -> what the code prints."""

BLOCK = re.compile(r"(<!-- form: ([^\n]+) -->\n```\w*\n)(.*?)(```\n)", re.DOTALL)


def committed(manual: str) -> dict[str, str]:
    """The forms that stand in the manual."""
    return {m[2]: m[3].rstrip("\n") for m in BLOCK.finditer(manual)}


def filled(manual: str) -> str:
    """The manual with every form as it is now; KeyError for a name that is not in `FORMS`."""
    return BLOCK.sub(lambda m: f"{m[1]}{FORMS[m[2]]()}\n{m[4]}", manual)


def main() -> int:
    """Rewrites the manual, or checks it."""
    before = MANUAL.read_text(encoding="utf-8")
    after = filled(before)
    if "--check" not in sys.argv[1:]:
        MANUAL.write_text(after, encoding="utf-8")
        return 0
    return int(before != after)


if __name__ == "__main__":
    sys.exit(main())
