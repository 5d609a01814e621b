"""A program's launches, beside their text: which grids, how large, over which buffers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from weft.ir.index import Int, high
from weft.ir.loops import Loop, LoopKind, Program
from weft.ir.passes.grid import grid_parts, launches
from weft.ir.passes.scratch import packed


@dataclass(frozen=True, slots=True)
class Part:
    """One launch of a program: `args` number the program's parameters, then its scratch buffers; the program's
    runtime variables follow them."""

    name: str
    blocks: Int
    threads: int
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A program: its launches in order, how many parameters and variables it has, and the bytes of its scratch
    buffers."""

    name: str
    parts: tuple[Part, ...]
    parameters: int
    variables: tuple[str, ...]
    scratch: tuple[int, ...]


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
            parts.append(
                Part(g.name, block.extent, thread.extent, tuple(names.index(b.name) for b in g.params))
            )
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


def describe(entries: Sequence[Entry]) -> str | None:
    """The entries as text; None where a number of blocks is only known at run time."""
    if any(not isinstance(part.blocks, int) for e in entries for part in e.parts):
        return None
    return json.dumps([asdict(e) for e in entries])


def parse(text: str) -> list[Entry]:
    """Read what `describe` wrote. ValueError for anything else."""
    try:
        return [
            Entry(
                e["name"],
                tuple(Part(p["name"], p["blocks"], p["threads"], tuple(p["args"])) for p in e["parts"]),
                e["parameters"],
                tuple(e["variables"]),
                tuple(e["scratch"]),
            )
            for e in json.loads(text)
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a description of launches: {error}") from error


def offsets(sizes: Sequence[int], alignment: int) -> tuple[tuple[int, ...], int]:
    """The offsets of buffers of these sizes one after another, and their end."""
    starts: list[int] = []
    at = 0
    for n in sizes:
        starts.append(at)
        at += -(-n // alignment) * alignment
    return tuple(starts), at
