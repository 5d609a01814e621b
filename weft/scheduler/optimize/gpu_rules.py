"""The rules for devices whose tasks are thread blocks: imported where there is one, as they are much code."""
# Tests: tests/scheduler/optimize/test_rules.py, tests/scheduler/optimize/test_refusals.py

from __future__ import annotations

from typing import Any

from weft.scheduler.optimize import gpu_contraction, gpu_grids, gpu_online, gpu_rows, levels
from weft.scheduler.optimize.rule import Rule

BLOCKS: tuple[Rule[Any, Any], ...] = (
    gpu_online.RULE,  # attention in one pass; before `gpu_contraction`, as on cores
    gpu_contraction.RULE,  # tiles on matrix units, in shared memory or in registers
    gpu_rows.RULE,  # a block for each row or several, with all that is computed of it
    gpu_grids.RULE,  # all other kernels: a grid for each item
)
"""Rules for kernels; see `rules.py`."""

AFTER_BLOCKS: tuple[Rule[Any, Any], ...] = (levels.RULE,)
"""Rules for what any of `BLOCKS` made."""
