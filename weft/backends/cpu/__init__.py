"""The embedded default backend: LLVM machine code for this host, run on all its cores."""
# Tests: tests/backends/cpu/test_ops.py, tests/backends/cpu/test_runtime.py

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device import CpuBackend


def open_backend() -> CpuBackend:
    """The entry point of the backend."""
    from .device import CpuBackend

    return CpuBackend()
