"""The state spaces of a launch: allocations of the host as global memory, shared memory per block, local per thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .text import PtxError

Array = NDArray[Any]

SHARED = 1 << 60
"""Where shared memory begins in the generic address space; in its own it begins at 0."""

LOCAL = 1 << 61
"""The same for local memory."""

GARBAGE = 0xFF
"""The bytes of memory that nobody has written: NaN in every float type."""


class Global:
    """Allocations by their first address."""

    def __init__(self, allocations: Mapping[int, Array]) -> None:
        self.starts = np.array(sorted(allocations), "u8")
        self.arrays = [allocations[int(a)] for a in self.starts]

    def places(self, address: Array, nbytes: int) -> list[tuple[Any, Array, Array]]:
        """(lanes, the allocation's bytes, offsets into it) for each allocation that the addresses lie in."""
        low, high = (
            int(np.searchsorted(self.starts, x, "right")) - 1 for x in (address.min(), address.max())
        )
        which = None if low == high else np.searchsorted(self.starts, address, "right") - 1
        out: list[tuple[Any, Array, Array]] = []
        for k in [low] if which is None else np.unique(which):
            lanes = slice(None) if which is None else np.flatnonzero(which == k)
            at = address[lanes] - (self.starts[k] if k >= 0 else np.uint64(0))
            if k < 0 or int(at.max()) + nbytes > len(self.arrays[k]):
                bad = int(address[lanes][at.argmax()])
                raise PtxError(f"access of {nbytes} bytes at {bad:#x}, outside of all allocations")
            out.append((lanes, self.arrays[k], at))
        return out


class Races:
    """Who last touched each byte of shared memory since the last barrier of its block."""

    def __init__(self, nbytes: int) -> None:
        self.writer = np.full(nbytes, -1, "i4")
        self.reader = np.full(nbytes, -1, "i4")  # -2: several
        self.wrote = np.full(nbytes, -1, "i4")
        self.read = np.full(nbytes, -1, "i4")

    def check(self, at: Array, nbytes: int, thread: Array, epoch: Array, store: bool) -> None:
        """Note accesses of lanes to `nbytes` bytes each. PtxError when one meets another thread's."""
        spots = (at[:, None] + np.arange(nbytes)).ravel()
        who, when = (np.repeat(x, nbytes) for x in (thread, epoch))
        clash = (self.wrote[spots] == when) & (self.writer[spots] != who)
        if store:
            clash |= (self.read[spots] == when) & (self.reader[spots] != who)
        if clash.any():
            k = int(np.flatnonzero(clash)[0])
            raise PtxError(
                f"race in shared memory at byte {int(spots[k])}: thread {int(who[k])} "
                f"{'writes' if store else 'reads'} what thread {int(self.writer[spots[k]])} wrote or "
                f"{int(self.reader[spots[k]])} read since the last barrier"
            )
        if store:
            self.writer[spots], self.wrote[spots] = who, when
            if (self.writer[spots] != who).any():
                raise PtxError("several threads write one byte of shared memory at once")
            return
        several = (self.read[spots] == when) & (self.reader[spots] != who)
        self.reader[spots] = np.where(several, -2, who)
        self.reader[spots] = np.where(
            self.reader[spots] == np.where(several, -2, who), self.reader[spots], -2
        )
        self.read[spots] = when
