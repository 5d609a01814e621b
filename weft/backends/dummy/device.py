"""Simulated devices: memory and queues of their own, a clock that runs as their description says, faults on demand.

    farm = DummyBackend([describe(k, name="farm", flops=1e12 * (k + 1)) for k in range(8)], name="farm")
    registry.register(farm)                  # weft.tensor(..., device="farm:7") from here on
    farm.device(0).faults = Faults(allocations=frozenset({2}))

Every use of memory, slots and queues is checked; what a real device would answer with garbage is a ValueError here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from weft._version import __version__
from weft.backends.boxes import BoxCopy, runs
from weft.backends.dummy.executable import DummyCode, DummyExecutable
from weft.backends.dummy.farm import Farm, describe
from weft.backends.dummy.faults import Faults
from weft.backends.dummy.links import Wiring, from_host, to_host
from weft.backends.dummy.pool import DummyMemory, Pool
from weft.backends.dummy.queues import DummyEvent, DummyQueue, Host
from weft.backends.dummy.simulation import Simulation
from weft.backends.links import Link
from weft.backends.protocol import Code, Commands, Device, DeviceInfo, Memory
from weft.backends.roofline import Limits, described
from weft.backends.timeline import Timeline
from weft.errors import DeviceError
from weft.ir.loops import Program
from weft.lazy_dataclass import dataclass


class DummyBackend:
    """Simulated devices, as many as descriptions are given, or as a farm describes. `races`: see DummyDevice."""

    def __init__(
        self, devices: Sequence[DeviceInfo] | Farm | None = None, name: str = "dummy", races: bool = False
    ) -> None:
        if isinstance(devices, Farm):
            farm = devices
        else:
            infos = [describe(k, name) for k in range(4)] if devices is None else devices
            farm = Farm(tuple(infos), name, races=races, recorded=False)
        self.farm, self.name = farm, farm.name
        self.host = Host(Simulation(farm.recorded), farm.issue_ns)
        wiring = Wiring(self.host.simulation, farm.topology)
        self.pools: dict[str, Pool] = {}
        self.devices: list[DummyDevice] = []
        for k, info in enumerate(farm.devices):
            pool = self.pools.get(info.memory_pool)
            if pool is None:
                pool = self.pools[info.memory_pool] = Pool(
                    info.memory_pool, info.memory_bytes, farm.timing_only
                )
            device = DummyDevice(info, farm.races, self.host, wiring, pool, k)
            if k in farm.faults:
                device.faults = replace(farm.faults[k])
            self.devices.append(device)

    def count(self) -> int:
        """The number of simulated devices."""
        return len(self.devices)

    def device(self, index: int) -> DummyDevice:
        """Device number `index`."""
        return self.devices[index]

    @property
    def names(self) -> list[str]:
        """The names of the devices."""
        return [d.info.name for d in self.devices]

    def timeline(self) -> Timeline:
        """The work of every resource since the beginning, or since `clear`; none where the farm is not recorded."""
        return self.host.simulation.timeline()

    @property
    def makespan_ns(self) -> float:
        """The simulated time from the beginning, or from `clear`, to the end of all work."""
        simulation = self.host.simulation
        return max(simulation.run(), self.host.ns) - simulation.origin_ns

    def peak_bytes(self) -> Mapping[str, int]:
        """The most bytes that were in use at once in each pool, since the beginning or since `clear`."""
        return {name: pool.peak_bytes for name, pool in self.pools.items()}

    def clear(self) -> None:
        """Wait for all that was started, and measure anew from here: the timeline, its length, and the peaks."""
        for device in self.devices:
            device.synchronize()
        self.host.simulation.clear(self.host.ns)
        for pool in self.pools.values():
            pool.peak_bytes = pool.used_bytes


@dataclass(slots=True)
class Clock:
    """Simulated time (that of the queue that is furthest), and what was done."""

    queues: Mapping[int, DummyQueue]
    launches: int = 0
    copied_bytes: int = 0

    @property
    def ns(self) -> float:
        """The time at which all that was started is done."""
        return max([q.ns for q in self.queues.values()], default=0.0)


class DummyDevice:
    """One simulated device: launches are executed at once, and timed by bytes / bandwidth + operations / flops.

    A launch takes `launch_ns` to begin, then it has the device for itself; copies to and from other devices go on
    beside it, and take the wires of their link.

    `races`: also refuse programs whose parallel iterations touch what others write (slow). `faults` may be replaced at
    any time. `pool`: None for one of its own.
    """

    def __init__(
        self,
        info: DeviceInfo,
        races: bool = False,
        host: Host | None = None,
        wiring: Wiring | None = None,
        pool: Pool | None = None,
        index: int = 0,
    ) -> None:
        self.info, self.races, self.index = info, races, index
        self.host = host or Host()
        self.wiring = wiring or Wiring(self.host.simulation)
        self.pool = pool or Pool(info.memory_pool, info.memory_bytes)
        self.faults = Faults()
        self.device_class = DummyDevice, replace(info, name="", description="", pool="", processor="")
        self.compute = (self.host.simulation.resource(info.name),)
        self._up, self._down = (
            self.wiring.made(Link(info.launch_ns / 1e9, info.link_bandwidth, (wire,)))
            for wire in (to_host(index), from_host(index))
        )
        self._queues: dict[int, DummyQueue] = {}
        self.clock = Clock(self._queues)

    @property
    def timing_only(self) -> bool:
        """True where nothing is computed: only clocks move."""
        return self.pool.empty

    def allocate(self, nbytes: int) -> DummyMemory:
        """Memory filled with garbage. MemoryError where the pool is exhausted, or told to be."""
        self.check()
        if self.faults.allocation_fails():
            raise MemoryError(f"{self.info.name} fails an allocation of {nbytes} bytes, as it was told to")
        if nbytes > self.info.bounds.buffer_bytes:
            raise MemoryError(
                f"{self.info.name} has memories of at most {self.info.bounds.buffer_bytes} bytes"
            )
        return self.pool.allocate(nbytes)

    def free(self, memory: Memory) -> None:
        """Give the bytes back now."""
        self.pool.free(memory)

    def part(self, memory: Memory, offset: int, nbytes: int) -> DummyMemory:
        """Bytes of a memory as one of its own."""
        return self.pool.part(memory, offset, nbytes)

    def used_bytes(self) -> int:
        """Bytes of the memories that live."""
        return self.pool.used_bytes

    def set_memory_limit(self, nbytes: int | None) -> None:
        """Refuse what would bring the bytes in use above this; None: what the device has."""
        self.pool.limit_bytes = self.info.memory_bytes if nbytes is None else nbytes

    def write(self, memory: Memory, data: memoryview, offset: int = 0, queue: int = 0) -> None:
        """Copy bytes from the host."""
        q, slower = self._begin(queue, "a copy to it")
        work, nbytes = q.start(), data.nbytes
        view = self.pool.view(memory, offset, nbytes, work, writes=True)
        if not self.timing_only:
            view[:] = np.frombuffer(data.cast("B"), np.uint8)
        way = self._down
        q.submit(work, "write", way.latency_ns, nbytes * way.ns_per_byte * slower, way.resources)

    def read(self, memory: Memory, nbytes: int, offset: int = 0, queue: int = 0) -> memoryview:
        """A copy of the bytes, after all work of the queue. DeviceError where only time is counted."""
        q, slower = self._begin(queue, "a copy from it", reads=True)
        work = q.start()
        view = self.pool.view(memory, offset, nbytes, work, writes=False)
        if self.timing_only and nbytes:
            raise DeviceError(f"{self.info.name} computes nothing (timing_only): there are no values to read")
        out = memoryview(view.tobytes())
        way = self._up
        q.submit(work, "read", way.latency_ns, nbytes * way.ns_per_byte * slower, way.resources)
        q.synchronize()
        return out

    def copy_from(self, memory: Memory, origin: Device, source: Memory, nbytes: int, queue: int = 0) -> bool:
        """Straight from another device of the same farm, on their link, after the work that made the source."""
        if not isinstance(origin, DummyDevice) or origin.host is not self.host:
            return False
        origin.check()
        q, slower = self._begin(queue, f"a copy from {origin.info.name}")
        made = origin.pool.live(source).writer
        if made is not None and origin is not self:
            q.wait(made)
        work = q.start()
        data = origin.pool.view(source, 0, nbytes, work, writes=False)
        self.pool.view(memory, 0, nbytes, work, writes=True)[:] = data.copy()
        self._move(q, work, origin, nbytes * slower)
        return True

    def copy_box(self, memory: Memory, origin: Device, source: Memory, copy: BoxCopy, queue: int = 0) -> bool:
        """Straight from another device of the same farm, on their link, after what the queue waits for only."""
        if not isinstance(origin, DummyDevice) or origin.host is not self.host:
            return False
        origin.check()
        start, end = copy.source.offset, copy.target.offset
        q, slower = self._begin(queue, f"a copy from {origin.info.name}")
        work = q.start()
        data = origin.pool.view(source, start, copy.source_end - start, work, writes=False)
        room = self.pool.view(memory, end, copy.target_end - end, work, writes=True)
        if not self.timing_only:
            runs(room, copy.target, copy, end)[...] = runs(data, copy.source, copy, start).copy()
        self._move(q, work, origin, copy.nbytes * slower)
        return True

    def _move(self, queue: DummyQueue, work: DummyEvent, origin: DummyDevice, nbytes: float) -> None:
        """Let the time of a copy of so many bytes pass: on the link, or within the pool that both share."""
        name = f"{origin.info.name} to {self.info.name}"
        if origin.pool is self.pool:
            queue.submit(work, name, self.info.launch_ns, 2e9 * nbytes / self.info.bandwidth, self.compute)
        else:
            way = self.wiring.way(origin.index, origin.info, self.index, self.info)
            queue.submit(work, name, way.latency_ns, nbytes * way.ns_per_byte, way.resources)

    def link_to(self, other: Device) -> Link | None:
        """The link to a device of the same farm, or to the host."""
        if isinstance(other, DummyDevice) and other.host is self.host:
            if other.pool is self.pool:
                return Link(self.info.launch_ns / 1e9, self.info.bandwidth / 2, (self.info.name,))
            return self.wiring.link(self.index, self.info, other.index, other.info)
        return self._host_link(other, to_host(self.index))

    def link_from(self, other: Device) -> Link | None:
        """The link from the host."""
        return self._host_link(other, from_host(self.index))

    def _host_link(self, other: Device, wire: str) -> Link | None:
        if not other.info.host_memory:
            return None
        return Link(self.info.launch_ns / 1e9, self.info.link_bandwidth, (wire,))

    def queue(self, number: int = 0) -> DummyQueue:
        """Queue number `number`."""
        if number not in self._queues:
            if not 0 <= number < self.info.queues:
                raise ValueError(
                    f"{self.info.name} has {self.info.queues} queues: there is no queue {number}"
                )
            self._queues[number] = DummyQueue(f"queue {number} of {self.info.name}", self.host, self.check)
        return self._queues[number]

    def queues(self) -> list[DummyQueue]:
        """The queues that were asked for."""
        return list(self._queues.values())

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[DummyCode], bytes]:
        """The programs as they are; there is nothing to store. DeviceError for more buffers than the device binds."""
        most = self.info.bounds.parameters
        for p in programs:
            if len(p.params) > most:
                raise DeviceError(
                    f"{self.info.name} binds {most} buffers at most; {p.name} has {len(p.params)}"
                )
        return [DummyCode(p) for p in programs], b""

    def load(self, image: bytes, names: Sequence[str]) -> Sequence[DummyCode]:
        """ValueError: dummy devices make no images."""
        raise ValueError(f"no image of {', '.join(names)} is this device's")

    def fingerprint(self) -> str:
        """The interpreter's version."""
        return f"dummy {__version__}"

    def listings(self, program: Program) -> Mapping[str, str]:
        """Nothing is made of a program but its loops."""
        return {}

    def limits(self) -> Limits:
        """The limits that the clock goes by."""
        return described(self.info)

    def link(self, codes: Sequence[Code], commands: Commands) -> DummyExecutable:
        """The commands, to be interpreted. ValueError where they name what is not there."""
        return DummyExecutable(self, [_own(c) for c in codes], commands)

    def synchronize(self) -> None:
        """The host has waited for all queues."""
        for q in self.queues():
            q.synchronize()

    def check(self) -> None:
        """DeviceError where the device is lost."""
        if self.faults.lost:
            raise DeviceError(f"{self.info.name} was lost at step {self.faults.lost_at}")

    def copying(self, what: str, reads: bool = False) -> float:
        """Count a copy: how many times slower than usual it is. DeviceError where it is to fail."""
        failure, slower = self.faults.copy(reads)
        if failure is not None:
            raise DeviceError(f"{self.info.name}: {what} {failure}")
        return slower

    def _begin(self, queue: int, what: str, reads: bool = False) -> tuple[DummyQueue, float]:
        """The queue for a copy that the host starts, and how many times slower than usual it is."""
        q = self.queue(queue)
        self.host.issue("copy")
        return q, self.copying(what, reads)


def _own(code: Code) -> DummyCode:
    if not isinstance(code, DummyCode):
        raise ValueError(f"{type(code).__name__} is not code of a dummy device")
    return code
