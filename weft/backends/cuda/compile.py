"""Programs -> PTX, and what is known of their launches."""
# Tests: tests/backends/cuda/test_assemble.py

from __future__ import annotations

import re
from collections.abc import Sequence

from weft.backends.cpu.llvm import Module
from weft.backends.cpu.targets import Optimization, Target
from weft.backends.launches import Entry, Part
from weft.ir.index import high
from weft.ir.loops import Program
from weft.ir.passes.grid import grid_parts, launches

from .render import TRIPLE, render_module

WARP = 32
"""Threads that run in step."""

BLOCKS_PER_CORE = 2
"""Blocks that shall find room on one multiprocessor when panels are kept in rings."""

OPTIMIZATION = Optimization(level=2, unroll=True, codegen=3)


PTX = {(10, 0): 86, (10, 1): 86, (10, 3): 88, (11, 0): 90, (12, 0): 87, (12, 1): 88}
"""The first version of PTX that knows an architecture; 8.0 (of CUDA 12.0) knows all before."""


def target(capability: tuple[int, int]) -> Target:
    """LLVM's name of the architecture, and the oldest PTX that knows it, which the oldest drivers take. From sm_90 on
    with the instructions that only this architecture has; for one that came later, what it runs of sm_90."""
    if capability > (9, 0) and capability not in PTX:
        return Target(TRIPLE, "sm_90", "+ptx80")
    major, minor = capability
    own = "a" if capability >= (9, 0) else ""
    return Target(TRIPLE, f"sm_{major}{minor}{own}", f"+ptx{PTX.get(capability, 80)}")


def copies_ahead(chip: Target) -> bool:
    """True where the architecture copies to shared memory asynchronously: from sm_80 on."""
    return int(re.sub(r"\D", "", chip.cpu)) >= 80


def compile_programs(
    programs: Sequence[Program], chip: Target, local_bytes: int, groups: bool = False
) -> tuple[str, list[Entry]]:
    """One module of PTX with all launches of all programs; with `groups`, products by groups of warps where the
    architecture has them."""
    grids: list[Program] = []
    outlines: list[tuple[Program, list[Program], list[str], tuple[int, ...]]] = []
    for p in programs:
        split = launches(p, local_bytes, warp=WARP)
        names = [b.name for b in (*p.params, *split.scratch)]
        sizes = tuple(high(b.size) * b.dtype.itemsize for b in split.scratch)
        outlines.append((p, list(split.grids), names, sizes))
        grids += split.grids
    newer = copies_ahead(chip)
    ring_bytes = local_bytes // BLOCKS_PER_CORE if newer else None
    group_bytes = local_bytes if groups and chip.cpu == "sm_90a" else None
    text, shapes = render_module(grids, ring_bytes, group_bytes, newer)
    module = Module(text)
    module.optimize(chip, OPTIMIZATION)
    ptx = module.assembly(chip, OPTIMIZATION.codegen)
    remaining = iter(shapes)
    entries: list[Entry] = []
    for p, own, names, sizes in outlines:
        parts: list[Part] = []
        for g, shape in zip(own, remaining, strict=False):
            args = tuple(names.index(b.name) for b in g.params)
            parts.append(Part(g.name, grid_parts(g)[0].extent, shape.threads, args, shape.local_bytes))
        entries.append(Entry(p.name, tuple(parts), len(p.params), tuple(v.name for v in p.variables), sizes))
    return ptx, entries
