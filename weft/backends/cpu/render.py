"""Programs -> one LLVM module for the CPU.

A kernel is `void NAME(ptr table, ptr slots, ptr vars)`: parameter k's base is `table[slots[k]]` (slots are i32),
runtime variable j is `vars[slots[parameters + j]]` (i64). Bases are 64-byte aligned. An output may be the memory of
an input when each iteration reads an element before it writes it, so parameters are not marked `noalias`.
The outermost PARALLEL loops become functions of their own that `weft_parallel` calls with ranges of iterations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from weft.backends.llvm import dot_bytes
from weft.backends.llvm.body import Body
from weft.backends.llvm.frame import Frame, Place, Term
from weft.backends.llvm.index import ref, uniform
from weft.backends.llvm.memory import ALIGNMENT
from weft.backends.llvm.writer import Function, Module
from weft.ir.loops import Loop, LoopKind, Program
from weft.lazy_dataclass import dataclass

from .targets import Target

STACK_BYTES = 16 << 10
"""Bytes of LOCAL buffers on the stack, at most; when they need more, they come from the heap."""

PART_CHARACTERS = 1 << 18
"""Characters of LLVM IR that are worth compiling by themselves: about 0.1 s."""

IMPORTS = ("weft_parallel",)
"""Symbols of the runtime that kernels call."""


class Part(NamedTuple):
    """Some of the programs, by name, and their LLVM IR."""

    names: tuple[str, ...]
    text: str


def render_module(programs: Iterable[Program], target: Target) -> str:
    """LLVM IR of all programs; each is exported under its own name."""
    module = _module(target)
    for program in programs:
        _kernel(module, program, target)
    return _text(module, target)


def render_parts(programs: Iterable[Program], target: Target, most: int = PART_CHARACTERS) -> Iterator[Part]:
    """LLVM IR of the programs, as modules that end after the program with which they have `most` characters. A program
    is asked for when those before it are written."""
    module, names = _module(target), list[str]()
    for program in programs:
        _kernel(module, program, target)
        names.append(program.name)
        if sum(map(len, module.functions)) >= most:
            yield Part(tuple(names), _text(module, target))
            module, names = _module(target), []
    if names:
        yield Part(tuple(names), _text(module, target))


def _module(target: Target) -> Module:
    x86 = target.triple.startswith("x86_64")
    half = not x86 or "+f16c" in target.features.split(",")
    return Module(half=half, saturating=not x86, own_stack=1 << 10)


def _text(module: Module, target: Target) -> str:
    widest = ' "prefer-vector-width"="512"' if "+avx512f" in target.features.split(",") else ""
    return module.text(
        f'target triple = "{target.triple}"', f"attributes #0 = {{ nounwind{widest} }}\n!0 = !{{i32 1}}"
    )


def byte_units(target: Target) -> dict[int, str]:
    """The instructions that add four products of unsigned and signed bytes to each of so many lanes."""
    features = set(target.features.split(","))
    found: dict[int, str] = {}
    if target.triple.startswith("x86_64"):
        if "+avxvnni" in features or features >= {"+avx512vnni", "+avx512vl"}:
            found |= {n: f"llvm.x86.avx512.vpdpbusd.{32 * n}" for n in (4, 8)}
        if "+avx512vnni" in features:
            found[16] = "llvm.x86.avx512.vpdpbusd.512"
    return found


def _lanes(target: Target) -> int:
    """The lanes of 32 bits of a register."""
    features = target.features.split(",")
    return 16 if "+avx512f" in features else 8 if "+avx2" in features else 4


def _kernel(module: Module, program: Program, target: Target) -> None:
    hooks = _Cpu(program.name, target)
    f = Function(module, f"define void @{program.name}(ptr %table, ptr %slots, ptr %vars) #0")
    frame = Frame(f)

    def slot(k: int) -> str:
        at = frame.on_entry(f"getelementptr i32, ptr %slots, i64 {k}")
        return frame.on_entry(f"sext i32 {frame.on_entry(f'load i32, ptr {at}, align 4')} to i64")

    for k, buffer in enumerate(program.params):
        at = frame.on_entry(f"getelementptr ptr, ptr %table, i64 {slot(k)}")
        frame.places[buffer.name] = Place(frame.on_entry(f"load ptr, ptr {at}, align 8"), buffer)
    for j, var in enumerate(program.variables):
        at = frame.on_entry(f"getelementptr i64, ptr %vars, i64 {slot(len(program.params) + j)}")
        frame.bindings[var.name] = Term(frame.on_entry(f"load i64, ptr {at}, align 8"), 0)
    body = Body(frame, hooks)
    body.block(program.body)
    hooks.finish(body)


@dataclass(slots=True)
class _Cpu:
    """One program's rendering for the CPU."""

    name: str
    target: Target
    tasks: int = 0
    nested: bool = False

    def spread(self, body: Body, loop: Loop) -> None:
        """Outline a parallel loop; one inside another just runs."""
        if loop.kind is not LoopKind.PARALLEL:
            raise ValueError(f"{self.name}: a CPU has no {loop.kind.value} loops")
        body.expressions_of((loop.extent,))
        extent = uniform(body.frame, loop.extent)
        if self.nested or (isinstance(extent, int) and extent <= 1):
            body.serial(loop)
            return
        f = body.frame.f
        name = f"{self.name}.task{self.tasks}"
        self.tasks += 1
        task = Function(f.module, f"define internal void @{name}(ptr %ctx, i64 %begin, i64 %end) #0")
        inner = Body(Frame(task, body.frame), self)
        self.nested = True
        inner.counted(loop, "%begin", "%end", nonempty=True)
        self.nested = False
        captured = inner.frame.captured
        ctx = f.alloca(max(8, 8 * len(captured)))
        for k, (kind, value) in enumerate(captured):
            f.do(f"store {kind} {value}, ptr {f.emit(f'getelementptr i8, ptr {ctx}, i64 {8 * k}')}, align 8")
        self.finish(inner)
        f.call(
            "weft_parallel", "void", [("ptr", f"@{name}"), ("ptr", ctx), ("i64", ref(extent)), ("i64", "1")]
        )

    def multiply(self, body: Body, loop: Loop) -> bool:
        """Four products of bytes in each lane are one instruction; other loops run as loops."""
        return loop.kind is LoopKind.MATRIX and dot_bytes.render(
            body, loop, byte_units(self.target), _lanes(self.target)
        )

    def exchanged(self, body: Body, word: str, distance: int) -> str:
        """Nothing asks for it: no threads run in step here."""
        raise ValueError("the threads of a processor have no registers in common")

    def barrier(self, body: Body) -> None:
        """One thread runs a whole task, so there is nothing to order."""

    def finish(self, body: Body) -> None:
        """End the function: make streamed stores visible, and provide `%local`."""
        f, size = body.frame.f, body.frame.local_bytes
        if body.streams and self.target.triple.startswith("x86_64"):
            f.call("llvm.x86.sse.sfence", "void", [])
        if 0 < size <= STACK_BYTES:
            f.allocas.append(f"  %local = alloca [{size} x i8], align {ALIGNMENT}")
        elif size:
            windows = "windows" in self.target.triple
            get, drop = ("_aligned_malloc", "_aligned_free") if windows else ("aligned_alloc", "free")
            numbers = (size, ALIGNMENT) if windows else (ALIGNMENT, size)
            f.module.declare(get, "ptr", "i64, i64")
            f.entry.insert(0, f"  %local = call ptr @{get}(i64 {numbers[0]}, i64 {numbers[1]})")
            f.call(drop, "void", [("ptr", "%local")])
        f.do("ret void")
        f.module.functions.append(f.finish())
