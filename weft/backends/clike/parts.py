"""Programs as launches: which grids, how large, over which buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.backends.launches import Entry, Part
from weft.ir.index import high
from weft.ir.loops import Loop, LoopKind, Program
from weft.ir.passes.grid import grid_parts, launches
from weft.ir.passes.scratch import packed


def split(
    programs: Sequence[Program], local_bytes: int, max_threads: int, max_buffers: int, warp: int = 1
) -> tuple[list[Program], list[Entry]]:
    """All grids of the programs, and the programs as launches of them. A launch that would have more buffers than
    `max_buffers` has one scratch buffer for each dtype. `warp`: threads that can combine registers."""
    grids: list[Program] = []
    entries: list[Entry] = []
    for p in programs:
        found = packed(launches(as_grid(p), local_bytes, max_threads, warp), max_buffers)
        names = [b.name for b in (*p.params, *found.scratch)]
        parts: list[Part] = []
        for g in found.grids:
            block, _, thread = grid_parts(g)
            assert isinstance(thread.extent, int), "grids have a constant number of threads"
            args = tuple(names.index(b.name) for b in g.params)
            parts.append(Part(g.name, block.extent, thread.extent, args))
        sizes = tuple(high(b.size) * b.dtype.itemsize for b in found.scratch)
        entries.append(Entry(p.name, tuple(parts), len(p.params), tuple(v.name for v in p.variables), sizes))
        grids += found.grids
    return grids, entries


def as_grid(p: Program) -> Program:
    """The program with its outermost tasks as blocks of a grid."""
    body = tuple(
        replace(s, kind=LoopKind.BLOCK) if isinstance(s, Loop) and s.kind is LoopKind.PARALLEL else s
        for s in p.body
    )
    return replace(p, body=body)


def offsets(sizes: Sequence[int], alignment: int) -> tuple[tuple[int, ...], int]:
    """The offsets of buffers of these sizes one after another, and their end."""
    starts: list[int] = []
    at = 0
    for n in sizes:
        starts.append(at)
        at += -(-n // alignment) * alignment
    return tuple(starts), at
