"""Cost model of fusion: what a byte and a kernel cost, and the limits of a kernel.

The unit is one addition of one element, as of `OpInfo.cost`. Only ratios matter, and they are much alike on all
machines.
"""

from __future__ import annotations

from weft.lazy_dataclass import dataclass

OPS_PER_BYTE = 8
"""Operations in the time that one byte takes from or to memory: the machine balance of today's CPUs and GPUs."""

OPS_PER_LAUNCH = 10_000
"""Operations in the time that one more kernel takes, however small."""

MAX_PROLOGUE_OPS = 4
"""Operations per element that a product may do to an operand while staging it: it does so once per panel."""

MAX_PROLOGUE_READS = 1.5
"""Bytes read at most by a prologue, per byte of the operand itself."""

PANEL_RESULTS = 48
"""Columns of results for which a product stages the operand that it reads row by row: a panel of the other one."""

ROW_STAGING_OPS = 10
"""Operations that staging an element of that operand takes, beyond those that are done to it (decision 184)."""

DIVIDED_READ_OPS = 40
"""Operations that reading an element takes where a reshape has split what it is found by, beyond those for one that
lies in order."""

SCALAR_STEP_OPS = 100
"""Operations in the time that a step of a reduction takes without lanes: its own, and those that it waits for."""

PROLOGUE_SAVED_SHARE = 0.5
"""The share of what bytes cost that a prologue may use up for those it saves, where its inputs are smaller than the
operand (weights of few bits): the rest is for panels that are staged more than once."""

TILE_ROWS = 8
"""Rows of results for which an operand is computed once, in registers: tiles of sums of bytes have up to 12, those of
inner products up to 8."""

MAX_KERNEL_OPS = 512
"""Operations in one kernel, counted by their cost: compilers take more than linear time, and registers run out."""

MAX_KERNEL_READS = 48
"""Tensors read by one kernel at most."""

NO_LIMIT = 1 << 16
"""Buffers of a kernel on a device without a limit."""

MIN_BUFFERS = 4
"""Buffers of a kernel that selects between two tensors."""

MAX_SITES = 12
"""Indices at which one kernel computes elements of the same tensor at most."""

MAX_SELECTED_PIECES = 8
"""Inputs of a concatenation that is selected from per element."""

MAX_PIECES_TOGETHER = 16
"""Computed inputs of a concatenation whose elements at one place are computed one after the other."""

MAX_WRITTEN_PIECES = 64
"""Inputs of a concatenation that one kernel writes at most."""

MUCH_MOVED = 4
"""Bytes that a kernel moves for each of a product's results from which on it reads that from memory."""

CACHED_BYTES = 1 << 20
"""Bytes that second-level caches hold."""

MIN_ROWS = 16
"""Rows that a kernel needs, to keep all cores busy, if one row is long."""

LONG_ROW_ELEMENTS = 65_536
"""Elements above which a row is long."""

SATURATED_OPS = 1 << 40
"""Operations per element above which costs are not told apart."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Arithmetic, in operations (see `OpInfo.cost`), and memory traffic, in bytes; None for more than is counted."""

    ops: float = 0
    nbytes: float | None = 0

    @property
    def total(self) -> float:
        """The cost in operations."""
        return float("inf") if self.nbytes is None else self.ops + self.nbytes * OPS_PER_BYTE

    def __str__(self) -> str:
        parts = [f"{self.ops:,.0f} operations"] if self.ops else []
        if self.nbytes is None:
            parts.append("uncounted bytes")
        elif self.nbytes or not self.ops:
            parts.append(f"{self.nbytes:,.0f} bytes")
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The cost of fusing a node beside the cost up to which that pays."""

    fused: Cost
    limit: Cost

    @property
    def pays(self) -> bool:
        """True where fusing costs no more than the limit."""
        return self.fused.total <= self.limit.total

    def __str__(self) -> str:
        rate = f", at {OPS_PER_BYTE} operations per byte" if self.fused.ops and self.limit.nbytes else ""
        return f"{self.fused} {'<=' if self.pays else '>'} {self.limit}{rate}"


_LAUNCH = Cost(OPS_PER_LAUNCH)


def recompute(kernels: int, nbytes: int, ops: float, size: int, leaf_bytes: int | None) -> Comparison:
    """The cost of computing a tensor in each of `kernels` kernels, against reading it from memory.

    Anew, each further kernel does `ops` per element and reads the `leaf_bytes` it is computed from; stored, it is
    written once and read by all kernels but the one that computes it.
    """
    again = kernels - 1
    stored = Cost(nbytes=kernels * nbytes)
    return Comparison(
        Cost(again * ops * size, None if leaf_bytes is None else again * leaf_bytes),
        stored if stored.total >= OPS_PER_LAUNCH else _LAUNCH,
    )


def prologue(ops: float, size: int, nbytes: int, read: int | None) -> Comparison:
    """The cost of computing an operand of `size` elements, `nbytes` large, from `read` bytes as a product stages it."""
    saved = 0 if read is None else max(0, nbytes - read)
    return Comparison(Cost(ops * size), Cost(MAX_PROLOGUE_OPS * size, PROLOGUE_SAVED_SHARE * saved))


def row_prologue(ops: float, size: int, nbytes: int, columns: int) -> Comparison:
    """The cost of computing the operand that a product reads row by row for each panel of `columns` columns of results,
    against computing it once, writing it and reading it."""
    panels = -(-columns // PANEL_RESULTS)
    return Comparison(Cost(panels * (ops + ROW_STAGING_OPS) * size), Cost(ops * size, 2 * nbytes))


def divided_reads(size: int, nbytes: int, uses: int) -> Comparison:
    """The cost of finding the elements of an operand at quotients and remainders, where each is for `uses` results: for
    each panel of them, against one more kernel that copies it into the order in which the product reads it."""
    panels = -(-uses // PANEL_RESULTS)
    return Comparison(Cost(panels * DIVIDED_READ_OPS * size), Cost(OPS_PER_LAUNCH, 2 * nbytes))


def prologue_reads(nbytes: int, read: int | None) -> Comparison:
    """The bytes that a product's prologue reads in place of an operand of `nbytes`."""
    return Comparison(Cost(nbytes=read), Cost(nbytes=MAX_PROLOGUE_READS * nbytes))


def small_prologue(ops: float, points: int) -> Comparison:
    """The cost of computing an operand anew at every point of a small product, against one more kernel."""
    return Comparison(Cost(ops * points), _LAUNCH)


def tile_prologue(ops: float, size: int, nbytes: int, uses: int) -> Comparison:
    """The cost of computing an operand, of which each element is for `uses` rows, once for each tile of them, in
    registers, against computing it once, writing it and reading it again."""
    return Comparison(Cost(-(-uses // TILE_ROWS) * ops * size), Cost(ops * size, 2 * nbytes))


def scattered(points: int, nbytes: int) -> Comparison:
    """The cost of the steps of a reduction one by one, against one more kernel that takes them by lanes and stores what
    it finds."""
    return Comparison(Cost(SCALAR_STEP_OPS * points), Cost(OPS_PER_LAUNCH, 2 * nbytes))


def repeat(times: int, ops: float, itemsize: int, size: int) -> Comparison:
    """The cost of computing a tensor's elements `times` times over in one kernel, against memory traffic of three
    accesses per element."""
    stored = Cost(nbytes=3 * itemsize * size)
    return Comparison(Cost((times - 1) * ops * size), stored if stored.total >= OPS_PER_LAUNCH else _LAUNCH)
