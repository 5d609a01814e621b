"""Programs -> an AMDGPU object, and what is known of their launches."""
# Tests: tests/backends/hip/test_objects.py

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.cpu.llvm import compile_ir, data_layout
from weft.backends.cpu.targets import Optimization, Target
from weft.backends.cuda.compile import WARP
from weft.backends.launches import Entry, Part
from weft.ir.index import high
from weft.ir.loops import Program
from weft.ir.passes.grid import grid_parts, launches
from weft.lazy_dataclass import dataclass

from .render import TRIPLE, render_module

OPTIMIZATION = Optimization(level=2, codegen=3)  # schedules say what is written out; LLVM would spill


def target(isa: str) -> Target:
    """LLVM's name of an instruction set such as "gfx90a" or, with features, "gfx90a:sramecc+:xnack-"."""
    chip, *features = isa.split(":")
    return Target(TRIPLE, chip, ",".join(f"{f[-1]}{f[:-1]}" for f in features))


def entries_of(programs: Sequence[Program], local_bytes: int) -> tuple[list[Program], list[Entry]]:
    """The grids of all programs in order, and each program's launches of them."""
    grids: list[Program] = []
    entries: list[Entry] = []
    for p in programs:
        split = launches(p, local_bytes, warp=WARP)
        names = [b.name for b in (*p.params, *split.scratch)]
        parts: list[Part] = []
        for g in split.grids:
            block, _, thread = grid_parts(g)
            args = tuple(names.index(b.name) for b in g.params)
            parts.append(Part(g.name, block.extent, high(thread.extent), args))
        sizes = tuple(high(b.size) * b.dtype.itemsize for b in split.scratch)
        entries.append(Entry(p.name, tuple(parts), len(p.params), tuple(v.name for v in p.variables), sizes))
        grids += split.grids
    return grids, entries


@dataclass(frozen=True, slots=True)
class Output:
    """The result of compiling programs: the relocatable object, and the LLVM IR that it was made from."""

    code: bytes
    llvm: str
    entries: tuple[Entry, ...]


def compile_programs(programs: Sequence[Program], chip: Target, local_bytes: int) -> Output:
    """One object with all launches of all programs."""
    grids, entries = entries_of(programs, local_bytes)
    text, _ = render_module(grids, data_layout(chip))
    return Output(compile_ir(text, chip, OPTIMIZATION), text, tuple(entries))
