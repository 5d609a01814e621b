"""Chains of reductions over one axis that can run in one pass, tile by tile (attention)."""

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.ir.kernel.schedule import Kernel


def schedule(k: Kernel, info: DeviceInfo) -> Kernel | None:
    """The schedule of a kernel that joins contractions by an online reduction; None for other kernels."""
    return None
