"""Devices that are asked for, as users name them: a mesh, or names in a row, and how much memory each may take."""
# Tests: tests/core/compile/test_over_devices.py

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.args.axes import is_int
from weft.core.args.handle import describe
from weft.core.execute import meshes
from weft.core.sharding.device_mesh import DeviceMesh, made
from weft.errors import ArgumentError, DTypeError


def mesh_of(op: str, devices: Any) -> DeviceMesh:
    """The devices in a row; a mesh as it is."""
    if isinstance(devices, DeviceMesh):
        return devices
    names = names_of(op, devices)
    return DeviceMesh.of(made(op, names, (len(names),), None))


def names_of(op: str, devices: Any) -> list[str]:
    """The names in a list of names or devices; "cuda:*", all of a kind."""
    if isinstance(devices, str):
        kind, _, number = devices.partition(":")
        if number != "*":
            raise ArgumentError(
                f"{op}: devices is a list of names, a DeviceMesh, or all of a kind such as 'cuda:*', got {devices!r}"
            )
        devices = [f"{kind}:{k}" for k in range(meshes.count(kind))]
    names = [getattr(d, "name", d) for d in devices]
    if not names:
        raise ArgumentError(f"{op}: devices= names none: it needs one at least")
    for name in names:
        if not isinstance(name, str):
            raise DTypeError(f"{op}: devices: expected names of devices, or devices, got {describe(name)}")
    return names


def limit_of(op: str, memory: int | Mapping[str, int] | None, mesh: DeviceMesh) -> int | None:
    """The bytes that each device may take: the least that is given."""
    return min(limits_of(op, memory, mesh.devices).values(), default=None)


def limits_of(op: str, memory: int | Mapping[str, int] | None, names: Sequence[str]) -> dict[str, int]:
    """The bytes that devices may take, of those with a limit, by their full names."""
    if memory is None:
        return {}
    given = memory if isinstance(memory, Mapping) else dict.fromkeys(names, memory)
    found: dict[str, int] = {}
    for name, nbytes in given.items():
        full = name if ":" in name else f"{name}:0"
        if full not in names:
            raise ArgumentError(
                f"{op}: memory= has a limit for {name!r}, which is none of devices=: {', '.join(names)}"
            )
        if not is_int(nbytes) or nbytes < 0:
            raise ArgumentError(f"{op}: memory= is a number of bytes for {name!r}, got {nbytes!r}")
        found[full] = nbytes
    return found
