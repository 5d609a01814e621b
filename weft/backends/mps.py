"""torch.backends.mps, which programs ask for Apple's GPUs: weft reaches those through WebGPU ("wgpu")."""

from __future__ import annotations


def is_available() -> bool:
    """False."""
    return False


is_built = is_available
