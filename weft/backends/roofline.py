"""The most that a device can do: the ceiling that a kernel's speed is measured against (a roofline).

    time >= max(flops / peak,  read / rate of reading,  (read + written) / rate of moving)

with the rates of the nearest memory level that holds what the kernel touches (Williams, Waterman & Patterson 2009,
"Roofline: an insightful visual performance model").
"""
# Tests: tests/backends/cpu/test_roofline.py

from __future__ import annotations

import json
from dataclasses import asdict

from weft.backends.protocol import DeviceInfo
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """A level of memory that holds `capacity` bytes with ease: bytes per second of loops that only read (`read`), and
    of loops that copy as well as can be done, counting what they read and what they write (`copy`)."""

    name: str
    capacity: float
    read: float
    copy: float

    def seconds(self, read: float, written: float) -> float:
        """The least time in which so many bytes are read and written here."""
        return max(read / self.read, (read + written) / max(self.copy, self.read))


@dataclass(frozen=True, slots=True)
class Peak:
    """Operations per second on one dtype (a multiply-add is two), and where the number is from: "measured", or a
    sentence that says what it follows from."""

    dtype: str
    operations_per_second: float
    source: str


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time that a kernel can take, and what sets it: "compute", or the name of a memory level."""

    seconds: float
    by: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Floating-point operations per second (float32, multiply-add counted as two) and memory levels, nearest first, of
    `threads` threads together. `measured`: by loops that do nothing else; otherwise taken from the description. `peaks`
    are the operations per second on other dtypes, each with its source."""

    flops: float
    levels: tuple[Level, ...]
    threads: int
    measured: bool
    peaks: tuple[Peak, ...] = ()

    def peak(self, dtype: str) -> float:
        """Operations per second on a dtype; those on float32 where nothing else is known."""
        return next((p.operations_per_second for p in self.peaks if p.dtype == dtype), self.flops)

    def bound(self, flops: float, read: float, written: float, dtype: str = "float32") -> Bound:
        """The least time for a kernel that computes `flops` operations on `dtype`, reads and writes so many bytes."""
        level = next((x for x in self.levels if read + written <= x.capacity), self.levels[-1])
        moving, computing = level.seconds(read, written), flops / self.peak(dtype)
        return Bound(computing, "compute") if computing >= moving else Bound(moving, level.name)

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        origin = f"measured on this machine, {threads}" if self.measured else "as described, not measured"
        rates = "; ".join(
            f"{x.name} {x.read / 1e9:.1f} GB/s read, {x.copy / 1e9:.1f} copied" for x in self.levels
        )
        others = "".join(
            f", {p.operations_per_second / 1e9:.1f} ({p.dtype})" for p in self.peaks if p.dtype != "float32"
        )
        return f"{self.flops / 1e9:.1f} GFLOP/s (float32){others}; {rates} ({origin})"


def described(info: DeviceInfo, peaks: tuple[Peak, ...] = ()) -> Limits:
    """The limits in a device's description, where nothing has been measured."""
    memory = Level("memory", float("inf"), info.bandwidth, info.bandwidth)
    return Limits(info.flops, (memory,), info.cores, False, peaks)


def to_json(limits: Limits) -> bytes:
    """For keeping on disk."""
    return json.dumps(asdict(limits)).encode()


def from_json(data: bytes) -> Limits:
    """Read what `to_json` wrote; ValueError for anything else."""
    try:
        d = json.loads(data)
        levels = tuple(
            [
                Level(str(x["name"]), float(x["capacity"]), float(x["read"]), float(x["copy"]))
                for x in d["levels"]
            ]
        )
        peaks = tuple(
            [Peak(str(p["dtype"]), float(p["operations_per_second"]), str(p["source"])) for p in d["peaks"]]
        )
        return Limits(float(d["flops"]), levels, int(d["threads"]), bool(d["measured"]), peaks)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not limits: {error}") from error
