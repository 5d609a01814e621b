"""torch.nn.attention: which way attention is computed, and attention with functions of its own (`flex_attention`).

`weft.nn.functional.scaled_dot_product_attention` is a formula, of which the compiler makes what the device is good at:
a choice of backends changes nothing. MultiheadAttention is in weft.nn.
"""
# Tests: tests/nn/test_flex_attention.py

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Self

from weft.core.args.contexts import DecoratingContext
from weft.core.args.handle import describe
from weft.errors import DTypeError

__all__ = ["SDPBackend", "sdpa_kernel"]


class SDPBackend(IntEnum):
    """torch's ways to compute attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


class sdpa_kernel(DecoratingContext):  # noqa: N801  (torch's name)
    """A context for a choice of backends, which changes nothing: weft has one way. DTypeError for anything else."""

    def __init__(self, backends: SDPBackend | Sequence[SDPBackend], set_priority: bool = False) -> None:
        self.backends = [backends] if isinstance(backends, SDPBackend) else list(backends)
        for b in self.backends:
            if not isinstance(b, SDPBackend):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise DTypeError(f"sdpa_kernel: expected SDPBackend.MATH or the like, got {describe(b)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass
