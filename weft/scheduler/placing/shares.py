"""Work that can be divided, and how many devices a limit needs.

speeds 1:2:3:4, 100 rows                  10, 20, 30, 40 rows
the same, 3 rows, 1 ms to start each      0, 0, 1, 2: a device that only costs time gets nothing
the same, 8,192 rows, in groups           816, 1632, 2464, 3280: kernels take rows in tiles
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

MAX_GROUP = 64
"""Units that a block is a multiple of: tiles of all cores come out even, and rows begin where cache lines do."""

MAX_GROUPED_LOSS = 0.005
"""The part of the time by which the slowest device may end later in groups. A tail of rows that fill no tile takes
1.6 % of the rows' own time where there are 819, and 0.6 % where there are 1,638 (simulated, 2026-11-24)."""


def shares(
    units: int,
    ns_per_unit: Sequence[float],
    fixed_ns: Sequence[float] | None = None,
    most: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Units for each device so that the last is done as early as possible; `most` limits what a device can have.

    A device takes fixed_ns + units * ns_per_unit; none has to take part. Too few places in all: ValueError.
    """
    fixed = list(fixed_ns or [0.0] * len(ns_per_unit))
    limits = [units] * len(fixed) if most is None else [min(units, n) for n in most]
    if sum(limits) < units:
        raise ValueError(f"{units} units do not fit on devices that take {limits}")
    ends = sorted(f + ns for f, ns in zip(fixed, ns_per_unit, strict=True))

    def done(by: float) -> list[int]:
        return [
            max(0, min(limit, int((by - f) / ns) if ns > 0 else limit)) if by >= f else 0
            for f, ns, limit in zip(fixed, ns_per_unit, limits, strict=True)
        ]

    low, high = 0.0, ends[-1] * max(1, units)
    for _ in range(60):  # to the last unit
        middle = (low + high) / 2
        low, high = (low, middle) if sum(done(middle)) >= units else (middle, high)
    given = done(low)
    ready = [
        (f + (n + 1) * ns, k) for k, (f, ns, n) in enumerate(zip(fixed, ns_per_unit, given, strict=True))
    ]
    heapq.heapify(ready)
    for _ in range(units - sum(given)):
        k = -1
        while k < 0 or given[k] >= limits[k]:
            k = heapq.heappop(ready)[1]
        given[k] += 1
        heapq.heappush(ready, (fixed[k] + (given[k] + 1) * ns_per_unit[k], k))
    return tuple(given)


def grouped(units: int, ns_per_unit: Sequence[float]) -> tuple[int, ...]:
    """As `shares`, in multiples of the largest group, a power of two, that hardly delays the end; what is left of the
    last group is one device's."""

    def end(parts: Sequence[int]) -> float:
        return max(n * ns for n, ns in zip(parts, ns_per_unit, strict=True))

    exact = shares(units, ns_per_unit)
    group = MAX_GROUP
    while group > 1:
        found = [group * n for n in shares(units // group, ns_per_unit)]
        rest = units % group
        k = min(range(len(found)), key=lambda k: (found[k] + rest) * ns_per_unit[k])
        found[k] += rest
        if end(found) <= (1 + MAX_GROUPED_LOSS) * end(exact):
            return tuple(found)
        group //= 2
    return exact


def bounds(parts: Sequence[int]) -> tuple[int, ...]:
    """The ends of consecutive blocks of these sizes, as `Shard` takes them."""
    ends: list[int] = []
    for n in parts:
        ends.append(n + (ends[-1] if ends else 0))
    return tuple(ends)


def least_devices(fits: Callable[[int], bool], most: int) -> int | None:
    """The least number of devices with which something fits, if more devices never need more; None beyond `most`."""
    high = 1
    while not fits(high):
        if high >= most:
            return None
        high = min(most, high * 2)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
