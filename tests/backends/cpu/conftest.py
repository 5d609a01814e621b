"""Fixtures that compile lowered loops for this machine and run them on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from weft.backends.cpu import runtime
from weft.backends.cpu.compile import compile_programs
from weft.backends.cpu.objects import load_object
from weft.backends.cpu.runner import Instruction
from weft.backends.cpu.targets import Target
from weft.backends.dummy.interpreter import interpret
from weft.ir.dtypes import to_numpy
from weft.ir.loops import Program
from weft.ir.loops_verify import verify

Arrays = Mapping[str, np.ndarray[Any, Any]]


def aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy whose first element is at a multiple of 64 bytes, as every parameter must be."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    out = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


@dataclass
class Compiled:
    """Programs in one object, runnable by name."""

    programs: dict[str, Program]
    target: Target | None = None

    def __post_init__(self) -> None:
        self.cpu = runtime.open_runtime()
        data = compile_programs(list(self.programs.values()), self.target or self.cpu.machine.target)
        self.code = load_object(data, list(self.programs), self.cpu.symbols)

    def run(self, name: str, arrays: Arrays, variables: Mapping[str, int] | None = None) -> dict[str, Any]:
        """Copies of the arrays as the program leaves them."""
        p = self.programs[name]
        for b in p.params:
            assert arrays[b.name].dtype == to_numpy(b.dtype)
        here = {b.name: aligned(arrays[b.name]) for b in p.params}
        values = [(variables or {})[v.name] for v in p.variables]
        slots = (*range(len(p.params)), *range(len(values)))
        instruction = Instruction(self.code.address(name), slots)
        plan = self.cpu.plan([instruction], externals=len(p.params), variables=len(values))
        plan.run([here[b.name].ctypes.data for b in p.params], values)
        return here

    def check(
        self, name: str, arrays: Arrays, variables: Mapping[str, int] | None = None, rtol: float = 0
    ) -> None:
        """Compare with the interpreter: the same values, zeros of either sign and all NaN alike."""
        p = self.programs[name]
        want = {k: v.copy() for k, v in arrays.items()}
        interpret(p, want, variables)
        got = self.run(name, arrays, variables)
        for b in p.params:
            wide = np.float64 if b.dtype.is_float else want[b.name].dtype
            a, e = got[b.name].astype(wide), want[b.name].astype(wide)
            np.testing.assert_allclose(a, e, rtol=rtol, atol=0, equal_nan=True, err_msg=f"{name}: {b.name}")


@pytest.fixture(scope="session")
def compile_all() -> Callable[..., Compiled]:
    """Programs, and the target if not this machine -> Compiled; each is verified first."""

    def build(programs: Sequence[Program], target: Target | None = None) -> Compiled:
        for p in programs:
            verify(p)
        return Compiled({p.name: p for p in programs}, target)

    return build
