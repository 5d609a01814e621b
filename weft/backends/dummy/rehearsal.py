"""Rehearsals: a plan on a farm in times and bytes alone, before there are devices, programs or memories.

r = Rehearsal(Farm.of(2, topology=ring(2, link)))
a = r.kernel(0, 8_000.0, name="product")
b = r.copy(0, 1, 4 << 20, after=[a])
r.memory(1, 4 << 20, b, [r.kernel(1, 5_000.0, after=[b])])
r.makespan_ns, r.peak_bytes(), r.timeline()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from weft.backends.dummy.farm import Farm
from weft.backends.dummy.links import Wiring
from weft.backends.dummy.simulation import Operation, Simulation
from weft.backends.timeline import Timeline


class Rehearsal:
    """Operations on the devices and wires of a farm, by the rules of its devices: see `simulation`. Order is only what
    `after` says."""

    def __init__(self, farm: Farm) -> None:
        self.farm = farm
        self._simulation = Simulation(recorded=farm.recorded)
        self._wiring = Wiring(self._simulation, farm.topology)
        self._compute = [(self._simulation.resource(info.name),) for info in farm.devices]
        self._memories: list[tuple[str, int, Operation, tuple[Operation, ...]]] = []

    def kernel(
        self, device: int, busy_ns: float, after: Sequence[Operation] = (), name: str = "kernel"
    ) -> Operation:
        """A launch that occupies the device for `busy_ns`, after its `launch_ns`."""
        latency = self.farm.devices[device].launch_ns
        return self._simulation.submit(name, latency, busy_ns, self._compute[device], after)

    def copy(
        self, origin: int, target: int, nbytes: int, after: Sequence[Operation] = (), name: str = "copy"
    ) -> Operation:
        """A copy on the link between two devices; between those of one pool, by the target in its memory."""
        a, b = self.farm.devices[origin], self.farm.devices[target]
        if a.memory_pool == b.memory_pool:
            return self.kernel(target, 2e9 * nbytes / b.bandwidth, after, name)
        way = self._wiring.way(origin, a, target, b)
        return self._simulation.submit(name, way.latency_ns, nbytes * way.ns_per_byte, way.resources, after)

    def memory(self, device: int, nbytes: int, first: Operation, last: Sequence[Operation] = ()) -> None:
        """Bytes of the device's pool, taken when `first` begins, its latency included, and given back when all of
        `last` are done; without any, never."""
        self._memories.append((self.farm.devices[device].memory_pool, nbytes, first, tuple(last)))

    @property
    def makespan_ns(self) -> float:
        """The end of the last operation."""
        return self._simulation.run()

    def peak_bytes(self) -> Mapping[str, int]:
        """The most bytes at once in each pool. What ends and what begins at the same time are never there together."""
        self._simulation.run()
        changes: list[tuple[str, float, int]] = []
        for pool, nbytes, first, last in self._memories:
            changes.append((pool, first.begin_ns - first.latency_ns, nbytes))
            if last:
                changes.append((pool, max(x.end_ns for x in last), -nbytes))
        peaks = {info.memory_pool: 0 for info in self.farm.devices}
        for pool, rows in groupby(sorted(changes), key=lambda row: row[0]):
            used = 0
            for _, _, change in rows:
                used += change
                peaks[pool] = max(peaks[pool], used)
        return peaks

    def timeline(self) -> Timeline:
        """The work of every resource."""
        return self._simulation.timeline()
