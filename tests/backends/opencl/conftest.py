"""The OpenCL device, where there is one: required where WEFT_TEST_DEVICES names it."""

from __future__ import annotations

import os

import pytest

from weft.backends.opencl.device import OpenCLDevice
from weft.backends.registry import open_device
from weft.errors import DeviceError


@pytest.fixture(scope="session")
def opencl() -> OpenCLDevice:
    try:
        device = open_device("opencl")
    except DeviceError as error:
        if "opencl" in os.environ.get("WEFT_TEST_DEVICES", "").split():
            raise
        pytest.skip(error.message)
    assert isinstance(device, OpenCLDevice)
    return device
