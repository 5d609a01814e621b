"""The shortest way through a compiled function: source text for one trace, where every check is written out.

A call of a small compiled function is bound by the interpreter, so what a trace needs is unrolled: no loops over
arguments, no constructors, no layers. For two arguments the text is

    def call(args):
        now = context()
        if now.grad is not True or now.casts is not casts or now.pinned is not False or now.devices:
            return None
        if len(args) != 2:
            return None
        x0, x1 = args
        if x0.__class__ is not class0 or x1.__class__ is not class1:
            return None
        v0 = x0.value
        s0 = v0.node.storage
        if (s0 is None or s0.device is not device0 or s0.shape != shape0 or s0.dtype is not dtype0
                or v0.needs_grad is not False):
            return None
        ...
        try:
            memory = allocate(64)
            if not direct(s0.memory, s1.memory, memory):
                execute((s0.memory, s1.memory, memory))
        except MemoryError:
            return None
        return result(memory)

None stands for "not as it was at the trace": the caller takes the general way, which also has the messages. Within a
trace, what existed before has a placeholder without storage, so that it goes that way too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

from weft.autograd.context import context
from weft.core.compile.kept import Kept, KeptAt
from weft.core.execute.results import result_maker

if TYPE_CHECKING:
    from weft.backends.protocol import Device, Memory
    from weft.core.execute.modules import Modules
    from weft.core.tensor.tensor import Tensor
    from weft.ir.dtypes import DType
    from weft.scheduler.plan import Plan

DirectCall: TypeAlias = "Callable[[tuple[Any, ...]], Any]"
"""A function of a call's positional arguments: its result, or None where the general way is to be taken."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Tensor number `number` as it was at the trace: an argument, or after those a captured tensor."""

    number: int
    device: Device
    shape: tuple[int, ...]
    dtype: DType
    needs_grad: bool


def direct_call(
    plan: Plan,
    classes: Sequence[type],
    captured: Sequence[Tensor],
    bound: Mapping[int, ref[Any]],
    expected: Sequence[Expected],
    memories: Sequence[int | KeptAt | Memory],
    kept: Kept | None,
    modules: Modules | None,
    records: bool,
    casts: object,
    pinned: bool,
) -> DirectCall | None:
    """The call for a plan whose one result is the function's. `bound` arguments have to be these tensors, and no other
    may be a captured one (see aliases.py). `memories`: what the plan runs on, each the number of the tensor that has
    it, one that is `kept`, or memory that never changes. `modules`: what was read of them. `records`, `casts`,
    `pinned`: the modes. None where sizes vary."""
    if plan.variables or plan.constants or len(plan.outputs) != 1 or plan.outputs[0].replaces is not None:
        return None
    out, device = plan.outputs[0], plan.device
    shape = tuple(n for n in out.shape if isinstance(n, int))
    env: dict[str, Any] = {
        "context": context, "casts": casts, "allocate": device.allocate, "execute": plan.executable.run,
        "direct": getattr(plan.executable, "direct", None), "result": result_maker(device, out.dtype, shape),
    }  # fmt: skip
    lines = [
        "now = context()",
        f"if now.grad is not {records} or now.casts is not casts or now.pinned is not {pinned} or now.devices:",
        "    return None",
        f"if len(args) != {len(classes)}:",
        "    return None",
    ]
    if modules is not None:
        env["as_they_were"] = modules.are_as_they_were
        lines += ["if not as_they_were():", "    return None"]
    env["captured"] = frozenset(map(id, captured))
    for k, cls in enumerate(classes):
        env[f"class{k}"] = cls
        lines += [f"x{k} = args[{k}]", f"if x{k}.__class__ is not class{k}:", "    return None"]
        if k in bound:
            env[f"bound{k}"] = bound[k]
            lines += [f"if bound{k}() is not x{k}:", "    return None"]
        elif captured:
            lines += [f"if id(x{k}) in captured:", "    return None"]
    for k, tensor in enumerate(captured, len(classes)):
        env[f"x{k}"] = tensor
    sources = {} if kept is None else {k: j for j, k in enumerate(kept.tensors)}
    if kept is not None:
        env["kept"] = kept
        refs = "".join(f"r{j}, " for j in sources.values())
        lines += ["there = kept.current", "if there is None:", "    return None"]
        lines += ["k = [v.memory for v in there.values]"]  # before the sources are looked at
        lines += [f"{refs}= there.sources"] if refs else []
    for e in expected:
        k = e.number
        env |= {f"device{k}": e.device, f"shape{k}": e.shape, f"dtype{k}": e.dtype}
        lines += [f"v{k} = x{k}.value", f"s{k} = v{k}.node.storage"]
        if k in sources:  # the storage is the one that it was found to be right for
            lines += [
                f"if s{k} is None or s{k} is not r{sources[k]}() or v{k}.needs_grad is not {e.needs_grad}:",
                "    return None",
            ]
            continue
        lines += [
            f"if (s{k} is None or s{k}.device is not device{k} or s{k}.shape != shape{k}",
            f"        or s{k}.dtype is not dtype{k} or v{k}.needs_grad is not {e.needs_grad}):",
            "    return None",
        ]
    places: list[str] = []
    fed = memories if plan.feed is None else [memories[m] if isinstance(m, int) else m for m in plan.feed]
    for i, m in enumerate(fed):
        if isinstance(m, int):
            places.append(f"s{m}.memory")
        elif isinstance(m, KeptAt):
            places.append(f"k[{m.number}]")
        else:
            env[f"memory{i}"] = m
            places.append(f"memory{i}")
    given = ", ".join([*places, "memory"])
    start = f"if not direct({given}):" if env["direct"] is not None else "if True:"
    if kept is not None:
        lines += ["kept.is_used = True"]
    nbytes = plan.result_bytes()
    lines += [
        "try:", f"    memory = allocate({nbytes})", f"    {start}", f"        execute(({given},))",
        "except MemoryError:", "    return None", "return result(memory)",
    ]  # fmt: skip
    text = "\n    ".join(["def call(args):", *lines])
    exec(compile(text, "<weft.compile: a direct call>", "exec"), env)
    call: DirectCall = env["call"]
    return call
