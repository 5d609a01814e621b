"""torch.version: `__version__`, and the toolkits that weft was built with, of which there are none."""

from __future__ import annotations

from weft._version import __version__

__all__ = ["__version__", "cuda", "hip"]

cuda: str | None = None
hip: str | None = None
