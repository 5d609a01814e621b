"""The printed forms in the manuals: every intermediate form of a few small tensors, and the schedules of larger ones.

    python tools/architecture_forms.py            write them into the pages of manuals/ that have some
    python tools/architecture_forms.py --check    say, by the exit status, whether the manuals show what is printed now

They are made for one described device (two cores, AVX2), so they do not depend on this machine.
"""

from __future__ import annotations

import re
import sys

from described import INFO, TARGET, Described, algorithm, leaf, schedule_of
from forms import MANUALS, Forms, filled

from weft import Tensor
from weft.backends.cpu.compile import assembly
from weft.backends.cpu.llvm import version
from weft.backends.cpu.render import render_module
from weft.backends.protocol import CopyBytes
from weft.ir.calls import expand_calls
from weft.ir.graph_text import show_graph
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import initial
from weft.ir.kernel.text import show_algorithm, show_kernel
from weft.ir.loops_text import show_program
from weft.scheduler.assembly import Job
from weft.scheduler.build import build
from weft.scheduler.kernelize.kernels import kernelize
from weft.scheduler.kernelize.text import show_specs
from weft.scheduler.lowering import lowered
from weft.scheduler.optimize.rules import schedule
from weft.scheduler.plan import Plan
from weft.scheduler.signature import signature


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
    made, _ = build(Job((t.value.node,), sig.leaves, sig.variables, {}), Described())
    return made.plan({})


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


FORMS: Forms = {
    "graph": lambda: show_graph(expand_calls([layer().value.node])),
    "kernels": lambda: show_specs(kernelize([layer().value.node])),
    "initial": lambda: schedule_of(initial(algorithm(layer()))),
    "initial loops": lambda: show_program(lower(initial(algorithm(layer())))),
    "schedule": lambda: schedule_of(schedule(algorithm(layer()), INFO)),
    "loops": lambda: show_program(lower(schedule(algorithm(layer()), INFO))),
    "loops after passes": lambda: show_program(lowered(algorithm(layer()), INFO)),
    "llvm": llvm_loop,
    "machine": machine_loop,
}
"""Name -> what the code prints, in manuals/architecture.md."""

WALKS: Forms = {
    "softmax graph": lambda: show_graph(expand_calls([softmax().value.node])),
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
"""Name -> what the code prints, in manuals/walks.md."""


def main() -> int:
    """Rewrite the pages with printed forms, or check them."""
    import performance_forms

    pages = {"architecture.md": FORMS, "walks.md": WALKS, "performance.md": performance_forms.FORMS}
    stale = 0
    for page, forms in pages.items():
        path = MANUALS / page
        before = path.read_text(encoding="utf-8")
        after = filled(before, forms)
        stale |= before != after
        if "--check" not in sys.argv[1:]:
            path.write_text(after, encoding="utf-8")
    return int(stale and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
