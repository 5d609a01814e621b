"""Running one program on the CPU with NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.backends.cpu import runtime
from weft.backends.cpu.compile import compile_programs
from weft.backends.cpu.llvm import Loaded, load_object
from weft.ir.loops import Program


def load(programs: Sequence[Program]) -> Loaded:
    """Compiled and linked for this machine."""
    cpu = runtime.open_runtime()
    return load_object(compile_programs(programs, cpu.machine.target), [p.name for p in programs], cpu.symbols)


def run(program: Program, *arrays: np.ndarray[Any, Any], variables: Sequence[int] = ()) -> None:
    """Run `program` on these parameters, which it may write."""
    cpu = runtime.open_runtime()
    code = load((program,))
    n = len(arrays)
    slots = tuple(range(n)) + tuple(range(len(variables)))
    plan = cpu.plan([runtime.Instruction(code.address(program.name), slots)], externals=n,
                    variables=len(variables), keep=(code, arrays))
    plan.run([a.ctypes.data for a in arrays], variables)


def aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy whose first element is at a multiple of 64 bytes, as every parameter must be."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    out = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out
