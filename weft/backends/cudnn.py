"""torch.backends.cudnn's switches, which programs set: weft has no cuDNN. Its kernels give the same every time."""

from __future__ import annotations

benchmark = False
deterministic = True
enabled = True
allow_tf32 = False


def is_available() -> bool:
    """False."""
    return False


def version() -> int | None:
    """None."""
    return None
