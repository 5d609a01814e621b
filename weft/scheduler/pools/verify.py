"""The verifier of plans in stretches: what is read is there, and what rests is its newest value.

    slot 3    a from item 0 on, c from item 4 on
    cell 0    a from item 2 on

A stretch may read only what its slots hold then; a copy back, what its cell holds. The cell of state holds the old
value before the first item, the output that replaces it after the last one, and nothing else in between.
"""
# Tests: tests/scheduler/pools/test_resting.py

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.errors import IRError
from weft.ir.graph import Node
from weft.scheduler.pools.spilling import Back, Split, Stretch, cell_of


def verify_split(found: Split) -> None:
    """IRError for an item that reads what is not there, or state that does not rest as it has to."""
    job = found.made.job
    resting = {job.leaves[i] for i in found.rests}
    newest = {cell_of(i): job.outputs[o] for o, i in found.replaces.items() if i in found.rests}
    slots: dict[int, Node] = {}
    cells: dict[int, Node] = {cell_of(i): job.leaves[i] for i in found.rests}

    def check(at: int, read: Sequence[Node]) -> None:
        for n in read:
            if n in resting:
                raise IRError(f"item {at} reads {n!r}, which rests in a slower pool", "plan")
            slot = found.room.get(n)
            if slot is not None and slots.get(slot) is not n:
                raise IRError(f"item {at} reads {n!r}, and slot {slot} holds {slots.get(slot)!r}", "plan")

    for at, item in enumerate(found.items):
        if isinstance(item, Stretch):
            check(at, item.reads)
            slots.update({found.room[n]: n for n in item.makes if n in found.room})
        elif isinstance(item, Back):
            if item.cell not in cells:
                raise IRError(
                    f"item {at} copies {item.node!r} back from cell {item.cell}, which is empty", "plan"
                )
            slots[found.room[item.node]] = item.node
        else:
            check(at, [item.node])
            if item.cell < 0 and newest.get(item.cell) is not item.node:
                raise IRError(f"item {at} puts {item.node!r} where another value rests", "plan")
            cells[item.cell] = item.node
    for cell, node in newest.items():
        if cells[cell] is not node:
            raise IRError(
                f"leaf {cell_of(cell)} rests as {cells[cell]!r}, not as its new value {node!r}", "plan"
            )
    if len(newest) != len(found.rests):
        raise IRError(f"{len(found.rests)} leaves rest, and {len(newest)} outputs replace them", "plan")
