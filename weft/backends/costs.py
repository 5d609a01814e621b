"""Costs that schedules are compared by: the time one core of a device takes, and the layout of its caches.

A cycle is the time in which a core starts one multiply-add of vectors; only ratios matter, so one model serves machines
of one kind. `python -m benchmarks.costs` fits it to the machine at hand; the cpu takes what that has kept.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import Any, cast

from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class CostModel:
    """The facts about one core that schedule rules count with.

    The defaults were measured on Zen 4 (AVX-512), one thread, 2026-11-21, unless a line says otherwise: the decisions
    in `manuals/decisions` have the kernels and the times.
    """

    add_latency_cycles: float = 4.0
    """From one addition to the next that depends on it. Source: Fog, instruction tables, of Zen and Skylake."""

    step_cycles: float = 0.8
    """A step of a sum beside its multiply-adds: the index, the branch. Source: decision 174."""

    hidden_load_cycles: float = 0.25
    """A load that the multiply-adds beside it nearly hide. Source: decision 174."""

    hidden_line_cycles: float = 0.05
    """A line from the second cache that the multiply-adds beside it nearly hide. Source: decision 174."""

    hidden_far_line_cycles: float = 3.5
    """A line from behind the second cache that the multiply-adds beside it partly hide. Source: decision 174."""

    far_line_cycles: float = 20.0
    """A line from behind the second cache, where steps lead from line to line and nothing foresees the next. Source:
    decision 184."""

    vector_load_cycles: float = 0.6
    """A vector from the first cache, where nothing hides it. Source: decision 033."""

    l2_vector_cycles: float = 2.0
    """A vector from the second cache, in order. Source: decision 042."""

    l2_element_cycles: float = 4.0
    """One element from the second cache, each on a line of its own. Source: decision 042."""

    copy_cycles: float = 0.15
    """To move one element to a place that is contiguous along the lanes, as it was before. Source: decision 042."""

    gather_cycles: float = 2.5
    """To move one element that was not, in blocks that stay in the first cache. Source: decision 042."""

    scatter_store_cycles: float = 20.0
    """To store one element when neither lanes nor rows of a tile are contiguous in the output. Source: decision 042."""

    seek_cycles: float = 4.0
    """To find one element whose index divides, or that is guarded. Source: decision 032."""

    call_cycles: float = 0.5
    """One operation on a vector. Source: decision 033."""

    function_cycles: float = 12.0
    """One function such as an exponential on a vector. Source: decision 033."""

    lane_sum_cycles: float = 10.0
    """To add up one vector across its lanes. Source: decision 033."""

    wake_ns: float = 20_000.0
    """Work of one core that is worth waking others for. Source: two Zen 4 cores, 2026-11-21."""

    join_ns: float = 4_000.0
    """Work of one core that is worth sharing with others that are awake. Source: decision 134."""

    prefetch_bytes: int = 2048
    """Bytes that memory delivers while one access waits: the distance of prefetches. Source: decision 019."""

    line_bytes: int = 64
    """Bytes of a cache line. Source: all CPUs of the x86-64-v3 level."""

    cache_ways: int = 8
    """Lines of one set of the second cache. Source: as above; some have more, which costs nothing."""

    min_overrun_bytes: int = 512
    """The shortest row whose end the hardware's prefetching runs into; of shorter ones all is one run. Source: decision
    042."""

    max_overrun_bytes: int = 2560
    """The longest: it follows rows that are longer. Source: decision 042."""

    def sets(self, cache_bytes: int, ways: int) -> int:
        """Sets of a cache."""
        return max(cache_bytes // (self.line_bytes * ways), 1)


def to_json(costs: CostModel) -> bytes:
    """For the cache folder."""
    return json.dumps(asdict(costs)).encode()


def from_json(data: bytes) -> CostModel:
    """Read what `to_json` made. ValueError for anything else."""
    found: Any = json.loads(data)
    numbers = cast("dict[str, Any]", found if isinstance(found, dict) else {})
    if {n: type(v) for n, v in numbers.items()} != {f.name: type(f.default) for f in fields(CostModel)}:
        raise ValueError("not the numbers of a cost model")
    if not all(math.isfinite(v) and v > 0 for v in numbers.values()):
        raise ValueError("costs are positive")
    return CostModel(**numbers)
