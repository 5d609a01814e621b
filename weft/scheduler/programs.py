"""Algorithms -> compiled programs, each distinct one once per process and device."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from weft import settings
from weft.backends.protocol import Code, Device, DeviceInfo
from weft.ir import dtypes
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import Kernel
from weft.ir.loops import Program
from weft.ir.math.expand import EXPANSIONS, WITHOUT_UINT64, expand
from weft.ir.ops import Op
from weft.ir.passes import pipeline
from weft.ir.passes.fma import contract
from weft.scheduler.disk_cache import store_image
from weft.scheduler.inplace import in_place_pairs
from weft.scheduler.optimize.rules import schedule
from weft.scheduler.supported import check_supported


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A program, its code, and the name of the image that it is in (None: it cannot be stored). `in_place`: (written,
    read) parameters that may be one memory."""

    program: Program
    code: Code
    image: str | None
    in_place: frozenset[tuple[int, int]]


PROGRAMS_KEPT = 4096
"""Programs in memory, for other plans that need them; the least recently used goes first."""

_lock = threading.Lock()
_compiled: OrderedDict[tuple[Algorithm, Device], Compiled] = OrderedDict()
_numbers = itertools.count()

Scheduler = Callable[[Algorithm, DeviceInfo], Kernel]


def lowered(algorithm: Algorithm, info: DeviceInfo, scheduler: Scheduler = schedule) -> Program:
    """The scheduled, lowered and optimized loops of an algorithm."""
    return optimized(lower(scheduler(algorithm, info)), info)


def optimized(program: Program, info: DeviceInfo) -> Program:
    """The loops that `info`'s device compiles. DTypeError or DeviceError where it cannot."""
    wide = dtypes.uint64 in info.dtypes
    program = expand(program, info.native, EXPANSIONS if wide else WITHOUT_UINT64)
    check_supported(program, info)
    passes = [p for p in pipeline.DEFAULT if p is not contract or Op.FMA in info.native]
    return pipeline.run(program, passes, settings.verify())


def compiled(algorithms: Sequence[Algorithm], device: Device) -> list[Compiled]:
    """Code for all algorithms; what is not there yet is compiled together."""
    with _lock:
        missing = [a for a in dict.fromkeys(algorithms) if (a, device) not in _compiled]
        if missing:
            plain = [lower(schedule(a, device.info)) for a in missing]
            programs = [replace(optimized(p, device.info), name=f"{p.name}_{next(_numbers)}") for p in plain]
            codes, image = device.compile(programs)
            at = store_image(image, [p.name for p in programs]) if image else None
            for a, p, program, code in zip(missing, plain, programs, codes, strict=True):
                # asked before loops were split, for one store: no pass reads an element later than it was read there
                _compiled[a, device] = Compiled(program, code, at, in_place_pairs(p))
        found = [_compiled[a, device] for a in algorithms]
        for a in dict.fromkeys(algorithms):
            _compiled.move_to_end((a, device))
        while len(_compiled) > PROGRAMS_KEPT:
            _compiled.popitem(last=False)
        return found
