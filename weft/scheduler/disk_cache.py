"""Plans on disk: commands, results and kernels' notes as JSON, machine code as the backend's images beside them.

A plan is found by its graph's signature, the device with its driver and compiler, and weft's own sources, so a second
process neither kernelizes nor schedules nor compiles. An image may serve several plans and is kept by its content.
Kernels that another plan has compiled are found one by one: see `kernel_cache`.
"""

from __future__ import annotations

import json
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from weft import disk_cache, pack, settings
from weft.backends.protocol import BulkLoader, Code, CopyBytes, Device, DeviceInfo, Launch, Step
from weft.ir.forks import forkable
from weft.ir.index import Var
from weft.lazy_dataclass import dataclass
from weft.naming import own_name
from weft.scheduler.growing import Needs, Tenancy, grows
from weft.scheduler.plan import KernelInfo, OutputSpec, Tenant
from weft.scheduler.signature import Result, Signature
from weft.scheduler.size_json import decoded, encoded
from weft.scheduler.unrolled import Item, Repeat, Unrolled

IMAGES_KEPT = 256
"""Images loaded in this process, for other plans that need them; the least recently used goes first."""

_lock = forkable(threading.Lock())
_images: OrderedDict[tuple[Device, str], Mapping[str, Code]] = OrderedDict()
_devices: dict[Device, str] = {}


def key_of(sig: Signature, replaces: Mapping[int, int], device: Device) -> str | None:
    """The name of the plan on disk; None where plans are not kept: without a cache, or while verifying."""
    if settings.verify() or settings.cache_dir() is None:
        return None
    return disk_cache.digest(
        sig.digest(), json.dumps(list(replaces.items())), device_key(device), disk_cache.compiler()
    )


def has(sig: Signature, device: Device) -> bool:
    """True where the plan of a graph is on disk."""
    name = key_of(sig, {}, device)
    return name is not None and disk_cache.get("plan", name) is not None


def device_key(device: Device) -> str:
    """The device, its driver and compiler, and its description."""
    if device not in _devices:
        _devices[device] = f"{device.fingerprint()} {describe(device.info)}"
    return _devices[device]


@own_name()
def describe(info: DeviceInfo) -> str:
    """Everything in a description, in an order that is the same in every process."""
    values: dict[str, Any] = {f.name: getattr(info, f.name) for f in fields(info)}
    return json.dumps(
        {k: sorted(map(str, v)) if v.__class__ is frozenset else str(v) for k, v in values.items()}
    )


def store_image(image: bytes, names: Sequence[str]) -> str:
    """Keep an image with the names of the programs in it; its own name."""
    key = disk_cache.digest(image)
    disk_cache.put("image", key, image_entry(image, names))
    return key


def image_entry(image: bytes, names: Sequence[str]) -> bytes:
    """The entry of an image, on disk or in a pack."""
    head = json.dumps(list(names)).encode()
    return struct.pack("<I", len(head)) + head + image


def store(key: str, plan: Unrolled, where: Sequence[tuple[str, str]]) -> None:
    """Keep a plan; `where[k]` is the image that has code k, and its name there."""
    infos: dict[KernelInfo, int] = {}  # the steps of a loop have the same
    variables = {v: k for k, v in enumerate(plan.variables)}
    record = {
        "key": key,
        "steps": _items(plan.items, variables, infos),
        "computed": [encoded(x, variables) for x in plan.computed],
        "commands": [plan.externals, plan.offsets, plan.workspace_bytes],
        "replaces": [[o.replaces, o.over] for o in plan.outputs],
        "kernels": [[k.name, k.bytes, k.flops, k.why, k.written, k.dtype] for k in infos],
        "largest": [[t.name, t.nbytes] for t in plan.largest],
        "codes": where,
        "needs": _written_needs(plan, variables),
    }
    disk_cache.put("plan", key, json.dumps(record, separators=(",", ":")).encode())


def _written_needs(plan: Unrolled, variables: Mapping[Var, int]) -> list[Any] | None:
    """The workspace by runtime sizes, where it grows with them."""
    needs = plan.needs
    if needs is None or not grows(needs, plan.workspace_bytes):
        return None
    number = {n: k for k, n in enumerate(needs.sizes)}
    rows = [[[number[n] for n in t.nbytes], t.first, t.last] for t in needs.tenancies]
    return [[encoded(n, variables) for n in number], rows, needs.inside]


def _read_needs(record: Any, variables: Sequence[Var], offsets: int) -> Needs | None:
    """The same, for so many offsets. ValueError where it is of others."""
    if record is None:
        return None
    sizes, rows, inside = record
    known_sizes = [decoded(n, variables) for n in sizes]
    tenancies = [Tenancy(tuple([known_sizes[int(k)] for k in own]), int(a), int(b)) for own, a, b in rows]
    places = [(int(k), int(at)) for k, at in inside]
    known = all(0 <= k < len(tenancies) and at >= 0 for k, at in places) and all(t.nbytes for t in tenancies)
    if not known or len(tenancies) + len(places) != offsets:
        raise ValueError("a workspace of another plan")
    return Needs(tuple(tenancies), tuple(places))


def _items(
    items: Sequence[Item], variables: Mapping[Var, int], infos: dict[KernelInfo, int]
) -> list[list[Any]]:
    """Steps and loops of them, as lists. What is new of their kernels is added to `infos`."""
    return [
        [
            "repeat",
            encoded(i.length, variables),
            i.reverse,
            i.mark,
            [_items(p, variables, infos) for p in i.patterns],
        ]
        if isinstance(i, Repeat)
        else [*_written(i[0]), infos.setdefault(i[1], len(infos))]
        for i in items
    ]


