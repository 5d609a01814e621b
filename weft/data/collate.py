"""Collation: examples become a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from weft.core.layout.creation import tensor
from weft.core.layout.movement import stack
from weft.core.tensor.tensor import Tensor
from weft.errors import DTypeError, ShapeError
from weft.ir.dtypes import float64


def default_collate(batch: Sequence[Any]) -> Any:
    """Examples as a batch: tensors and arrays are stacked, numbers become a tensor, containers are entered.

    Strings stay a list. ShapeError where examples differ in shape or length.
    """
    first: Any = batch[0]
    if isinstance(first, Tensor):
        return stack(list(batch))
    if isinstance(first, (np.ndarray, np.generic)):
        if len({np.shape(x) for x in batch}) > 1:
            raise ShapeError(
                f"default_collate: arrays differ in shape: {sorted({np.shape(x) for x in batch})}"
            )
        return tensor(np.stack([np.asarray(x) for x in batch]))
    if isinstance(first, float):
        return tensor(list(batch), dtype=float64)
    if isinstance(first, int):
        return tensor(list(batch))
    if isinstance(first, (str, bytes)):
        return list(batch)
    if isinstance(first, Mapping):
        items = cast("Sequence[Mapping[Any, Any]]", batch)
        return {k: default_collate([x[k] for x in items]) for k in items[0]}
    if isinstance(first, Sequence):
        rows = cast("Sequence[Sequence[Any]]", batch)
        if any(len(x) != len(rows[0]) for x in rows):
            raise ShapeError(
                "default_collate: sequences of several lengths cannot be a batch; give a collate_fn"
            )
        columns = [default_collate(list(c)) for c in zip(*rows, strict=True)]
        kind: Any = cast("Any", first).__class__
        return kind(*columns) if hasattr(kind, "_fields") else columns
    raise DTypeError(
        f"default_collate: an example holds a {type(first).__name__}; a batch can have tensors, arrays, numbers, "
        "strings, dicts and sequences, or give a collate_fn"
    )


def default_convert(data: Any) -> Any:
    """An example by itself: arrays become tensors, everything else stays."""
    if isinstance(data, (np.ndarray, np.generic)):
        return tensor(np.asarray(cast("Any", data)))
    if isinstance(data, Mapping):
        return {k: default_convert(x) for k, x in cast("Mapping[Any, Any]", data).items()}
    if isinstance(data, (list, tuple)):
        items = [default_convert(x) for x in cast("Sequence[Any]", data)]
        kind: Any = cast("Any", data).__class__
        return kind(*items) if hasattr(kind, "_fields") else kind(items)
    return data
