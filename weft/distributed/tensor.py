"""torch.distributed.tensor for programs that ask whether a tensor is spread over processes: here none is."""

from __future__ import annotations

from typing import Any

from weft.errors import ArgumentError

__all__ = ["DTensor"]


class DTensor:
    """A tensor in parts on several processes. There is one process, so nothing is an instance, and none can be made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ArgumentError("DTensor: weft runs in one process; use a Tensor")

    @classmethod
    def from_local(cls, *args: Any, **kwargs: Any) -> DTensor:
        """Refused."""
        return cls()
