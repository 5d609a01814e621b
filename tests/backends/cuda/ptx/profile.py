"""Counts what the warps of a launch do: instructions, wavefronts of shared memory, sectors of global memory.

A warp's access to shared memory takes as many wavefronts as its busiest bank has different words, for each part of the
warp that is served at once: all lanes for words of 4 bytes, halves for 8 bytes, quarters for 16 bytes; two parts go
together where every lane has the address of the neighbour one or two lanes on (which is not documented, but what others
measured). The least is 128 bytes a wavefront. A warp's access to global memory touches sectors of 32 bytes; the least
is what all its lanes' different bytes fill.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .text import Instruction

Array = NDArray[Any]

SECTOR, WAVEFRONT, BANKS = 32, 128, 32

ENOUGH = 64
"""Requests of one instruction that are looked at; the others are taken for like these."""


@dataclass(slots=True)
class Traffic:
    """Of one kind of access: warps' requests, the bytes of their lanes, what they took, and the least possible."""

    requests: int = 0
    nbytes: int = 0
    taken: int = 0
    least: int = 0


@dataclass(slots=True)
class Profile:
    """Of the blocks that were run."""

    shared: Traffic = field(default_factory=Traffic)
    reads: Traffic = field(default_factory=Traffic)
    writes: Traffic = field(default_factory=Traffic)
    executed: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    """Warps that ran a basic block's instruction, by the numbers of both."""
    by_instruction: dict[tuple[int, int, str], Traffic] = field(
        default_factory=dict[tuple[int, int, str], Traffic]
    )
    """Traffic of each instruction, by the numbers of both and the memory."""
    here: tuple[int, int] = (0, 0)

    def ran(self, block: int, count: int, warps: int) -> None:
        for k in range(count):
            self.executed[block, k] += warps

    def access(self, space: str, at: Array, lanes: Array, nbytes: int, store: bool) -> None:
        """Lanes (numbers of threads) access `nbytes` bytes each."""
        if space not in ("shared", "global"):
            return
        which = self.shared if space == "shared" else self.writes if store else self.reads
        mine = self.by_instruction.setdefault((*self.here, space), Traffic())
        warp = lanes // 32
        if mine.requests >= ENOUGH:
            ran = len(np.unique(warp))
            taken, least = (round(x / mine.requests * ran) for x in (mine.taken, mine.least))
            for t in (which, mine):
                t.requests += ran
                t.nbytes += len(lanes) * nbytes
                t.taken += taken
                t.least += least
            return
        for w in np.unique(warp):
            one = at[warp == w].astype("i8")
            different = len(np.unique(one)) * nbytes
            if space == "shared":
                taken, least = wavefronts(one, nbytes), -(-different // WAVEFRONT)
            else:
                ends = np.concatenate([one // SECTOR, (one + nbytes - 1) // SECTOR])
                taken, least = len(np.unique(ends)), -(-different // SECTOR)
            for t in (which, mine):
                t.requests += 1
                t.nbytes += len(one) * nbytes
                t.taken += taken
                t.least += least

    def product(self, rows: int, columns: int, groups: int) -> None:
        """Groups of warps multiply `rows` x 16 by 16 x `columns` elements of 16 bits out of shared memory."""
        nbytes = (rows + columns) * 32
        self.shared.requests += groups
        self.shared.nbytes += groups * nbytes
        self.shared.taken += groups * -(-nbytes // WAVEFRONT)
        self.shared.least += groups * -(-nbytes // WAVEFRONT)

    def instructions(self, blocks: list[list[Instruction]]) -> Counter[str]:
        """Warps' instructions by kind."""
        out: Counter[str] = Counter()
        for (b, k), n in self.executed.items():
            out[kind(blocks[b][k])] += n
        return out


def wavefronts(at: Array, nbytes: int) -> int:
    """What one warp's access to shared memory takes."""
    if nbytes <= 4 or len(at) < 32:
        return _busiest(at, max(nbytes, 4))
    parts = 2 if nbytes == 8 else 4
    size = 32 // parts
    total = 0
    for first in range(0, 32, 2 * size):
        both = at[first : first + 2 * size]
        n = np.arange(2 * size)
        if any((both == both[n ^ step]).all() for step in (1, 2)):
            total += _busiest(both, nbytes)
        else:
            total += _busiest(both[:size], nbytes) + _busiest(both[size:], nbytes)
    return total


def _busiest(at: Array, nbytes: int) -> int:
    words = np.unique((np.unique(at)[:, None] + np.arange(0, nbytes, 4)) // 4)
    return int(np.bincount(words % BANKS).max())


KINDS = {
    "mma": "mma", "wgmma": "mma", "ldmatrix": "ldmatrix", "shfl": "shuffle", "bar": "barrier", "bra": "branch",
    "ex2": "special", "lg2": "special", "rcp": "special", "sqrt": "special", "rsqrt": "special", "div": "special",
    "mov": "free", "cvta": "free", "ret": "branch",
}  # fmt: skip


def kind(i: Instruction) -> str:
    """What an instruction is for; moves between registers are free."""
    op = i.op
    if op[0] in KINDS:
        return KINDS[op[0]] if op[:2] not in (("wgmma", "fence"), ("wgmma", "wait_group")) else "wait"
    if op[0] in ("ld", "st"):
        space = next((s for s in ("global", "shared", "local", "param") if s in op), "generic")
        return "free" if space == "param" else f"{op[0]} {space}"
    if op[:2] == ("cp", "async"):
        return "copy" if op[2] in ("ca", "cg") else "wait"
    if op[-1] in ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2"):
        return "fma" if op[0] in ("fma", "mul", "add", "sub") else "float"
    return "index"
