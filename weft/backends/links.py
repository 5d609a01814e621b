"""Links: the time that a copy from one device's memory to another's takes.

    seconds = alpha_s + nbytes / bytes_per_second

Simulated devices state theirs. Those of others are measured once for each pair, by copies of 1 KiB to 64 MiB, and kept
on disk for the machine. Source: Hockney 1994, "The communication challenge for MPP".
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast, runtime_checkable

from weft import disk_cache
from weft.backends.protocol import Device, Memory
from weft.lazy_dataclass import dataclass

SIZES = tuple(1 << k for k in range(10, 27, 2))
"""Bytes of the copies that are timed: 1 KiB to 64 MiB."""

ROUND_NS = 2_000_000
"""Each size is copied for so long, three times at least: the best counts."""

LINKS_KEPT = 1024


@dataclass(frozen=True, slots=True)
class Link:
    """A way from one memory to another: the seconds before the first byte, and the rate after it.

    `wires` are what a copy occupies while its bytes are under way: links that name the same wire take turns.
    """

    alpha_s: float
    bytes_per_second: float
    wires: tuple[str, ...] = ()

    def seconds(self, nbytes: int) -> float:
        """The time of a copy that waits for nothing."""
        return self.alpha_s + nbytes / self.bytes_per_second


@runtime_checkable
class Linked(Protocol):
    """A device that states its links, as simulated ones do. Optional."""

    def link_to(self, other: Device) -> Link | None:
        """The way from this device's memory to that of `other`; None where nothing is stated."""
        ...

    def link_from(self, other: Device) -> Link | None:
        """The way from the memory of `other` to this device's; None where nothing is stated."""
        ...


_known: dict[tuple[Device, Device], Link] = {}


def links(origin: Device, target: Device) -> Link:
    """The link from one device to another: stated by either, else measured on this machine, once.

    Measuring takes about a tenth of a second, and two memories of at most 64 MiB.
    """
    link = _told(origin, target)
    if link is None:
        link = measured(origin, target)
        disk_cache.put("links", _key(origin, target), to_json(link))
        _keep(origin, target, link)
    return link


def estimated(origin: Device, target: Device) -> Link:
    """The link from one device to another: stated, or measured before, else by what the devices' descriptions say."""
    link = _told(origin, target)
    if link is None:
        ends = origin.info, target.info
        link = Link(max(e.launch_ns for e in ends) / 1e9, min(e.link_bandwidth for e in ends))
    return link


def _told(origin: Device, target: Device) -> Link | None:
    """The link that either device states, or that was measured on this machine."""
    stated = origin.link_to(target) if isinstance(origin, Linked) else None
    if stated is None and isinstance(target, Linked):
        stated = target.link_from(origin)
    if stated is None:
        stated = _known.get((origin, target))
    if stated is None:
        try:
            stated = from_json(disk_cache.get("links", _key(origin, target)) or b"")
        except ValueError:
            return None
        _keep(origin, target, stated)
    return stated


def _keep(origin: Device, target: Device, link: Link) -> None:
    while len(_known) >= LINKS_KEPT:
        del _known[next(iter(_known))]
    _known[origin, target] = link


def _key(origin: Device, target: Device) -> str:
    """The name of a link on disk: both devices, their drivers and places."""
    return disk_cache.digest(
        "links 1", *(x for d in (origin, target) for x in (d.info.name, d.info.description, d.fingerprint()))
    )


def measured(origin: Device, target: Device) -> Link:
    """The link, from the best times of copies of several sizes. What else runs on the devices slows it down."""
    room = min(
        min(d.info.bounds.buffer_bytes, d.info.memory_bytes // (8 if origin is target else 4))
        for d in (origin, target)
    )
    sizes = [n for n in SIZES if n <= room] or [max(room, 1)]
    source, there = origin.allocate(sizes[-1]), target.allocate(sizes[-1])
    try:
        origin.write(source, memoryview(bytes(sizes[-1])))  # touched once, and so mapped
        copy = _way(origin, source, target, there)
        copy(sizes[-1])
        return fit({n: _best_ns(copy, n) / 1e9 for n in sizes})
    finally:
        origin.free(source)
        target.free(there)


def _way(origin: Device, source: Memory, target: Device, there: Memory) -> Callable[[int], None]:
    """A function that copies the first bytes and waits: straight where that is possible, else through the host."""

    def straight(nbytes: int) -> None:
        target.copy_from(there, origin, source, nbytes)
        target.synchronize()

    def staged(nbytes: int) -> None:
        target.write(there, origin.read(source, nbytes))
        target.synchronize()

    return straight if target.copy_from(there, origin, source, 1) else staged


def _best_ns(copy: Callable[[int], None], nbytes: int) -> int:
    times: list[int] = []
    while len(times) < 3 or sum(times) < ROUND_NS:
        start = time.perf_counter_ns()
        copy(nbytes)
        times.append(max(1, time.perf_counter_ns() - start))
    return min(times)


def fit(seconds: Mapping[int, float]) -> Link:
    """The link that comes nearest to these times by bytes: least squares of relative errors, alpha not negative."""
    s1 = sn = snn = st = snt = 0.0  # sums over the sizes n of 1, n, n^2, t, n t, each over t^2
    for n, t in seconds.items():
        w = 1.0 / (t * t)
        s1, sn, snn, st, snt = s1 + w, sn + w * n, snn + w * n * n, st + w * t, snt + w * n * t
    size = s1 * snn - sn * sn
    alpha = (snn * st - sn * snt) / size if size > 0 else 0.0
    beta = (s1 * snt - sn * st) / size if size > 0 else 0.0
    if alpha < 0 or beta <= 0:
        alpha, beta = 0.0, snt / snn
    return Link(alpha, 1.0 / beta)


def to_json(link: Link) -> bytes:
    """For keeping on disk."""
    return json.dumps({"alpha_s": link.alpha_s, "bytes_per_second": link.bytes_per_second}).encode()


def from_json(data: bytes) -> Link:
    """Read what `to_json` wrote; ValueError for anything else."""
    try:
        found = cast("dict[str, Any]", json.loads(data))
        alpha, rate = float(found["alpha_s"]), float(found["bytes_per_second"])
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a link: {error}") from error
    if not (math.isfinite(alpha) and alpha >= 0 and math.isfinite(rate) and rate > 0):
        raise ValueError(f"not a link: {found}")
    return Link(alpha, rate)