def _written(s: Step) -> list[Any]:
    if isinstance(s, Launch):
        return ["launch", s.program, s.slots, s.variables]
    return ["copy", s.target, s.source, s.nbytes]


def load(key: str, device: Device, results: Sequence[Result], variables: tuple[Var, ...]) -> Unrolled | None:
    """The plan called `key` for these results, if it and its images are there and whole."""
    data = disk_cache.get("plan", key)
    if data is None:
        return None
    try:
        return _read(json.loads(data), key, device, results, variables)
    except (ValueError, KeyError, TypeError, IndexError, struct.error):
        disk_cache.discard("plan", key)
        return None


def _read(
    record: Any, key: str, device: Device, results: Sequence[Result], variables: tuple[Var, ...]
) -> Unrolled:
    if record["key"] != key:
        raise ValueError("a plan of another name")
    where = [(str(image), str(name)) for image, name in record["codes"]]
    images = images_codes([image for image, _ in where], device)
    codes: list[Code] = [images[image][name] for image, name in where]
    externals, offsets, workspace = record["commands"]
    kernels = [
        KernelInfo(str(n), int(b), int(f), tuple(map(str, y)), int(w), str(d))
        for n, b, f, y, w, d in record["kernels"]
    ]
    reading = _Reading(kernels, variables, int(externals) + len(offsets), len(codes))
    outputs = [
        OutputSpec(r.dtype, r.shape, at, tuple(map(int, over)))
        for r, (at, over) in zip(results, record["replaces"], strict=True)
    ]
    return Unrolled(
        device=device,
        items=reading.items(record["steps"], frozenset()),
        externals=int(externals),
        offsets=tuple(map(int, offsets)),
        workspace_bytes=int(workspace),
        codes=tuple(codes),
        outputs=tuple(outputs),
        variables=variables,
        computed=tuple([decoded(x, variables) for x in record["computed"]]),
        largest=tuple([Tenant(str(n), int(b)) for n, b in record["largest"]]),
        needs=_read_needs(record["needs"], variables, len(offsets)),
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads steps. ValueError for one that would use a slot, a program or a variable that is not there."""

    kernels: Sequence[KernelInfo]
    variables: tuple[Var, ...]
    slots: int
    codes: int

    def items(self, record: Sequence[Any], marks: frozenset[int]) -> tuple[Item, ...]:
        """The items, inside of loops with these marks."""
        found: list[Item] = []
        for kind, *own in record:
            if kind == "launch":
                program, slots, variables, info = own
                made = Launch(int(program), tuple(map(int, slots)), tuple(map(int, variables)))
                self.check(made, marks)
                found.append((made, self.kernels[int(info)]))
            elif kind == "copy":
                target, source, nbytes, info = map(int, own)
                if not (0 <= target < self.slots and 0 <= source < self.slots):
                    raise ValueError("a copy outside of the plan")
                found.append((CopyBytes(target, source, nbytes), self.kernels[info]))
            else:
                found.append(self.repeat(own, marks))
        return tuple(found)

    def check(self, made: Launch, marks: frozenset[int]) -> None:
        """ValueError for a launch outside of the plan, or with the mark of a loop that is not around it."""
        slots, variables = made.slots, made.variables
        known = 0 <= made.program < self.codes and (not slots or 0 <= min(slots) <= max(slots) < self.slots)
        if known and variables and min(variables) < 0:
            known = all(v >= 0 or v in marks for v in variables)
        if not known:
            raise ValueError("a step outside of the plan")

    def repeat(self, own: Sequence[Any], marks: frozenset[int]) -> Repeat:
        """The loop, whose patterns read its mark as well."""
        length, reverse, mark, patterns = own
        mark, inner = int(mark), marks | {int(mark)}
        if mark >= 0 or mark in marks or len(patterns) != 4:
            raise ValueError("no loop")
        found = tuple([self.items(p, inner) for p in patterns])
        return Repeat(decoded(length, self.variables), bool(reverse), mark, found)


def image_codes(key: str, device: Device) -> Mapping[str, Code]:
    """The programs of an image, by name. KeyError when it is not there, ValueError when it is not this device's."""
    return images_codes((key,), device)[key]


def images_codes(keys: Iterable[str], device: Device) -> Mapping[str, Mapping[str, Code]]:
    """The same for several images, by their names: those that are not here yet are loaded at once."""
    with _lock:
        found: dict[str, Mapping[str, Code]] = {}
        read: dict[str, tuple[bytes, list[str]]] = {}
        for key in dict.fromkeys(keys):
            codes = _images.get((device, key))
            if codes is None:
                read[key] = _read_image(key)
                continue
            _images.move_to_end((device, key))
            found[key] = codes
        images = list(read.values())
        if len(images) > 1 and isinstance(device, BulkLoader):
            loaded = device.load_all(images)
        else:
            loaded = [device.load(image, names) for image, names in images]
        for (key, (_, names)), codes in zip(read.items(), loaded, strict=True):
            found[key] = _images[device, key] = dict(zip(names, codes, strict=True))
        while len(_images) > IMAGES_KEPT:
            _images.popitem(last=False)
        return found


def _read_image(key: str) -> tuple[bytes, list[str]]:
    """The bytes of an image, and the names of the programs in it."""
    data = pack.get("image", key) or disk_cache.get("image", key)
    if data is None:
        raise KeyError(key)
    (length,) = struct.unpack_from("<I", data)
    names = [str(n) for n in json.loads(data[4 : 4 + length])]
    image = data[4 + length :]
    if disk_cache.digest(image) != key:
        raise ValueError("an image of another name")
    return image, names
