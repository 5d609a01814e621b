"""torch.cuda.amp: `autocast` for GPUs, and `GradScaler`."""

from __future__ import annotations

from typing import Any

from weft import amp
from weft.amp import GradScaler

__all__ = ["GradScaler", "autocast"]


def autocast(enabled: bool = True, dtype: Any = None, cache_enabled: bool = True) -> amp.autocast:
    """weft.autocast("cuda", ...)."""
    return amp.autocast("cuda", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
