"""A schedule in one line: how the outputs' loops run, and where each value is computed and lives.

y0: 16 tasks, 4 unrolled, 32 lanes; sum: 4x32 in register; panel: 256x32 in local
"""
# Tests: tests/core/execute/test_explanation.py

from __future__ import annotations

from math import prod

from weft.ir.index import high
from weft.ir.kernel.algorithm import Output
from weft.ir.kernel.schedule import Kernel, Nest
from weft.ir.loops import LoopKind

_WORDS = {
    LoopKind.PARALLEL: "tasks",
    LoopKind.BLOCK: "blocks",
    LoopKind.THREAD: "threads",
    LoopKind.UNROLL: "unrolled",
    LoopKind.MATRIX: "on matrix units",
    LoopKind.VECTOR: "lanes",
    LoopKind.ACROSS: "across threads",
}


def summary(kernel: Kernel) -> str:
    """The schedule of all items, outputs first."""
    items = kernel.algorithm.items
    outputs = [i for i in items if isinstance(i, Output)]
    parts = [f"{', '.join(s.param for s in o.stores)}: {_loops(kernel.nests[o.name])}" for o in outputs]
    parts += [f"{i.name}: {_region(kernel.nests[i.name])}" for i in items if not isinstance(i, Output)]
    return "; ".join(parts)


def _loops(nest: Nest) -> str:
    counts = {
        kind: prod(high(s.extent) for s in nest.loops if s.kind is kind)
        for kind in _WORDS
        if any(s.kind is kind for s in nest.loops)
    }
    words = [f"{count} {_WORDS[kind]}" for kind, count in counts.items()]
    words += ["stored past the caches"] if nest.stream else []
    return ", ".join(words) or "one element at a time"


def _region(nest: Nest) -> str:
    sizes = [n for n in nest.size if n != 1] or [1]
    words = [f"{'x'.join(map(str, sizes))} in {nest.scope.value}"]
    words += ["whole"] if nest.at is None else []
    words += ["online"] if nest.online else []
    tasks = any(s.kind in (LoopKind.PARALLEL, LoopKind.BLOCK) for s in nest.loops)
    return f"{' '.join(words)}{f', {_loops(nest)}' if tasks else ''}"
