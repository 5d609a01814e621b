"""A workload, ready to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def plain(result: Any) -> Array:
    """A tensor as a NumPy array."""
    return result.numpy() if hasattr(result, "numpy") else np.asarray(result)


def arrays(result: Any) -> list[Array]:
    """One tensor, or several, as NumPy arrays."""
    return [plain(r) for r in result] if isinstance(result, list | tuple) else [plain(result)]


@dataclass(frozen=True, slots=True)
class Run:
    """`call` runs the workload once, waits until the result is there, and returns it. `results` makes arrays of it that
    can be compared with other frameworks': float values, images as NCHW."""

    call: Callable[[], Any]
    results: Callable[[Any], Sequence[Array]] = arrays


def channels_first(result: Any) -> list[Array]:
    """NHWC -> NCHW."""
    return [a.transpose(0, 3, 1, 2) if a.ndim == 4 else a for a in arrays(result)]
