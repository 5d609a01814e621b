"""The array API namespace beside NumPy's, which follows the same standard: dtypes, special values, signatures."""

from __future__ import annotations

import inspect
import itertools
import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft

xp = weft.array_api
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float32", "float64"]
OPERATORS: dict[str, tuple[Callable[[Any, Any], Any], str, list[str]]] = {
    "add": (operator.add, "add", INTS + FLOATS),
    "sub": (operator.sub, "subtract", INTS + FLOATS),
    "mul": (operator.mul, "multiply", INTS + FLOATS),
    "truediv": (operator.truediv, "divide", FLOATS),
    "floordiv": (operator.floordiv, "floor_divide", INTS + FLOATS),
    "mod": (operator.mod, "remainder", INTS + FLOATS),
    "pow": (operator.pow, "pow", INTS + FLOATS),
    "and": (operator.and_, "bitwise_and", ["bool", *INTS]),
    "or": (operator.or_, "bitwise_or", ["bool", *INTS]),
    "xor": (operator.xor, "bitwise_xor", ["bool", *INTS]),
    "lshift": (operator.lshift, "bitwise_left_shift", INTS),
    "rshift": (operator.rshift, "bitwise_right_shift", INTS),
    "lt": (operator.lt, "less", INTS + FLOATS),
    "le": (operator.le, "less_equal", INTS + FLOATS),
    "gt": (operator.gt, "greater", INTS + FLOATS),
    "ge": (operator.ge, "greater_equal", INTS + FLOATS),
    "eq": (operator.eq, "equal", ["bool", *INTS, *FLOATS]),
    "ne": (operator.ne, "not_equal", ["bool", *INTS, *FLOATS]),
    "matmul": (operator.matmul, "matmul", INTS + FLOATS),
}


def _promotable(a: str, b: str) -> bool:
    mixed = "uint64" in (a, b) and any(n.startswith("int") for n in (a, b))
    return (a in FLOATS) == (b in FLOATS) and (a == "bool") == (b == "bool") and not mixed


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_promote_by_dtype_alone(name: str) -> None:
    """Arrays without dimensions count like all others; nothing is computed."""
    apply, function, dtypes = OPERATORS[name]
    shapes = [((2, 3), (3, 2))] if name == "matmul" else [((), (2,)), ((2,), ()), ((2, 1), (3,))]
    for a, b in itertools.product(dtypes, dtypes):
        if not _promotable(a, b):
            continue
        for first, second in shapes:
            x, y = xp.ones(first, dtype=getattr(xp, a)), xp.ones(second, dtype=getattr(xp, b))
            with np.errstate(all="ignore"):
                wanted = np.asarray(apply(np.ones(first, a), np.ones(second, b)))
            for got in (apply(x, y), getattr(xp, function)(x, y)):
                assert isinstance(got, xp.Array)
                assert (got.dtype.name, tuple(got.shape)) == (wanted.dtype.name, wanted.shape), (a, b)


def test_in_place_operators_keep_the_handle() -> None:
    for name, (_, _, dtypes) in OPERATORS.items():
        if name in ("lt", "le", "gt", "ge", "eq", "ne", "matmul"):
            continue
        x = y = xp.ones((2,), dtype=getattr(xp, dtypes[-1]))
        y = getattr(operator, f"i{name}")(y, xp.ones((), dtype=getattr(xp, dtypes[-1])))
        assert x is y and isinstance(y, xp.Array) and y.dtype is getattr(xp, dtypes[-1])


SPECIAL = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 1e30, -1e30, 1e-30]
UNARY = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "exp", "expm1",
    "floor", "log", "log1p", "log2", "log10", "negative", "positive", "reciprocal", "round", "sign",
    "signbit", "sin", "sinh", "square", "sqrt", "tan", "tanh", "trunc", "isfinite", "isinf", "isnan",
]  # fmt: skip
BINARY = [
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "pow", "atan2", "copysign",
    "hypot", "logaddexp", "maximum", "minimum", "nextafter", "equal", "less",
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values(dtype: str) -> None:
    """Infinities, NaN, signs of zeros, large numbers; signs of zeros in the results count."""
    a = np.array(SPECIAL, dtype)
    pairs = np.meshgrid(a, a, indexing="ij")
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = {n: getattr(np, n)(a) for n in UNARY} | {n: getattr(np, n)(*pairs) for n in BINARY}
    x, both = xp.asarray(a), [xp.asarray(p) for p in pairs]
    found = {n: getattr(xp, n)(x) for n in UNARY} | {n: getattr(xp, n)(*both) for n in BINARY}
    weft.realize(*found.values())
    for name, want in wanted.items():
        got = found[name].numpy()
        assert got.dtype == want.dtype, name
        np.testing.assert_allclose(got, want, rtol=1e-6 if dtype == "float32" else 1e-13, err_msg=name)
        if want.dtype.kind == "f":
            zeros = want == 0
            np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]), err_msg=name)


