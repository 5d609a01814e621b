"""The times of a device's launches and copies, measured through the protocol alone, for a `DeviceInfo`.

plan     starting a plan of nothing, and waiting for it
launch   one more launch of a program that stores one element
copy     bytes read and written per second within the device's memory
upload   bytes per second from the host, download to it
"""

from __future__ import annotations

import time
from collections.abc import Callable

from weft.backends.protocol import Commands, CopyBytes, Device, Launch
from weft.ir.dtypes import int32
from weft.ir.expr import Const
from weft.ir.loops import Buffer, Program, Scope, Store
from weft.lazy_dataclass import dataclass

LARGE = 64 << 20
"""Bytes of one copy; less where the device has little memory."""

LAUNCHES = 200
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """The best of a few rounds: nanoseconds, and bytes per second."""

    plan_ns: float
    launch_ns: float
    copy: float
    upload: float
    download: float

    def __str__(self) -> str:
        return (
            f"plan {self.plan_ns / 1e3:.1f} us, launch {self.launch_ns:,.0f} ns, copies "
            f"{self.copy / 1e9:.1f} GB/s, from the host {self.upload / 1e9:.1f}, to it {self.download / 1e9:.1f}"
        )


def measure(device: Device, nbytes: int | None = None) -> Measured:
    """Time a few plans and copies of `nbytes` bytes (LARGE when None). What else runs on the device slows it
    down."""
    nbytes = min(
        LARGE if nbytes is None else nbytes, device.info.memory_bytes // 4, device.info.bounds.buffer_bytes
    )
    source, target, small = device.allocate(nbytes), device.allocate(nbytes), device.allocate(4)
    host = memoryview(bytearray(nbytes))
    one = Program(
        "one", (Buffer("y", int32, 1, Scope.GLOBAL),), frozenset("y"), (), (Store("y", 0, Const(int32, 1)),)
    )
    codes, _ = device.compile([one])
    empty = device.link(codes, Commands((), 1, (), 0))
    many = device.link(codes, Commands((Launch(0, (0,)),) * LAUNCHES, 1, (), 0))
    copy = device.link(codes, Commands((CopyBytes(1, 0, nbytes),), 2, (), 0))
    plan = _best(device, lambda: empty.run([small]))
    launches = _best(device, lambda: many.run([small]))
    device.write(source, host)  # touched once, and so mapped
    return Measured(
        plan_ns=plan,
        launch_ns=max(launches - plan, 0.0) / LAUNCHES,
        copy=2e9 * nbytes / _best(device, lambda: copy.run([source, target])),
        upload=1e9 * nbytes / _best(device, lambda: device.write(source, host)),
        download=1e9 * nbytes / _best(device, lambda: _fetched(device.read(target, nbytes), host)),
    )


def _fetched(data: memoryview, host: memoryview) -> None:
    """The bytes in the host's own memory: reading may have given a view only."""
    host[:] = data


def _best(device: Device, work: Callable[[], None]) -> float:
    """The fewest nanoseconds, of a few rounds, that work and waiting for it take. The first round does not count."""
    times: list[int] = []
    for _ in range(ROUNDS + 1):
        device.synchronize()
        start = time.perf_counter_ns()
        work()
        device.synchronize()
        times.append(time.perf_counter_ns() - start)
    return float(max(1, min(times[1:])))
