"""Transforms that make loops, with the names of what they made."""

from __future__ import annotations

from weft.ir.index import Int, high, low
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.merge import Merge
from weft.ir.kernel.transforms.split import Split
from weft.scheduler.optimize.extents import typical


def extent(k: Kernel, loop: str) -> int:
    """The extent of a loop (the largest, of one of runtime size)."""
    return high(_extent(k, loop))


def least_extent(k: Kernel, loop: str) -> int:
    """The extent of a loop (the smallest, of one of runtime size)."""
    return low(_extent(k, loop))


def typical_extent(k: Kernel, loop: str) -> int:
    """The extent of a loop (a typical one, of one of runtime size)."""
    return typical(_extent(k, loop))


def sized(k: Kernel, loop: str) -> bool:
    """The extent of the loop is known."""
    return isinstance(_extent(k, loop), int)


def _extent(k: Kernel, loop: str) -> Int:
    owner = k.owner(loop)
    assert owner is not None, f"no loop {loop}"
    spec = k.nests[owner].loop(loop)
    assert spec is not None
    return spec.extent


def split(k: Kernel, loop: str, factor: int, outer: str, inner: str) -> tuple[Kernel, str, str]:
    """The loop split; the names of its outer and inner loop (as wished, or with a number)."""
    owner = k.owner(loop)
    assert owner is not None, f"no loop {loop}"
    at = k.nests[owner].depth(loop)
    k = run(k, Split(loop, factor, outer, inner))
    a, b = k.nests[owner].loops[at : at + 2]
    return k, a.var.name, b.var.name


def merge(k: Kernel, outer: str, inner: str, dividing: bool = False) -> tuple[Kernel, str]:
    """Two adjacent loops merged, by a division at run time if `dividing`; the name of the one."""
    owner = k.owner(outer)
    assert owner is not None, f"no loop {outer}"
    at = k.nests[owner].depth(outer)
    k = run(k, Merge(outer, inner, dividing=dividing))
    return k, k.nests[owner].loops[at].var.name


def divisors(n: int) -> list[int]:
    """Numbers that divide n, ascending from 1 to n, but only one of those that are near each other."""
    found = [1]
    for d in range(2, n):
        if n % d == 0 and d >= 1.5 * found[-1]:
            found.append(d)
    return [*found, n] if n > 1 else found
