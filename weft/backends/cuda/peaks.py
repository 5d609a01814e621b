"""The peaks of an NVIDIA GPU by dtype, from what a multiprocessor does in a clock."""
# Tests: tests/backends/cpu/test_roofline.py

from __future__ import annotations

from collections.abc import Mapping

from weft.backends.protocol import DeviceInfo
from weft.backends.roofline import Peak

PER_CLOCK: Mapping[tuple[int, int], Mapping[str, int]] = {
    (8, 0): {"float16": 2048, "bfloat16": 2048, "tfloat32": 1024, "float32": 128, "float64": 128, "int8": 4096},
    (8, 6): {"float16": 1024, "bfloat16": 512, "tfloat32": 256, "float32": 256, "float64": 4, "int8": 2048},
    (8, 9): {"float16": 1024, "bfloat16": 512, "tfloat32": 256, "float32": 256, "float64": 4, "int8": 2048},
    (9, 0): {"float16": 4096, "bfloat16": 4096, "tfloat32": 2048, "float32": 256, "float64": 256, "int8": 8192},
    (10, 0): {"float16": 8192, "bfloat16": 8192, "tfloat32": 4096, "float32": 256},
}  # fmt: skip
"""Dense operations of a multiprocessor in a clock, a multiply-add counted as two, matrix units included, by compute
capability: from the peaks in NVIDIA's descriptions of the A100, GA102, AD102, H100 and Blackwell architectures, divided
by their multiprocessors and boost clocks. A capability or dtype that is missing is not known here."""


def peaks(capability: tuple[int, int], info: DeviceInfo) -> tuple[Peak, ...]:
    """The peaks that are known; those of float32 use tf32 where the device's matrix units may."""
    table = PER_CLOCK.get(capability)
    if table is None:
        return ()
    clocks = info.flops / table["float32"]  # of all multiprocessors together, in a second
    source = f"{info.cores} multiprocessors of sm_{capability[0]}{capability[1]} at the clock that the driver tells"
    rates = dict(table)
    if any(u.operand.name == "float32" for u in info.matrix_units):
        rates["float32"] = table["tfloat32"]
    return tuple([Peak(name, n * clocks, source) for name, n in rates.items()])
