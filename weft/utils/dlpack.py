"""torch.utils.dlpack: tensors from and to capsules."""
# Tests: tests/fuzz/test_neutral_calls.py

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.core.tensor.interchange import from_dlpack

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(tensor: Tensor) -> Any:
    """A DLPack capsule of the values in the CPU's memory."""
    return tensor.__dlpack__()
