"""Kernels on disk: which image has the code of an algorithm, by which name.

A kernel is found by everything its code depends on: the algorithm, the device with its driver and compiler, and weft's
own sources. So where one layer of a model has changed, only that layer's kernels are scheduled and compiled.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence, Set

from weft import disk_cache, settings
from weft.backends.protocol import Code, Device
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


def key_of(algorithm: Algorithm, device: Device, busy: bool = False) -> str | None:
    """The name of the algorithm's code on disk, for plans that keep all cores `busy` or others; None where none is
    kept."""
    if settings.verify() or settings.cache_dir() is None:
        return None
    plans = ("busy",) if busy else ()
    return disk_cache.digest(digest(algorithm), device_key(device), disk_cache.compiler(), *plans)


def store(key: str, image: str, name: str, variables: Sequence[str], in_place: Set[tuple[int, int]]) -> None:
    """Keep where a kernel's code is: in which image, by which name."""
    record = {"key": key, "image": image, "name": name, "variables": variables, "in_place": sorted(in_place)}
    disk_cache.put("kernel", key, json.dumps(record, separators=(",", ":")).encode())


def load(key: str, device: Device) -> Kept | None:
    """The kernel called `key`, if its record and its image are there and whole."""
    data = disk_cache.get("kernel", key)
    if data is None:
        return None
    try:
        record = json.loads(data)
        if record["key"] != key:
            raise ValueError("a kernel of another name")
        image, name = str(record["image"]), str(record["name"])
        code = image_codes(image, device)[name]
        in_place = frozenset([(int(w), int(r)) for w, r in record["in_place"]])
        return Kept(name, tuple(map(str, record["variables"])), code, image, in_place)
    except (ValueError, KeyError, TypeError, IndexError, struct.error):
        disk_cache.discard("kernel", key)
        return None
