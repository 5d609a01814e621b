"""NumPy's names of arguments, and out=, where torch takes them."""

from __future__ import annotations

import inspect
import pickle

import pytest

import weft


def test_numpy_names_of_arguments() -> None:
    x = weft.arange(6.0).reshape(2, 3)
    for name in (
        "sum",
        "mean",
        "amax",
        "var",
        "argmax",
        "any",
        "logsumexp",
        "norm",
        "nansum",
        "median",
        "max",
    ):
        for got in (
            getattr(x, name)(axis=1, keepdims=True), getattr(weft, name)(x, axis=1, keepdims=True),
            getattr(weft, name)(a=x, axis=1, keepdims=True),
        ):  # fmt: skip
            assert (got.values if isinstance(got, tuple) else got).shape == (2, 1), name
    for name in ("cumsum", "softmax", "sort", "argsort", "unsqueeze", "squeeze", "cumprod", "log_softmax"):
        assert getattr(x, name)(axis=1) is not None
    assert weft.cat([x, x], axis=1).shape == (2, 6) and weft.stack([x, x], axis=2).shape == (2, 3, 2)
    assert weft.add(x1=x, x2=1).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert x.clone().unsqueeze_(axis=0).shape == (1, 2, 3)
    with pytest.raises(TypeError, match="also as 'axis'"):
        weft.sum(x, dim=0, axis=0)
    with pytest.raises(weft.IndexError, match="sum: dimension 5"):
        x.sum(axis=5)


def test_out() -> None:
    x, out = weft.tensor([[1.0, 4.0], [3.0, 2.0]]), weft.empty(0)
    assert weft.add(x, 1, out=out) is out and out.tolist() == [[2, 5], [4, 3]]
    assert weft.cumsum(x, 0, out=out) is out and out.tolist() == [[1, 4], [4, 6]]
    wide = weft.empty(2, dtype=weft.float64)
    assert weft.sum(x, 1, out=wide).dtype is weft.float64 and wide.tolist() == [5, 5]
    values, indices = weft.empty(0), weft.empty(0, dtype=weft.int64)
    found = weft.max(x, 1, out=(values, indices))
    assert found.values is values and indices.tolist() == [1, 0]
    assert weft.linalg.inv(weft.eye(2), out=out).shape == (2, 2) and weft.special.erf(x, out=out) is out
    with pytest.raises(weft.DTypeError, match="cannot hold"):
        weft.add(x, x, out=weft.empty(2, dtype=weft.int32))
    with pytest.raises(weft.GradError, match="no gradients"):
        weft.add(weft.ones(2, requires_grad=True), 1, out=out)


def test_functions_stay_what_they_were() -> None:
    assert "keepdim" in inspect.signature(weft.sum).parameters
    assert pickle.loads(pickle.dumps(weft.relu)) is weft.relu
    assert weft.sum.__doc__ == weft.core.functions.reductions.sum.__doc__
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        weft.sum(weft.ones(2), nonsense=1)


def test_sizes_and_layouts_as_keywords() -> None:
    assert weft.empty(size=(2, 3)).shape == weft.randn(size=(2, 3), layout=weft.strided).shape == (2, 3)
    assert weft.zeros(size=(2,), pin_memory=True).tolist() == [0, 0]
    x = weft.ones(4)
    assert weft.reshape(x, shape=(2, 2)).shape == x.reshape(shape=(2, 2)).shape == x.view(size=(2, 2)).shape
    assert weft.empty_like(x, memory_format=weft.preserve_format).shape == (4,)
