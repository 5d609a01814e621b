"""The costs that fusion is decided by, in one place: what a byte and a kernel cost, and the limits.

The unit is one addition of one element, as of `OpInfo.cost`. Only ratios matter, and they are much alike on all
machines.
"""

from __future__ import annotations

PER_BYTE = 8
"""Operations in the time that one byte takes from or to memory: the machine balance of today's CPUs and GPUs."""

LAUNCH = 10_000
"""Operations in the time that one more kernel takes, however small."""

PROLOGUE = 4
"""Operations per element that a product may do to an operand while staging it: it does so once per panel."""

PROLOGUE_BYTES = 1.5
"""How much more than the operand itself its inputs may hold for that."""

PROLOGUE_SAVED = 0.5
"""The share of what bytes cost that a prologue may use up for those it saves, where its inputs are smaller than the
operand (weights of few bits): the rest is for panels that are staged more than once."""

MAX_OPS = 512
"""Operations in one kernel, counted by their cost: compilers take more than linear time, and registers run out."""

MAX_READS = 48
"""Tensors read by one kernel."""

NO_LIMIT = 1 << 16
"""Buffers of a kernel, where a device binds as many as anybody may want."""

MIN_BUFFERS = 4
"""Buffers of a kernel that selects between two tensors."""

MAX_SITES = 12
"""Different places at which one kernel may compute the same tensor's elements anew."""

MAX_CONCAT = 8
"""Inputs of a concatenation that may be chosen from per element."""

MAX_PIECES = 64
"""Inputs of a concatenation that one kernel writes."""

MIN_ROWS = 16
"""Rows that a kernel needs, to keep all cores busy, if one row is long."""

LONG_ROW = 65_536
"""Elements of a long row."""

SATURATED = 1 << 40
"""Costs above this are all alike."""


def recompute(kernels: int, nbytes: int, ops: float, size: int, leaf_bytes: int | None) -> bool:
    """Whether `kernels` kernels should each compute a tensor anew rather than read it from memory.

    Anew, each further kernel does `ops` per element and reads the `leaf_bytes` it is computed from; stored, it is
    written once and read by all kernels but the one that computes it.
    """
    if leaf_bytes is None:
        return False
    again = (kernels - 1) * (leaf_bytes * PER_BYTE + ops * size)
    return again <= max(kernels * nbytes * PER_BYTE, LAUNCH)


def prologue(ops: float, size: int, nbytes: int, read: int | None) -> bool:
    """Whether a product computes an operand of `size` elements, `nbytes` large, from `read` bytes as it stages it."""
    saved = 0 if read is None else max(0, nbytes - read)
    return ops <= PROLOGUE + PROLOGUE_SAVED * PER_BYTE * saved / max(size, 1)


def repeat(times: int, ops: float, itemsize: int, size: int) -> bool:
    """Whether one kernel should compute a tensor's elements `times` times over rather than read it from memory."""
    extra = (times - 1) * ops
    return extra <= 3 * itemsize * PER_BYTE or extra * size <= LAUNCH
