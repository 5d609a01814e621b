"""The text of a PTX module -> kernels: their variables, registers and basic blocks of instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


class PtxError(Exception):
    """The module is not understood, or did what no kernel may do."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """`@[!]guard op operands;` with the operands as written; `targets` of a branch is a block's number."""

    op: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str | None
    negated: bool
    text: str


@dataclass(frozen=True, slots=True)
class Variable:
    """`size` bytes (None: given at launch) in a state space, with what they are set to first."""

    name: str
    size: int | None
    align: int
    data: bytes = b""


@dataclass(slots=True)
class Kernel:
    """One entry: instructions in blocks, each entered at its start only; the last of a block may branch."""

    name: str
    params: list[str]
    threads: int
    registers: dict[str, int] = field(default_factory=dict)
    """Bits of each register, 1 for a predicate."""
    shared: list[Variable] = field(default_factory=list)
    local: list[Variable] = field(default_factory=list)
    blocks: list[list[Instruction]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Module:
    target: str
    kernels: dict[str, Kernel]
    shared: list[Variable]
    constants: list[Variable]


_VARIABLE = re.compile(
    r"(?:\.(?:extern|visible|weak)\s+)?\.(shared|local|global|const)\s+(?:\.attribute\S+\s+)?\.align\s+(\d+)\s+"
    r"\.[a-z]+(\d+)\s+([\w$]+)(?:\[(\d*)\]\s*(?:=\s*\{([^}]*)\})?)?"
)
"""The space, alignment, bits of an element, name, how many ("": given at launch; None: a single one), bytes."""
_REGISTERS = re.compile(r"\.reg\s+\.(pred|b16|b32|b64|b128|f32|f64)\s+(.+)")
BITS = {"pred": 1, "b16": 16, "b32": 32, "b64": 64, "f32": 32, "f64": 64, "b128": 128}

ENDS = ("bra", "ret", "exit", "bar", "barrier")
"""Instructions after which other threads may go first."""

WAITS = ("shfl",)
"""Instructions before which threads wait for the others of their warp."""


def parse(ptx: str) -> Module:
    """The module. PtxError for what this reader does not know."""
    ptx = re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", ptx, flags=re.S))
    found = re.search(r"\.target\s+(\w+)", ptx)
    module = Module(found.group(1) if found else "", {}, [], [])
    at = 0
    entry = re.compile(r"\.visible\s+\.entry\s+([\w$]+)\(([^)]*)\)([^{]*)\{")
    for m in entry.finditer(ptx):
        _outside(module, ptx[at : m.start()])
        end = _closing(ptx, m.end())
        params = re.findall(r"([\w$]+)\s*(?:,|$)", re.sub(r"\s+", " ", m.group(2).strip()))
        threads = re.search(r"\.(?:maxntid|reqntid)\s+(\d+)", m.group(3))
        kernel = Kernel(m.group(1), params, int(threads.group(1)) if threads else 1024)
        _body(kernel, ptx[m.end() : end])
        module.kernels[kernel.name] = kernel
        at = end + 1
    _outside(module, ptx[at:])
    return module


def _closing(text: str, at: int) -> int:
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at - 1


def _outside(module: Module, text: str) -> None:
    for m in _VARIABLE.finditer(text):
        v = _variable(m)
        (module.shared if m.group(1) == "shared" else module.constants).append(v)


def _variable(m: re.Match[str]) -> Variable:
    count, each = m.group(5), int(m.group(3)) // 8
    if m.group(6) and each != 1:
        raise PtxError(f"values of more than a byte: {m.group()}")
    data = bytes(int(x, 0) & 255 for x in m.group(6).split(",")) if m.group(6) else b""
    size = None if count == "" else each * int(count or 1)
    return Variable(m.group(4), size, int(m.group(2)), data)


def _body(kernel: Kernel, text: str) -> None:
    kernel.blocks.append([])
    for raw in _statements(text):
        s = " ".join(raw.split())
        while (m := re.match(r"([$\w]+):\s*", s)) is not None:
            if kernel.blocks[-1]:
                kernel.blocks.append([])
            kernel.labels[m.group(1)] = len(kernel.blocks) - 1
            s = s[m.end() :]
        if not s:
            continue
        if (m := _VARIABLE.match(s)) is not None:
            (kernel.shared if m.group(1) == "shared" else kernel.local).append(_variable(m))
        elif (m := _REGISTERS.match(s)) is not None:
            _declare(kernel, BITS[m.group(1)], m.group(2))
        elif s.startswith(".pragma"):
            continue
        elif s.startswith("."):
            raise PtxError(f"unknown directive: {s}")
        else:
            i = _instruction(s)
            if i.op[0] in WAITS and kernel.blocks[-1]:
                kernel.blocks.append([])
            kernel.blocks[-1].append(i)
            if i.op[0] in ENDS:
                kernel.blocks.append([])


def _statements(text: str) -> list[str]:
    """Statements without their semicolons; braces around scopes are dropped, those of operands stay."""
    out: list[str] = []
    now = ""
    depth = 0
    for c in text:
        if c == "{" and not now.split(":")[-1].strip():
            continue  # a scope begins
        if c == "}" and depth == 0:
            continue
        depth += {"{": 1, "}": -1}.get(c, 0)
        if c == ";":
            out.append(now)
            now = ""
        else:
            now += c
    if now.strip():
        raise PtxError(f"unfinished statement: {now.strip()}")
    return out


def _declare(kernel: Kernel, bits: int, names: str) -> None:
    for name in names.split(","):
        name = name.strip()
        m = re.match(r"(%?[\w$]+)<(\d+)>", name)
        if m is None:
            kernel.registers[name] = bits
        else:
            kernel.registers.update({f"{m.group(1)}{k}": bits for k in range(int(m.group(2)))})


def _instruction(s: str) -> Instruction:
    text, guard, negated = s, None, False
    if s.startswith("@"):
        g, s = s[1:].split(None, 1)
        negated = g.startswith("!")
        guard = g.lstrip("!")
    op, _, rest = s.partition(" ")
    return Instruction(tuple(op.split(".")), tuple(_split(rest)), guard, negated, text)


def _split(rest: str) -> list[str]:
    out: list[str] = []
    depth = 0
    now = ""
    for c in rest:
        if c == "," and depth == 0:
            out.append(now.strip())
            now = ""
            continue
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(c, 0)
        now += c
    if now.strip():
        out.append(now.strip())
    return out
