"""The cycles of a register tile of a product, for what chooses tiles and for what lays weights out for them."""
# Tests: tests/scheduler/optimize/test_contraction.py, tests/scheduler/test_panels.py

from __future__ import annotations

from weft.backends.costs import CostModel
from weft.backends.protocol import DeviceInfo


def tile_cycles(rows: int, vectors: int, lines: float, far: bool, costs: CostModel) -> float:
    """The cycles of a step of the sum for a tile: multiply-adds, or a dependent addition, and `lines` to fetch the
    stream's. Loads are nearly hidden, but where few rows use a vector of the panel, whose rest has left the first cache
    by then (`far`)."""
    least = max(costs.add_latency_cycles, vectors * (costs.l2_vector_cycles if far else 1.0))
    return max(vectors * rows, least) + costs.hidden_load_cycles * (vectors + rows) + lines


def most_rows(vectors: int, info: DeviceInfo) -> int:
    """The most rows of a tile whose accumulators, a row of the panel and one element of the stream are in registers."""
    return (info.vector_registers - 1) // vectors - 1
