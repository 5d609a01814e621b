"""A weft backend: kernels in C, compiled by the system's compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device import CBackend


def open_backend() -> CBackend:
    """The entry point. Nothing heavy is imported, and no compiler is looked for, until somebody asks for a device."""
    from .device import CBackend

    return CBackend()
