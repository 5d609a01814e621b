"""A program's launches, beside its code: how large their grids are, and over which buffers they run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from weft.ir.index import Int
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One launch of a program: `args` number the program's parameters, then its scratch buffers; the program's
    runtime variables follow them. `local_bytes`: shared memory that is given at the launch."""

    name: str
    blocks: Int
    threads: int
    args: tuple[int, ...]
    local_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A program: its launches in order, how many parameters and variables it has, and the bytes of its scratch
    buffers."""

    name: str
    parts: tuple[Part, ...]
    parameters: int
    variables: tuple[str, ...]
    scratch: tuple[int, ...]


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
                tuple(
                    Part(p["name"], p["blocks"], p["threads"], tuple(p["args"]), p["local_bytes"])
                    for p in e["parts"]
                ),
                e["parameters"],
                tuple(e["variables"]),
                tuple(e["scratch"]),
            )
            for e in json.loads(text)
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a description of launches: {error}") from error
