"""Hypothesis' own strategies for array libraries draw weft's arrays, and indexing them means what it does in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.array_api import make_strategies_namespace

import weft

xp = weft.array_api
xps = make_strategies_namespace(xp, api_version="2024.12")
shapes = xps.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
quick = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@quick
@given(xps.arrays(xps.real_dtypes() | xps.boolean_dtypes(), shapes), st.data())
def test_basic_indices_and_assignment(x: Any, data: st.DataObject) -> None:
    array = x.numpy()
    key = data.draw(xps.indices(shape=tuple(x.shape), allow_newaxis=True))
    got = x[key]
    assert got.dtype is x.dtype
    np.testing.assert_array_equal(got.numpy(), array[key])
    key = data.draw(xps.indices(shape=tuple(x.shape)))
    value = data.draw(xps.from_dtype(x.dtype))
    x[key] = value
    array[key] = value
    np.testing.assert_array_equal(x.numpy(), array)


@quick
@given(xps.arrays(xps.floating_dtypes(), shapes))
def test_elements_one_by_one(x: Any) -> None:
    """What suites that walk over all elements do; each is taken from the whole, which is computed once."""
    y = xp.sin(x)
    for index in np.ndindex(*x.shape):
        at = float(x[index])
        if np.isfinite(at):
            np.testing.assert_allclose(float(y[index]), np.sin(at), rtol=1e-5)
        assert bool(xp.isnan(x[index])) == np.isnan(at) and bool(x[index] == x[index]) != np.isnan(at)


@quick
@given(xps.arrays(xps.real_dtypes(), shapes), st.data())
def test_masks(x: Any, data: st.DataObject) -> None:
    mask = data.draw(xps.arrays(xp.bool, tuple(x.shape)))
    array = x.numpy()
    np.testing.assert_array_equal(x[mask].numpy(), array[mask.numpy()])
    x[mask] = 1
    array[mask.numpy()] = 1
    np.testing.assert_array_equal(x.numpy(), array)
