"""The WebGPU device, where there is one: required where WEFT_TEST_DEVICES names it."""

from __future__ import annotations

import os

import pytest

from weft.backends.registry import open_device
from weft.backends.wgpu.device import WgpuDevice
from weft.errors import DeviceError


@pytest.fixture(scope="session")
def wgpu() -> WgpuDevice:
    try:
        device = open_device("wgpu")
    except DeviceError as error:
        if "wgpu" in os.environ.get("WEFT_TEST_DEVICES", "").split():
            raise
        pytest.skip(error.message)
    assert isinstance(device, WgpuDevice)
    return device
