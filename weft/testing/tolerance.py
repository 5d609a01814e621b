"""The distance that a correct result may have from the reference: found by Monte Carlo arithmetic.

The reference is run again with every inexact operand disturbed by a few units in its last place, at each use anew; and
once with all of them up and once down, as disturbances by chance may cancel: those of two uses do for every second one.
The largest deviation seen says how well conditioned each element is; elements whose disturbed runs are not all finite
(overflow that one rounding decides) are not compared. Source: Parker, "Monte Carlo arithmetic", 1997.
"""
# Tests: tests/testing/test_strategies.py

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.ir import dtypes
from weft.ir.calls import expand_calls
from weft.ir.dtypes import DType, to_numpy
from weft.ir.graph import Node, toposort
from weft.ir.ops import TRANSCENDENTAL, Op
from weft.testing.reference import REFERENCE, Array, Context, evaluate

EPSILON: dict[DType, float] = {
    dtypes.float8_e4m3fn: 2.0**-3,
    dtypes.float8_e5m2: 2.0**-2,
    dtypes.float16: 2.0**-10,
    dtypes.bfloat16: 2.0**-7,
    dtypes.float32: 2.0**-23,
    dtypes.float64: 2.0**-52,
}
"""Distance of 1.0 from the next larger number."""

ULP = 4
"""Units in the last place by which a correct implementation of one op may differ from the reference."""

_ORDERED = frozenset({Op.SUM, Op.PROD, Op.SCATTER})
"""Ops whose rounding depends on an order that is not fixed, so that exact operands give inexact results."""

_ROUNDED = TRANSCENDENTAL | {Op.MUL, Op.FMA}
"""Elementwise ops on floats whose result is not determined to the bit by their operands. MUL may end up in an fma."""


def exact(node_op: Op, dtype: DType, inputs_exact: Sequence[bool]) -> bool:
    """True when every correct implementation gives the same bits."""
    if not dtype.is_float:
        return all(inputs_exact)
    return node_op not in _ORDERED and node_op not in _ROUNDED and all(inputs_exact)


def allowed(nodes: Sequence[Node], trials: int = 4, seed: int = 0) -> list[Array]:
    """For each node, the absolute error that each element may have; infinite where it is not to be compared."""
    nodes = expand_calls(nodes, stop_at_storage=False)
    want = evaluate(nodes)
    rng = np.random.default_rng(seed)
    spread = [np.zeros(w.shape) for w in want]
    with np.errstate(all="ignore"):
        for signs in (*((-1.0, 1.0) for _ in range(trials)), (1.0,), (-1.0,)):
            for w, s, disturbed in zip(want, spread, _disturbed(nodes, rng, signs), strict=True):
                if w.dtype.kind in "iub":
                    continue
                a, b = w.astype(np.float64), disturbed.astype(np.float64)
                same = (a == b) | (np.isnan(a) & np.isnan(b))
                apart = np.where(np.isfinite(a) & np.isfinite(b), np.abs(a - b), np.inf)
                np.maximum(s, np.where(same, 0.0, apart), out=s)
        return [_bound(w, s, n.dtype) for w, s, n in zip(want, spread, nodes, strict=True)]


def _bound(want: Array, spread: Array, dtype: DType) -> Array:
    if not dtype.is_float:
        return np.zeros(want.shape)
    size = np.nan_to_num(np.abs(want.astype(np.float64)), nan=0.0, posinf=0.0, neginf=0.0)
    smallest = (
        2.0**-1074 if dtype is dtypes.float64 else 2.0**-149 if dtype is not dtypes.float16 else 2.0**-24
    )
    return 8 * spread + 2 * ULP * (EPSILON[dtype] * size + smallest)


def _disturbed(nodes: Sequence[Node], rng: np.random.Generator, signs: Sequence[float]) -> list[Array]:
    values: dict[int, Array] = {}
    sharp: dict[int, bool] = {}
    for node in toposort(nodes, stop_at_storage=False):
        inputs = [
            values[id(i)]
            if sharp[id(i)] and node.op not in _ORDERED
            else _disturb(values[id(i)], i.dtype, rng, signs)
            for i in node.inputs
        ]
        rule: Callable[..., Any] = REFERENCE[node.op]
        out = np.asarray(rule(Context(node, _sizes(node), {}), *inputs))
        values[id(node)] = (
            _uncertain_overflow(out, node.dtype, inputs, rng)
            if node.op is Op.MUL and node.dtype.is_float
            else out
        )
        sharp[id(node)] = exact(node.op, node.dtype, [sharp[id(i)] for i in node.inputs])
    return [values[id(n)] if sharp[id(n)] else _disturb(values[id(n)], n.dtype, rng, signs) for n in nodes]


def _uncertain_overflow(
    product: Array, dtype: DType, factors: Sequence[Array], rng: np.random.Generator
) -> Array:
    """Some products that overflow made large instead: within a fused multiply-add they do not overflow."""
    wide = product.astype(np.float64)
    finite = np.logical_and(*(np.isfinite(f.astype(np.float64)) for f in factors))
    overflowed: Array = np.logical_and(np.isinf(wide), finite)
    if not overflowed.any():
        return product
    exponent = {dtypes.float16: 15, dtypes.float64: 1023}.get(dtype, 127)
    largest = np.asarray((2.0 - EPSILON[dtype]) * 2.0**exponent).astype(product.dtype)
    shape: tuple[int, ...] = product.shape
    down = np.logical_and(overflowed, rng.random(shape) < 0.5)
    return np.where(down, np.copysign(largest, product), product)


def _sizes(node: Node) -> tuple[int, ...]:
    sizes = tuple(n for n in node.shape if isinstance(n, int))
    if len(sizes) != len(node.shape):
        raise ValueError(f"{node!r} has runtime sizes: bind them first")
    return sizes


def _disturb(x: Array, dtype: DType, rng: np.random.Generator, signs: Sequence[float]) -> Array:
    if not dtype.is_float or x.size == 0:
        return x
    wide = x.astype(np.float64)
    factor = 1 + ULP * EPSILON[dtype] * rng.choice(signs, x.shape)
    return np.asarray(np.where(np.isfinite(wide), wide * factor, wide)).astype(to_numpy(dtype))


def difference(got: Array, want: Array, bound: Array) -> str | None:
    """The error of `got`, or None: shape, dtype, NaNs and infinities must agree, the rest be within `bound`."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"got {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
    a, b = got.astype(np.float64), want.astype(np.float64)
    if got.dtype.kind in "iub":
        bad = got != want
    else:
        with np.errstate(all="ignore"):
            close = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= bound) | np.isinf(bound)
        bad = ~close
    if not np.any(bad):
        return None
    at = tuple(int(k) for k in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {got.size} elements differ; at {list(at)}: got {got[at]!r}, expected {want[at]!r}"
