"""Algorithms -> compiled programs, each distinct one once per process and class of devices.

What an earlier process compiled is found on disk, kernel by kernel: of a model of which one layer changed, only the
kernels of that layer are compiled.
"""
# Tests: tests/scheduler/test_realize.py

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import overload

from weft.backends.protocol import Code, Device, DeviceInfo, device_class
from weft.ir.forks import forkable
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.loops import Program
from weft.lazy_dataclass import dataclass
from weft.scheduler import kernel_cache
from weft.scheduler.disk_cache import store_image


@dataclass(frozen=True, slots=True, eq=False)
class CompiledProgram:
    """A program's name, the runtime variables that it takes, its code, and the name of the image that it is in (None:
    it cannot be stored). `in_place`: (written, read) parameters that may be one memory."""

    name: str
    variables: tuple[str, ...]
    code: Code
    image: str | None
    in_place: frozenset[tuple[int, int]]


PROGRAMS_KEPT = 2048
"""Programs in memory, for other plans that need them; the least recently used goes first."""

_lock = forkable(threading.Lock())
_compiled: OrderedDict[tuple[Algorithm, Hashable, bool], CompiledProgram] = OrderedDict()
"""By algorithm, class of devices, and whether plans keep these busy."""
_numbers = itertools.count()


def missing(algorithms: Sequence[Algorithm], device: Device) -> list[Algorithm]:
    """The distinct algorithms whose code is neither here nor on disk."""
    with _lock:
        return list(_missing(algorithms, device))


def _missing(
    algorithms: Sequence[Algorithm], device: Device, busy: bool = False
) -> dict[Algorithm, str | None]:
    """The distinct algorithms whose code is not here, after what is on disk was loaded; their names there."""
    found: dict[Algorithm, str | None] = {}
    kind = device_class(device)
    for a in dict.fromkeys(algorithms):
        if (a, kind, busy) in _compiled:
            continue
        key, kept = kernel_cache.found(a, device, busy)
        if kept is None:
            found[a] = key
        else:
            _compiled[a, kind, busy] = CompiledProgram(
                kept.name, kept.variables, kept.code, kept.image, kept.in_place
            )
    return found


class _Programs(Sequence[Program]):
    """The programs of algorithms, each made when it is first read: a device may compile those before meanwhile.
    `in_place`: of those made, the pairs of parameters that may be one memory."""

    def __init__(self, algorithms: Sequence[Algorithm], info: DeviceInfo) -> None:
        self._algorithms, self._info = algorithms, info
        self._made: list[Program] = []
        self.in_place: list[frozenset[tuple[int, int]]] = []

    def __len__(self) -> int:
        return len(self._algorithms)

    @overload
    def __getitem__(self, k: int) -> Program: ...
    @overload
    def __getitem__(self, k: slice) -> list[Program]: ...
    def __getitem__(self, k: int | slice) -> Program | list[Program]:
        if isinstance(k, slice):
            return [self[n] for n in range(*k.indices(len(self)))]
        number = range(len(self))[k]
        while len(self._made) <= number:
            self._make(self._algorithms[len(self._made)])
        return self._made[number]

    def __iter__(self) -> Iterator[Program]:
        """In a loop of its own: Sequence's ends at an IndexError, also at one of making a program."""
        for number in range(len(self)):
            yield self[number]

    def _make(self, a: Algorithm) -> None:
        # Here, since a process whose programs are all on disk needs no compiler.
        from weft.scheduler.lowering import program_of

        made, in_place = program_of(a, self._info)
        self._made.append(replace(made, name=f"{made.name}_{next(_numbers)}"))
        self.in_place.append(in_place)


def known(device: Device) -> list[Algorithm]:
    """The algorithms whose programs this process has for a device."""
    kind = device_class(device)
    with _lock:
        return [a for a, of, busy in _compiled if of == kind and not busy]


def compiled(
    algorithms: Sequence[Algorithm],
    device: Device,
    info: DeviceInfo | None = None,
    at_once: int | None = None,
) -> list[CompiledProgram]:
    """Code for all algorithms; what is neither here nor on disk yet is compiled together. `info`: the device as
    kernels of the plan find it, see `optimize.parallel.in_company`. `at_once`: the number of programs after which what
    is compiled is stored, so that a process that ends before the last one leaves the others; None: all."""
    kind, info = device_class(device), info or device.info
    busy = info is not device.info
    with _lock:
        new = list(_missing(algorithms, device, busy).items())
        most = at_once or max(1, len(new))
        for some in (new[k : k + most] for k in range(0, len(new), most)):
            programs = _Programs([a for a, _ in some], info)
            codes, image = device.compile(programs)
            at = store_image(image, [p.name for p in programs]) if image else None
            for (a, key), p, in_place, code in zip(some, programs, programs.in_place, codes, strict=True):
                variables = tuple([v.name for v in p.variables])
                made = CompiledProgram(p.name, variables, code, at, in_place)
                _compiled[a, kind, busy] = made
                if key is not None and at is not None:
                    kernel_cache.store(key, at, made.name, variables, made.in_place)
        found = [_compiled[a, kind, busy] for a in algorithms]
        for a in dict.fromkeys(algorithms):
            _compiled.move_to_end((a, kind, busy))
        while len(_compiled) > PROGRAMS_KEPT:
            _compiled.popitem(last=False)
        return found
