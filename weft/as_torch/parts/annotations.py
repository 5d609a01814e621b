"""torch.types: what programs annotate with, or ask `isinstance` about."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, TypeAlias

Number = (int, float, bool)
"""A tuple, as torch's: `isinstance` takes it."""
Sizes: TypeAlias = Sequence[int]
FileLike: TypeAlias = "str | os.PathLike[str] | IO[bytes]"
NO_TYPES: tuple[type, ...] = ()
