"""Algorithm -> program: scheduled for a device, lowered to loops, and these optimized."""
# Tests: tests/scheduler/test_realize.py, tests/scheduler/test_generalize.py

from __future__ import annotations

from collections.abc import Callable

from weft import settings
from weft.backends.protocol import DeviceInfo
from weft.ir import dtypes, numerics
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import Kernel
from weft.ir.loops import Program
from weft.ir.math.expand import EXPANSIONS, WITHOUT_UINT64, expand
from weft.ir.ops import Op
from weft.ir.passes import pipeline
from weft.ir.passes.fma import contract
from weft.ir.passes.pinned import fused, settle_products
from weft.ir.passes.quotients import divide_by_products
from weft.scheduler.inplace import in_place_pairs
from weft.scheduler.optimize.rules import schedule
from weft.scheduler.supported import check_supported

_IN_FMA = (contract, divide_by_products)
"""Passes that make multiply-adds."""

Scheduler = Callable[[Algorithm, DeviceInfo], Kernel]


def lowered(algorithm: Algorithm, info: DeviceInfo, scheduler: Scheduler = schedule) -> Program:
    """The scheduled, lowered and optimized loops of an algorithm."""
    with numerics.switched(algorithm.pinned):
        return optimized(lower(scheduler(algorithm, info)), info, algorithm.pinned)


def optimized(program: Program, info: DeviceInfo, pinned: bool = False) -> Program:
    """The loops that `info`'s device compiles, those of a `pinned` algorithm rounded as it says. DTypeError or
    DeviceError where it cannot."""
    wide = dtypes.uint64 in info.dtypes - info.emulated
    functions, native = EXPANSIONS if wide else WITHOUT_UINT64, info.native
    if pinned:  # functions of devices differ in their last bits
        functions, native = fused(functions), native & {Op.FMA}
    program = expand(program, native, functions)
    check_supported(program, info)
    if pinned:
        passes = [
            settle_products if p is contract else p for p in pipeline.DEFAULT if p is not divide_by_products
        ]
    else:
        passes = [p for p in pipeline.DEFAULT if p not in _IN_FMA or Op.FMA in info.native]
    return pipeline.run(program, passes, settings.verify())


def program_of(a: Algorithm, info: DeviceInfo) -> tuple[Program, frozenset[tuple[int, int]]]:
    """The program of an algorithm, and its (written, read) parameters that may be one memory."""
    with numerics.switched(a.pinned):  # in the thread that builds, too
        plain = lower(schedule(a, info))
        made = optimized(plain, info, a.pinned)
    # asked before loops are split, for one store: no pass reads an element later than it was read
    return made, in_place_pairs(plain)
