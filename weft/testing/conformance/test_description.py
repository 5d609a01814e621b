"""A description that the scheduler can work with."""

from __future__ import annotations

from weft.backends.protocol import Device
from weft.backends.registry import State, open_device, statuses
from weft.ir import dtypes
from weft.ir.loops import LoopKind
from weft.ir.math.expand import NEEDED
from weft.ir.ops import ELEMENTWISE


def test_names(device: Device, device_name: str) -> None:
    """A device is called as it is opened, and opening it again gives the same one."""
    assert device.info.name == device_name
    assert device.info.kind == device_name.partition(":")[0]
    assert device.info.description
    assert open_device(device_name) is device


def test_it_is_listed(device: Device, device_name: str) -> None:
    """`weft.devices()` names it, as open."""
    found = {s.name: s for s in statuses()}
    assert found[device_name].state is State.OPEN and found[device_name].info == device.info


def test_sizes_and_rates(device: Device) -> None:
    """The numbers that schedules divide by are not zero."""
    info = device.info
    for name in ("cores", "vector_bytes", "vector_registers", "l1_bytes", "memory_bytes", "warp", "queues"):
        assert getattr(info, name) >= 1, name
    for name in ("bandwidth", "flops", "link_bandwidth"):
        assert getattr(info, name) > 0, name
    assert info.launch_ns >= 0 and info.local_bytes >= 0
    assert info.bounds.threads >= 1 and info.bounds.blocks >= 1 and info.bounds.buffer_bytes >= 1
    assert info.bounds.parameters >= 4
    assert info.task_kind in (LoopKind.PARALLEL, LoopKind.BLOCK)
    limits = device.limits()
    assert limits is not None


def test_dtypes_and_ops(device: Device) -> None:
    """The least that is of use: f32, i32, u32 and bool; all elementwise ops but those that are made of others."""
    assert {dtypes.float32, dtypes.int32, dtypes.uint32, dtypes.bool_} <= device.info.dtypes
    assert device.info.native <= ELEMENTWISE
    missing = sorted(op.symbol for op in NEEDED - device.info.native)
    assert not missing, f"info.native lacks what no other ops make: {', '.join(missing)}"


def test_fingerprint(device: Device) -> None:
    """The fingerprint, by which images are found, is a text that stays."""
    assert device.fingerprint() and device.fingerprint() == device.fingerprint()