def test_array_object() -> None:
    x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    assert (
        x.size == 4
        and x.ndim == 2
        and x.T.tolist() == [[1, 3], [2, 4]]
        and x.to_device(x.device).tolist() == x.tolist()
    )
    assert x.__array_namespace__() is xp and x.__array_namespace__(api_version="2024.12") is xp
    assert isinstance(x[0], xp.Array) and isinstance(xp.unique_all(x).values, xp.Array)
    assert (x == None) is False and complex(xp.asarray(2.0)) == 2  # noqa: E711
    assert x[xp.zeros((0,), dtype=xp.bool)].shape == (0, 2)
    with pytest.raises(weft.IndexError):
        x[xp.ones((3,), dtype=xp.bool)]
    with pytest.raises(TypeError):
        x + "a"
    w = weft.ones(2, requires_grad=True)
    xp.sum(xp.asarray(w) * 3.0).backward()
    assert w.grad is not None and w.grad.tolist() == [3, 3]


def test_inspection() -> None:
    info = xp.__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert isinstance(info.capabilities()["max dimensions"], int)
    assert set(info.dtypes(kind=("bool", "unsigned integer"))) == {
        "bool",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
    }
    assert {"real floating", "integral", "indexing"} <= set(info.default_dtypes(device=info.default_device()))


SIGNATURES = {
    "add": "(x1, x2, /)",
    "arange": "(start, /, stop, step, *, dtype, device)",
    "asarray": "(obj, /, *, dtype, device, copy)",
    "astype": "(x, dtype, /, *, copy, device)",
    "can_cast": "(from_, to, /)",
    "clip": "(x, /, min, max)",
    "concat": "(arrays, /, *, axis)",
    "cumulative_sum": "(x, /, *, axis, dtype, include_initial)",
    "diff": "(x, /, *, axis, n, prepend, append)",
    "expand_dims": "(x, /, *, axis)",
    "eye": "(n_rows, n_cols, /, *, k, dtype, device)",
    "finfo": "(type, /)",
    "flip": "(x, /, *, axis)",
    "from_dlpack": "(x, /, *, device, copy)",
    "full": "(shape, fill_value, *, dtype, device)",
    "isdtype": "(dtype, kind)",
    "linspace": "(start, stop, /, num, *, dtype, device, endpoint)",
    "meshgrid": "(*arrays, indexing)",
    "moveaxis": "(x, source, destination, /)",
    "permute_dims": "(x, /, axes)",
    "repeat": "(x, repeats, /, *, axis)",
    "reshape": "(x, /, shape, *, copy)",
    "roll": "(x, /, shift, *, axis)",
    "searchsorted": "(x1, x2, /, *, side, sorter)",
    "sort": "(x, /, *, axis, descending, stable)",
    "squeeze": "(x, /, axis)",
    "std": "(x, /, *, axis, correction, keepdims)",
    "take": "(x, indices, /, *, axis)",
    "tile": "(x, repetitions, /)",
    "where": "(condition, x1, x2, /)",
    "zeros": "(shape, *, dtype, device)",
    "linalg.cholesky": "(x, /, *, upper)",
    "linalg.cross": "(x1, x2, /, *, axis)",
    "linalg.eigh": "(x, /)",
    "linalg.matrix_norm": "(x, /, *, keepdims, ord)",
    "linalg.matrix_power": "(x, n, /)",
    "linalg.pinv": "(x, /, *, rtol)",
    "linalg.qr": "(x, /, *, mode)",
    "linalg.solve": "(x1, x2, /)",
    "linalg.svd": "(x, /, *, full_matrices)",
    "linalg.trace": "(x, /, *, offset, dtype)",
    "linalg.vector_norm": "(x, /, *, axis, keepdims, ord)",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    found = inspect.signature(operator.attrgetter(name)(xp))
    plain = found.replace(
        parameters=[p.replace(default=p.empty, annotation=p.empty) for p in found.parameters.values()],
        return_annotation=found.empty,
    )
    assert str(plain) == SIGNATURES[name]
