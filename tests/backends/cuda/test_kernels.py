"""The PTX of every kind of kernel, executed thread by thread, gives what NumPy says; shared memory without races."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.backends.protocol import Commands, Device, Launch
from weft.backends.registry import open_device
from weft.scheduler.programs import lowered
from weft.testing.kernels import CASES, Case, attention, columns, convolution, matmul, softmax

KERNELS: dict[str, Case] = {
    **CASES,
    "matmul 70": matmul(70, 66, 40),
    "matmul 128": matmul(128, 128, 32),
    "softmax 3000": softmax(3, 3000),
    "softmax 1023": softmax(2, 1023),
    "columns long": columns(3000, 5),
    "attention 40": attention(2, 40, 16, True),
    "convolution 10": convolution(2, 3, 10, 5),
}


def outputs(device: Device, case: Case, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the device computes, and what is right."""
    program = lowered(case.algorithm, device.info)
    inputs = case.inputs(seed)
    expected = case.reference(inputs)
    arrays = {**inputs, **{n: np.full_like(v, np.nan, dtype=np.float32) for n, v in expected.items()}}
    memories = [device.allocate(arrays[b.name].nbytes) for b in program.params]
    for b, m in zip(program.params, memories, strict=True):
        device.write(m, np.ascontiguousarray(arrays[b.name]).data)
    codes, _ = device.compile([program])
    count = len(memories)
    device.link(codes, Commands((Launch(0, tuple(range(count))),), count, (), 0)).run(memories)
    got = {
        b.name: np.frombuffer(device.read(m, arrays[b.name].nbytes), arrays[b.name].dtype).reshape(
            arrays[b.name].shape
        )
        for b, m in zip(program.params, memories, strict=True)
    }
    return {n: got[n] for n in expected}, expected


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(emulated: Any, name: str) -> None:
    emulated.races = True
    got, expected = outputs(open_device("cuda:0"), KERNELS[name])
    for n, want in expected.items():
        np.testing.assert_allclose(got[n], want, rtol=2e-4, atol=2e-5)
