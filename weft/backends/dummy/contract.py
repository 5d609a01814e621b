"""Sums of products over lanes as products of matrices, without the array of all terms."""
# Tests: tests/backends/dummy/test_vectorized.py

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any


_ONE_THREAD = 1 << 18
"""Products of at most so many terms are done by one thread of NumPy's BLAS: others would wait for busy processors."""


def pays(a: Array, b: Array, summed: Sequence[int], shape: Sequence[int]) -> bool:
    """True where the operands have far fewer elements than there are terms, and some are summed."""
    return prod(shape[k] for k in summed) > 1 and 4 * (a.size + b.size) <= prod(shape)


def contract(a: Array, b: Array, summed: Sequence[int], shape: Sequence[int]) -> Array:
    """sum of a * b over the axes `summed`, which keep size 1, in float64.

    `a` and `b` have the rank of `shape` and broadcast to it.
    """
    rank = range(len(shape))
    # 0 * inf must stay one term each: an operand that lacks a summed axis gets it
    a, b = (
        np.broadcast_to(x, [shape[k] if k in summed else n for k, n in enumerate(x.shape)]) for x in (a, b)
    )
    kept = [k for k in rank if k not in summed]
    batch = [k for k in kept if a.shape[k] > 1 and b.shape[k] > 1]
    rows = [k for k in kept if k not in batch and b.shape[k] == 1]
    columns = [k for k in kept if k not in batch and k not in rows]

    def matrix(x: Array, first: list[int], second: list[int]) -> Array:
        groups = (batch, first, second)
        sizes = [prod(x.shape[k] for k in g) for g in groups]
        other = [k for k in rank if all(k not in g for g in groups)]  # of size 1
        return np.transpose(x, [k for g in groups for k in g] + other).reshape(sizes).astype(np.float64)

    out = _product(matrix(a, rows, list(summed)), matrix(b, list(summed), columns))
    order = [*batch, *rows, *columns]
    sizes = [max(a.shape[k], b.shape[k]) for k in order]
    back = out.reshape(*sizes, *(1 for _ in summed))
    return np.transpose(back, np.argsort([*order, *summed]))


def _product(a: Array, b: Array) -> Array:
    """Products of matrices (n, rows, inner) and (n, inner, columns), in pieces."""
    n, rows, inner = a.shape
    columns = b.shape[2]
    high = max(1, min(rows, _ONE_THREAD // (64 * columns)))
    deep = max(1, _ONE_THREAD // (high * columns))
    out = np.zeros((n, rows, columns))
    for i in range(0, rows, high):
        for k in range(0, inner, deep):
            out[:, i : i + high] += np.matmul(a[:, i : i + high, k : k + deep], b[:, k : k + deep])
    return out
