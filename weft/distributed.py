"""torch.distributed for programs that ask whether they run in several processes. weft runs in one."""

from __future__ import annotations

__all__ = ["get_rank", "get_world_size", "is_available", "is_initialized"]


def is_available() -> bool:
    """False."""
    return False


is_initialized = is_available


def get_rank() -> int:
    """0: there is one process."""
    return 0


def get_world_size() -> int:
    """1: there is one process."""
    return 1
