"""The order in which a graph over several devices is computed: what each device computes, and what is copied then.

    stage 0   cpu:0 computes a @ a           copied to dummy:0
    stage 1   dummy:0 computes its product   copied to dummy:1
    ...       what was asked for

A copy is in the stage after those that its source needs. `realize` runs these, and `weft.explain` lists them.
"""
# Tests: tests/scheduler/test_realize.py

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from weft.ir.graph import Node, toposort
from weft.ir.ops import Op


@dataclass(frozen=True, slots=True)
class Stage:
    """The nodes that the devices compute, each in one plan, in this order, and then the copies."""

    computed: tuple[tuple[str, tuple[Node, ...]], ...]
    copies: tuple[Node, ...] = ()


def is_moved(n: Node) -> bool:
    """True for a copy from one device to another; a mesh may be asked to lay out what it has."""
    return n.op is Op.COPY and n.inputs[0].device != n.device


def stages(nodes: Sequence[Node], home: Callable[[], str]) -> list[Stage]:
    """The stages in which `nodes` are computed; the last has no copies. `home` is the device of what is on none."""
    level: dict[Node, int] = {}
    for n in toposort(nodes):
        below = max([level.get(i, 0) for i in n.inputs], default=0) if n.storage is None else 0
        level[n] = below + (n.storage is None and is_moved(n))
    copies: dict[int, list[Node]] = {}
    for n, k in level.items():
        if n.storage is None and is_moved(n):
            copies.setdefault(k, []).append(n)
    done: set[Node] = set()

    def by_device(wanted: Iterable[Node]) -> tuple[tuple[str, tuple[Node, ...]], ...]:
        found: dict[str, list[Node]] = {}
        for n in dict.fromkeys(wanted):
            if n.storage is None and n not in done:
                found.setdefault(n.device or home(), []).append(n)
                done.add(n)
        return tuple([(name, tuple(group)) for name, group in found.items()])

    out: list[Stage] = []
    for k in sorted(copies):
        # what needs no device is computed where it is copied to
        sources = by_device(n.inputs[0] for n in copies[k] if n.inputs[0].device is not None)
        out.append(Stage(sources, tuple(copies[k])))
        done.update(copies[k])
    return [*out, Stage(by_device(nodes))]
