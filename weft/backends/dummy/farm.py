"""Farms: descriptions of simulated devices, of the links between them, and of what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, cast

from weft.backends.costs import CostModel
from weft.backends.dummy.faults import Faults
from weft.backends.dummy.links import Topology
from weft.backends.protocol import DeviceInfo
from weft.ir.ops import ELEMENTWISE
from weft.lazy_dataclass import dataclass


def costs(vector_bytes: int) -> CostModel:
    """The costs of the simulated clock, which counts elements: one takes as long wherever it lies, a lane's part of a
    multiply-add."""
    each = 4 / vector_bytes
    return CostModel(
        step_cycles=0.0,
        hidden_load_cycles=each,
        hidden_line_cycles=0.0,
        hidden_far_line_cycles=0.0,
        l2_element_cycles=each,
        copy_cycles=each,
        gather_cycles=each,
        scatter_store_cycles=each,
        seek_cycles=each,
    )


def describe(index: int, name: str = "dummy", **changes: Any) -> DeviceInfo:
    """The description of the dummy devices that are there by default, with other fields as given. Wide vectors make
    the interpreter quick."""
    changes.setdefault("costs", costs(changes.get("vector_bytes", 256)))
    return replace(
        DeviceInfo(
            name=f"{name}:{index}",
            kind=name,
            description="interpreter in NumPy, simulated",
            cores=4,
            vector_bytes=256,
            vector_registers=32,
            l1_bytes=32 << 10,
            l2_bytes=1 << 20,
            l3_bytes=16 << 20,
            memory_bytes=1 << 30,
            local_bytes=64 << 10,
            bandwidth=40e9,
            flops=200e9,
            launch_ns=1000.0,
            native=ELEMENTWISE,
            queues=4,
        ),
        **changes,
    )


@dataclass(frozen=True, slots=True)
class Farm:
    """Simulated devices as data.

    `topology` has the links between devices (`weft.testing.ring` and others make one); None: any two have a wire of
    their own. `issue_ns` is what the host takes to start a run or a copy. `timing_only`: nothing is computed and no
    memory is there; clocks move, bytes are counted, and programs and uses of memory are checked as ever. `faults`: by
    number of the device. `races`: see `DummyDevice`. `recorded`: keep all work for a timeline.
    """

    devices: tuple[DeviceInfo, ...]
    name: str = "farm"
    topology: Topology | None = None
    issue_ns: float = 0.0
    timing_only: bool = False
    faults: Mapping[int, Faults] = field(default_factory=dict[int, Faults])
    races: bool = False
    recorded: bool = True

    def __post_init__(self) -> None:
        for k, info in enumerate(self.devices):
            if info.name != f"{self.name}:{k}":
                raise ValueError(f"device {k} of the farm {self.name!r} is described as {info.name}")
        sizes: dict[str, int] = {}
        for info in self.devices:
            pool = info.memory_pool
            if sizes.setdefault(pool, info.memory_bytes) != info.memory_bytes:
                have = f"{sizes[pool]} and {info.memory_bytes}"
                raise ValueError(f"devices that share the pool {pool!r} differ in memory_bytes: {have}")
        if unknown := [k for k in self.faults if not 0 <= k < len(self.devices)]:
            raise ValueError(f"faults of device {unknown[0]} of a farm of {len(self.devices)}")

    @staticmethod
    def of(
        count: int,
        name: str = "farm",
        *,
        speeds: float | Sequence[float] = 1.0,
        memory_bytes: int | Sequence[int] = 1 << 30,
        pools: Sequence[str] | None = None,
        topology: Topology | None = None,
        issue_ns: float = 0.0,
        timing_only: bool = False,
        faults: Mapping[int, Faults] | None = None,
        races: bool = False,
        **description: Any,
    ) -> Farm:
        """`count` devices as `describe` has them, with other fields as given. A device of speed 2 computes, and moves
        bytes in its memory, in half the time. Devices with the same name in `pools` share one memory.

        >>> Farm.of(4, speeds=[1, 2, 3, 4]).devices[3].flops
        800000000000.0
        """
        base = describe(0, name, **description)

        def each(what: str, given: Any) -> Sequence[Any]:
            values = cast("Sequence[Any]", given if isinstance(given, Sequence) else [given] * count)
            if len(values) != count:
                raise ValueError(f"{what}: {len(values)} values for {count} devices")
            return values

        infos = [
            replace(
                base,
                name=f"{name}:{k}",
                flops=base.flops * speed,
                bandwidth=base.bandwidth * speed,
                memory_bytes=nbytes,
                pool=pool,
            )
            for k, (speed, nbytes, pool) in enumerate(
                zip(
                    each("speeds", speeds),
                    each("memory_bytes", memory_bytes),
                    each("pools", [""] * count if pools is None else pools),
                    strict=True,
                )
            )
        ]
        return Farm(tuple(infos), name, topology, issue_ns, timing_only, dict(faults or {}), races)
