"""Arguments that a transform may be proposed with: names of a kernel's loops, items and values, numbers, orders."""
# Tests: tests/ir/kernel/test_transforms.py

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from weft.ir.kernel.algorithm import ItemValue
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Pick
from weft.ir.ops import Op

T = TypeVar("T")

FACTORS = (1, 2, 3, 4, 5, 8)
"""Numbers to split, pad and block by: some divide the extents of test kernels, some do not."""


def loops(k: Kernel) -> list[str]:
    """All loops."""
    return [s.var.name for n in k.nests.values() for s in n.loops]


def items(k: Kernel) -> list[str]:
    """All items, outputs included."""
    return [i.name for i in k.algorithm.items]


def values(k: Kernel) -> list[ItemValue]:
    """All values."""
    return [i for i in k.algorithm.items if isinstance(i, ItemValue)]


def reductions(k: Kernel, *ops: Op) -> list[ItemValue]:
    """The values that reduce, by one of `ops` if some are named."""
    return [v for v in values(k) if v.reduce is not None and (not ops or v.reduce.op in ops)]


def reducing_loops(k: Kernel, value: ItemValue) -> list[str]:
    """The value's own loops that reduce."""
    return [s.var.name for s in k.nests[value.name].loops if s.reduce]


def one_of(pick: Pick, among: Sequence[T]) -> T | None:
    """One of several, None of none."""
    return pick(among) if among else None


def shuffled(pick: Pick, among: Iterable[T]) -> tuple[T, ...]:
    """All of them in any order."""
    left, out = list(among), list[T]()
    while left:
        out.append(left.pop(pick(range(len(left)))))
    return tuple(out)


def some_of(pick: Pick, among: Iterable[T]) -> tuple[T, ...]:
    """Any of them, in order."""
    return tuple(x for x in among if pick((False, True)))
