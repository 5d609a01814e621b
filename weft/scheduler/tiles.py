"""The cycles of a register tile of a product, for what chooses tiles and for what lays weights out for them."""
# Tests: tests/scheduler/optimize/test_contraction.py, tests/scheduler/test_panels.py

from __future__ import annotations

from weft.backends.costs import CostModel
from weft.backends.protocol import DeviceInfo

L2_SHARE = 1.5
"""The time of a vector from the second cache, beside loads of other things, over that of one alone."""


def tile_cycles(rows: int, vectors: int, panel: float, stream: float, costs: CostModel) -> float:
    """The cycles of a step of the sum for a tile: multiply-adds, or a dependent addition, and what these do not hide of
    loads, of the `panel`'s lines where it has left the first cache (0 where it has not), and of the stream's, `stream`
    cycles."""
    least = max(costs.add_latency_cycles, vectors * (L2_SHARE * costs.l2_vector_cycles if panel else 1.0))
    loads = costs.hidden_load_cycles * (vectors + rows) + costs.hidden_line_cycles * panel
    return max(vectors * rows, least) + costs.step_cycles + loads + stream


def most_rows(vectors: int, info: DeviceInfo) -> int:
    """The most rows of a tile whose accumulators, a row of the panel and one element of the stream are in registers,
    with one to spare: without it compilers move accumulators to memory and back, at each step."""
    return max((info.vector_registers - 2) // vectors - 1, 1)
