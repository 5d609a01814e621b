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
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from weft import disk_cache, settings
from weft.backends.protocol import Code, Commands, CopyBytes, Device, DeviceInfo, Launch, Step
from weft.ir.forks import forkable
from weft.ir.index import Var
from weft.scheduler.plan import KernelInfo, OutputSpec, Plan, Tenant
from weft.scheduler.signature import Result, Signature

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


def device_key(device: Device) -> str:
    """The device, its driver and compiler, and its description."""
    if device not in _devices:
        _devices[device] = f"{device.fingerprint()} {describe(device.info)}"
    return _devices[device]


def describe(info: DeviceInfo) -> str:
    """Everything in a description, in an order that is the same in every process."""
    values: dict[str, Any] = {f.name: getattr(info, f.name) for f in fields(info)}
    return json.dumps(
        {k: sorted(map(str, v)) if v.__class__ is frozenset else str(v) for k, v in values.items()}
    )


def store_image(image: bytes, names: Sequence[str]) -> str:
    """Keep an image with the names of the programs in it; its own name."""
    key = disk_cache.digest(image)
    head = json.dumps(list(names)).encode()
    disk_cache.put("image", key, struct.pack("<I", len(head)) + head + image)
    return key


def store(key: str, plan: Plan, where: Sequence[tuple[str, str]]) -> None:
    """Keep a plan; `where[k]` is the image that has code k, and its name there."""
    steps = [
        ["launch", s.program, s.slots, s.variables]
        if isinstance(s, Launch)
        else ["copy", s.target, s.source, s.nbytes]
        for s in plan.commands.steps
    ]
    c = plan.commands
    infos = {k: n for n, k in enumerate(dict.fromkeys(plan.steps))}  # the steps of a loop have the same
    record = {
        "key": key,
        "steps": steps,
        "commands": [c.externals, c.offsets, c.workspace_bytes],
        "replaces": [o.replaces for o in plan.outputs],
        "kernels": [[k.name, k.bytes, k.flops, k.why, k.written, k.dtype] for k in infos],
        "notes": [infos[k] for k in plan.steps],
        "constants": plan.constants,
        "largest": [[t.name, t.nbytes] for t in plan.largest],
        "codes": where,
    }
    disk_cache.put("plan", key, json.dumps(record, separators=(",", ":")).encode())


def load(key: str, device: Device, nodes: Sequence[Result], variables: tuple[Var, ...]) -> Plan | None:
    """The plan called `key`, if it and its images are there and whole. `nodes` say what its outputs are."""
    data = disk_cache.get("plan", key)
    if data is None:
        return None
    try:
        return _read(json.loads(data), key, device, nodes, variables)
    except (ValueError, KeyError, TypeError, IndexError, struct.error):
        disk_cache.discard("plan", key)
        return None


def _read(record: Any, key: str, device: Device, nodes: Sequence[Result], variables: tuple[Var, ...]) -> Plan:
    if record["key"] != key:
        raise ValueError("a plan of another name")
    where = [(str(image), str(name)) for image, name in record["codes"]]
    codes: list[Code] = [image_codes(image, device)[name] for image, name in where]
    externals, offsets, workspace = record["commands"]
    steps = tuple([_step(s) for s in record["steps"]])
    constants = tuple(map(int, record["constants"]))
    count = len(variables) + len(constants)
    commands = Commands(steps, int(externals), tuple(map(int, offsets)), int(workspace), count)
    _check(commands, len(codes))
    outputs = tuple(
        [OutputSpec(n.dtype, n.shape, at) for n, at in zip(nodes, record["replaces"], strict=True)]
    )
    kernels = [
        KernelInfo(str(n), int(b), int(f), tuple(map(str, y)), int(w), str(d))
        for n, b, f, y, w, d in record["kernels"]
    ]
    infos = tuple([kernels[int(k)] for k in record["notes"]])
    largest = tuple([Tenant(str(n), int(b)) for n, b in record["largest"]])
    executable = device.link(codes, commands)
    return Plan(device, commands, tuple(codes), outputs, variables, infos, executable, largest, constants)


def _step(s: Any) -> Step:
    kind, *rest = s
    if kind == "copy":
        target, source, nbytes = map(int, rest)
        return CopyBytes(target, source, nbytes)
    program, slots, variables = rest
    return Launch(int(program), tuple(map(int, slots)), tuple(map(int, variables)))


def _check(commands: Commands, codes: int) -> None:
    """ValueError for a step that would read a slot or a program that is not there."""
    slots = range(commands.externals + len(commands.offsets))
    for s in commands.steps:
        used = s.slots if isinstance(s, Launch) else (s.target, s.source)
        known = all(k in slots for k in used)
        if isinstance(s, Launch):
            known = known and s.program in range(codes)
            known = known and all(k in range(commands.variables) for k in s.variables)
        if not known:
            raise ValueError("a step outside of the plan")


def image_codes(key: str, device: Device) -> Mapping[str, Code]:
    """The programs of an image, by name. KeyError when it is not there, ValueError when it is not this device's."""
    at = (device, key)
    with _lock:
        found = _images.get(at)
        if found is not None:
            _images.move_to_end(at)
            return found
        data = disk_cache.get("image", key)
        if data is None:
            raise KeyError(key)
        (length,) = struct.unpack_from("<I", data)
        names = [str(n) for n in json.loads(data[4 : 4 + length])]
        image = data[4 + length :]
        if disk_cache.digest(image) != key:
            raise ValueError("an image of another name")
        codes = dict(zip(names, device.load(image, names), strict=True))
        _images[at] = codes
        if len(_images) > IMAGES_KEPT:
            _images.popitem(last=False)
        return codes
