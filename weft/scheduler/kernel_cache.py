"""Kernels on disk: which image has the code of an algorithm, by which name.

A kernel is found by everything its code depends on: the algorithm, the device with its driver and compiler, and weft's
own sources. So where one layer of a model has changed, only that layer's kernels are scheduled and compiled. What is
not there may have come with weft (see `weft.pack`), compiled for a level of processors that this one belongs to.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence, Set

from weft import disk_cache, pack, settings
from weft.backends.protocol import Code, Device, Levelled
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.digest import digest
from weft.lazy_dataclass import dataclass
from weft.scheduler.disk_cache import device_key, image_codes


@dataclass(frozen=True, slots=True)
class Kept:
    """A kernel's code, as `programs.CompiledProgram` has it."""

    name: str
    variables: tuple[str, ...]
    code: Code
    image: str
    in_place: frozenset[tuple[int, int]]


def found(algorithm: Algorithm, device: Device, busy: bool = False) -> tuple[str | None, Kept | None]:
    """The name of the algorithm's code on disk, for plans that keep all cores `busy` or others, and the code, if it is
    there or came with weft. No name where none is kept, nothing at all while verifying."""
    if settings.verify():
        return None, None
    kept = settings.cache_dir() is not None
    levels = () if busy or not isinstance(device, Levelled) else device.levels
    if not kept and not levels:
        return None, None
    algorithm_name = digest(algorithm)
    if levels and pack.opened() is not None:
        for level in levels:  # before the disk, which takes longer to say that it lacks something
            code = _packed(packed_key(algorithm_name, level), device)
            if code is not None:
                return None, code
    if not kept:
        return None, None
    plans = ("busy",) if busy else ()
    key = disk_cache.digest(algorithm_name, device_key(device), disk_cache.compiler(), *plans)
    return key, load(key, device)


def packed_key(algorithm: str, level: str) -> str:
    """The name in a pack of an algorithm's code for a level, by the algorithm's digest."""
    return disk_cache.digest("packed", algorithm, level)


def store(key: str, image: str, name: str, variables: Sequence[str], in_place: Set[tuple[int, int]]) -> None:
    """Keep where a kernel's code is: in which image, by which name."""
    disk_cache.put("kernel", key, record(key, image, name, variables, in_place))


def record(
    key: str, image: str, name: str, variables: Sequence[str], in_place: Set[tuple[int, int]]
) -> bytes:
    """The entry of a kernel, on disk or in a pack."""
    fields = {"key": key, "image": image, "name": name, "variables": variables, "in_place": sorted(in_place)}
    return json.dumps(fields, separators=(",", ":")).encode()


def load(key: str, device: Device) -> Kept | None:
    """The kernel called `key` on disk, if its record and its image are there and whole."""
    data = disk_cache.get("kernel", key)
    kept = None if data is None else _kept(data, key, device)
    if data is not None and kept is None:
        disk_cache.discard("kernel", key)
    return kept


def _packed(key: str, device: Device) -> Kept | None:
    """The kernel called `key` that came with weft."""
    data = pack.get("kernel", key)
    return None if data is None else _kept(data, key, device)


def _kept(data: bytes, key: str, device: Device) -> Kept | None:
    """The kernel of a record; None where something about it is wrong."""
    try:
        fields = json.loads(data)
        if fields["key"] != key:
            raise ValueError("a kernel of another name")
        image, name = str(fields["image"]), str(fields["name"])
        code = image_codes(image, device)[name]
        in_place = frozenset([(int(w), int(r)) for w, r in fields["in_place"]])
        return Kept(name, tuple(map(str, fields["variables"])), code, image, in_place)
    except (ValueError, KeyError, TypeError, IndexError, struct.error):
        return None
