"""Set functions of the standard."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.core.layout import creation
from weft.core.tensor.tensor import Tensor


class unique_all_result(NamedTuple):  # noqa: N801
    """Distinct elements, where each was first, which each element is, and how often it occurs."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class unique_counts_result(NamedTuple):  # noqa: N801
    """Distinct elements and how often each occurs."""

    values: Tensor
    counts: Tensor


class unique_inverse_result(NamedTuple):  # noqa: N801
    """Distinct elements and which each element is."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> unique_all_result:
    """Distinct elements with their first places, inverse and counts. Computes the input."""
    array = x.numpy()
    values, first, inverse, counts = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    made = (creation.tensor(np.asarray(a, np.int64)) for a in (first, inverse.reshape(array.shape), counts))
    return unique_all_result(creation.tensor(values, dtype=x.dtype), *made)


def unique_counts(x: Tensor, /) -> unique_counts_result:
    """Distinct elements and how often each occurs. Computes the input."""
    found = unique_all(x)
    return unique_counts_result(found.values, found.counts)


def unique_inverse(x: Tensor, /) -> unique_inverse_result:
    """Distinct elements and which each element is. Computes the input."""
    found = unique_all(x)
    return unique_inverse_result(found.values, found.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """Distinct elements. Computes the input."""
    return unique_all(x).values
