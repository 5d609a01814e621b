"""How many loads wait for memory together, read from machine code: what the assembler unrolls and hoists is not in PTX.

An instruction of 16 bytes says in its upper bits (105 and up) how long the warp stalls after it (4 bits), whether it
yields (1), which of six barriers falls when its result is there (3; 7 for none) or its operands are read (3), and for
which of them it waits itself (6 bits, a mask). That is not documented, but the same since Volta, and disassemblers
(maxas, CuAssembler) agree on it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

LOAD_GLOBAL = 0x981
"""The opcode (12 bits) of LDG."""

NO_BARRIER = 7


@dataclass(frozen=True, slots=True)
class Flight:
    """Of a kernel's code: loads from global memory, and how often it waits for some of them before it goes on."""

    loads: int
    waits: int

    @property
    def together(self) -> float:
        """Loads that one wait is for."""
        return self.loads / self.waits if self.waits else 1.0


def flights(cubin: bytes) -> dict[str, Flight]:
    """Every kernel's, by name."""
    return {name: _flight(code) for name, code in _kernels(cubin)}


def _kernels(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """The sections of an ELF file that hold kernels."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + k * size) for k in range(count)]
    for head in heads:
        start = heads[names][4] + head[0]
        name = cubin[start : cubin.index(b"\0", start)].decode()
        if name.startswith(".text."):
            yield name.removeprefix(".text."), cubin[head[4] : head[4] + head[5]]


def _flight(code: bytes) -> Flight:
    """A wait for one load is one for all that are on their way: they were issued before it, and take as long."""
    loads = waits = 0
    pending: set[int] = set()
    for at in range(0, len(code), 16):
        low, high = struct.unpack_from("<QQ", code, at)
        barrier, mask = high >> 46 & 7, high >> 52 & 63
        if any(mask >> b & 1 for b in pending):
            waits += 1
            pending.clear()
        if low & 0xFFF == LOAD_GLOBAL and barrier != NO_BARRIER:
            loads += 1
            pending.add(barrier)
    return Flight(loads, waits)
