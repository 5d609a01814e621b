"""Functions and modules of LLVM IR as text under construction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import TypeAlias

from weft.lazy_dataclass import dataclass

Lines: TypeAlias = "list[str | Lines]"
"""Instructions in order; a nested list is a place that may still be added to."""


def flatten(lines: Lines) -> Iterator[str]:
    """All instructions in order."""
    stack: list[Iterator[str | Lines]] = [iter(lines)]
    while stack:
        for line in stack[-1]:
            if isinstance(line, str):
                yield line
            else:
                stack.append(iter(line))
                break
        else:
            stack.pop()


@dataclass(slots=True)
class Module:
    """The functions' text, and what several of them share: declarations and global constants by name."""

    declarations: dict[str, str] = field(default_factory=dict[str, str])
    functions: list[str] = field(default_factory=list[str])
    helpers: dict[str, str] = field(default_factory=dict[str, str])
    """Functions that kernels call, by name."""
    half: bool = True
    """True where the target converts f16 by instructions."""
    bfloat: bool = False
    """True where it rounds to bf16 by an instruction that keeps denormals."""
    extrema: bool = False
    """True where it has f32 maxima and minima that keep a NaN, as one instruction."""
    saturating: bool = True
    """True where it converts floats to the nearest integer that there is, NaN to 0, by an instruction."""
    gpu: bool = False
    """True where the target is a GPU: runs of elements state the alignment that they are known to have, which
    its wide accesses need."""
    own_stack: int = 0
    """Up to so many bytes, a LOCAL buffer is a stack slot of its own, which may become registers."""
    zeros: int = 0
    """Bytes of zeros that loads whose guard fails may read."""

    def declare(self, name: str, result: str, params: str, attributes: str = "") -> None:
        """Make the external function `@name` known."""
        if name not in self.declarations:
            self.declarations[name] = f"declare {result} @{name}({params}){attributes}"

    def zero_block(self, size: int) -> str:
        """A pointer to at least `size` zero bytes."""
        self.zeros = max(self.zeros, size, 64)
        return "@weft.zeros"

    def text(self, head: str, tail: str) -> str:
        """The whole module."""
        zeros = [f"@weft.zeros = private unnamed_addr constant [{self.zeros} x i8] zeroinitializer, align 64"]
        parts = [
            head,
            *(zeros if self.zeros else ()),
            *self.declarations.values(),
            *self.helpers.values(),
            *self.functions,
            tail,
        ]
        return "\n".join(parts) + "\n"


class Function:
    """One function: instructions are appended at the current place."""

    __slots__ = ("_names", "allocas", "block", "body", "entry", "header", "lines", "module")

    def __init__(self, module: Module, header: str) -> None:
        self.module = module
        self.header = header
        self.allocas: Lines = []
        self.entry: Lines = []
        self.body: Lines = []
        self.lines = self.body
        self.block = "entry"
        self._names = 0

    def fresh(self, hint: str = "v") -> str:
        """A new name (without sigil)."""
        self._names += 1
        return f"{hint}{self._names}"

    def emit(self, instruction: str) -> str:
        """Append an instruction that has a result; the result's name."""
        self._names += 1
        name = f"%v{self._names}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {instruction}")

    def start(self, label: str) -> None:
        """Begin the basic block `label`; the one before must have been ended by a branch."""
        self.lines.append(f"{label}:")
        self.block = label

    def branch(self, label: str) -> None:
        """Go to `label` and begin it."""
        self.do(f"br label %{label}")
        self.start(label)

    def alloca(self, size: int, align: int = 64) -> str:
        """`size` bytes on the stack, allocated once on entry."""
        self._names += 1
        name = f"%s{self._names}"
        self.allocas.append(f"  {name} = alloca [{size} x i8], align {align}")
        return name

    def call(self, name: str, result: str, args: list[tuple[str, str]]) -> str:
        """Call an intrinsic or function of that result type with (type, value) arguments, declaring it."""
        self.module.declare(name, result, ", ".join(t for t, _ in args))
        text = f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in args)})"
        if result != "void":
            return self.emit(text)
        self.do(text)
        return ""

    def finish(self) -> str:
        """The function's text."""
        lines = flatten([self.allocas, self.entry, self.body])
        return "\n".join((f"{self.header} {{", "entry:", *lines, "}"))
