"""Topologies of simulated farms: the link between each two devices, and the wires that a copy on it occupies.

A copy holds every wire of its way while its bytes are under way. Devices are numbers here; wires have names, and two
ways that share one take turns.
"""
# Tests: tests/backends/dummy/test_farm.py

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

from weft.backends.dummy.simulation import Resource, Simulation
from weft.backends.links import Link
from weft.backends.protocol import DeviceInfo
from weft.lazy_dataclass import dataclass


class Topology(Protocol):
    """A table of links, which may be worked out when it is asked."""

    def link(self, origin: int, target: int) -> Link:
        """The way from one device to another one."""
        ...


@dataclass(frozen=True, slots=True)
class Way:
    """A link as the simulation takes it."""

    latency_ns: float
    ns_per_byte: float
    resources: tuple[Resource, ...]


class Wiring:
    """The ways of one farm, each worked out when it is first taken. Without a topology, any two devices have a wire of
    their own, with the higher latency and the lower rate of their links to the host."""

    def __init__(self, simulation: Simulation, topology: Topology | None = None) -> None:
        self.simulation, self.topology = simulation, topology
        self._ways: dict[tuple[int, int], Way] = {}

    def link(self, origin: int, a: DeviceInfo, target: int, b: DeviceInfo) -> Link:
        """The link between two devices, by number and description."""
        if self.topology is not None:
            return self.topology.link(origin, target)
        rate = min(a.link_bandwidth, b.link_bandwidth)
        return Link(max(a.launch_ns, b.launch_ns) / 1e9, rate, (f"{origin}->{target}",))

    def way(self, origin: int, a: DeviceInfo, target: int, b: DeviceInfo) -> Way:
        """The way between two devices."""
        found = self._ways.get((origin, target))
        if found is None:
            found = self._ways[origin, target] = self.made(self.link(origin, a, target, b))
        return found

    def made(self, link: Link) -> Way:
        """A link as a way."""
        wires = tuple([self.simulation.resource(name) for name in dict.fromkeys(link.wires)])
        return Way(1e9 * link.alpha_s, 1e9 / link.bytes_per_second, wires)


def to_host(device: int) -> str:
    """The wire from a device to the host."""
    return f"{device}->host"


def from_host(device: int) -> str:
    """The wire from the host to a device."""
    return f"host->{device}"


@dataclass(frozen=True, slots=True)
class AllToAll:
    """A wire of its own in each direction between any two devices. `others` are the pairs whose link is another."""

    each: Link
    others: Mapping[tuple[int, int], Link] | None = None

    def link(self, origin: int, target: int) -> Link:
        """One wire."""
        found = self.each if self.others is None else self.others.get((origin, target), self.each)
        return found if found.wires else replace(found, wires=(f"{origin}->{target}",))


@dataclass(frozen=True, slots=True)
class Switch:
    """One port to a switch and one from it for each device: what a device sends takes turns, and what it receives."""

    each: Link

    def link(self, origin: int, target: int) -> Link:
        """Out by one port, in by another."""
        return replace(self.each, wires=(f"{origin}->switch", f"switch->{target}"))


@dataclass(frozen=True, slots=True)
class Ring:
    """Wires between neighbours only, in both directions; others are reached the shorter way around (forwards, where
    both are as long), each wire of which adds its latency."""

    count: int
    each: Link

    def link(self, origin: int, target: int) -> Link:
        """The wires of the shorter way."""
        forwards = (target - origin) % self.count
        step = 1 if 2 * forwards <= self.count else -1
        hops = forwards if step == 1 else self.count - forwards
        at = [(origin + step * k) % self.count for k in range(hops + 1)]
        wires = tuple([f"{a}->{b}" for a, b in pairwise(at)])
        return Link(self.each.alpha_s * hops, self.each.bytes_per_second, wires)


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of `size` devices, in each of which any two have wires of their own; between two groups, one wire in each
    direction, which all their pairs share."""

    size: int
    inside: Link
    between: Link

    def link(self, origin: int, target: int) -> Link:
        """A wire of its own, or that of the groups."""
        a, b = origin // self.size, target // self.size
        if a == b:
            return replace(self.inside, wires=(f"{origin}->{target}",))
        return replace(self.between, wires=(f"group {a}->group {b}",))


@dataclass(frozen=True, slots=True)
class FatTree:
    """Leaf switches of `size` devices, each with `uplinks` wires up to the root and as many down. Each device has one
    port out and one in. The target decides which uplink a copy takes (routing d-mod-k): those to different targets may
    go side by side. Fewer uplinks than devices are an oversubscribed tree.

    Source: Leiserson 1985, "Fat-trees"; Zahavi 2010, "D-Mod-K routing".
    """

    size: int
    uplinks: int
    inside: Link
    between: Link

    def link(self, origin: int, target: int) -> Link:
        """Two ports; between leaves, two uplinks more."""
        out, into = f"{origin}->leaf {origin // self.size}", f"leaf {target // self.size}->{target}"
        if origin // self.size == target // self.size:
            return replace(self.inside, wires=(out, into))
        k = target % self.uplinks
        up, down = f"leaf {origin // self.size} up {k}", f"leaf {target // self.size} down {k}"
        return replace(self.between, wires=(out, up, down, into))


@dataclass(frozen=True, slots=True)
class HostStaged:
    """No way but through the host's memory: a copy out, then a copy in, by one thread of the host, so that only one of
    all is under way."""

    up: Link
    down: Link

    def link(self, origin: int, target: int) -> Link:
        """One copy after the other."""
        rate = 1.0 / (1.0 / self.up.bytes_per_second + 1.0 / self.down.bytes_per_second)
        wires = (to_host(origin), "staging", from_host(target))
        return Link(self.up.alpha_s + self.down.alpha_s, rate, wires)


def all_to_all(each: Link, others: Mapping[tuple[int, int], Link] | None = None) -> Topology:
    """A wire of its own in each direction between any two devices; `others` for pairs (origin, target) with a link of
    their own, whose wires may be named, and so shared."""
    return AllToAll(each, others)


def switch(each: Link) -> Topology:
    """Devices at one switch: each has one port out and one in."""
    return Switch(each)


def ring(count: int, each: Link) -> Topology:
    """`count` devices in a circle, with a wire in each direction between neighbours."""
    return Ring(count, each)


def groups(size: int, inside: Link, between: Link) -> Topology:
    """Groups of `size` devices, with one wire in each direction between any two of them: hosts of a cluster, say."""
    return Groups(size, inside, between)


def fat_tree(size: int, inside: Link, between: Link | None = None, uplinks: int | None = None) -> Topology:
    """Leaves of `size` devices with `uplinks` wires up and down (as many as devices where None is given)."""
    return FatTree(size, size if uplinks is None else uplinks, inside, inside if between is None else between)


def host_staged(up: Link, down: Link | None = None) -> Topology:
    """Devices that reach one another through the host only."""
    return HostStaged(up, up if down is None else down)
