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
    "(x, /)": "abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor isfinite isinf "
    "isnan log log10 log1p log2 logical_not matrix_transpose negative nonzero positive real reciprocal round sign "
    "signbit sin sinh sqrt square tan tanh trunc unique_all unique_counts unique_inverse unique_values linalg.det "
    "linalg.eigh linalg.eigvalsh linalg.inv linalg.matrix_transpose linalg.slogdet linalg.svdvals",
    "(x1, x2, /)": "add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign "
    "divide equal floor_divide greater greater_equal hypot less less_equal logaddexp logical_and logical_or "
    "logical_xor matmul maximum minimum multiply nextafter not_equal pow remainder subtract linalg.matmul "
    "linalg.outer linalg.solve",
    "(x, /, *, axis=None, keepdims=False)": "all any argmax argmin count_nonzero max mean min",
    "(start, /, stop=None, step=1, *, dtype=None, device=None)": "arange",
    "(x, /, *, axis=-1, descending=False, stable=True)": "argsort sort",
    "(obj, /, *, dtype=None, device=None, copy=None)": "asarray",
    "(x, dtype, /, *, copy=True, device=None)": "astype",
    "(*arrays)": "broadcast_arrays",
    "(x, /, shape)": "broadcast_to",
    "(from_, to, /)": "can_cast",
    "(x, /, min=None, max=None)": "clip",
    "(arrays, /, *, axis=0)": "concat stack",
    "(x, /, *, axis=None, dtype=None, include_initial=False)": "cumulative_prod cumulative_sum",
    "(x, /, *, axis=-1, n=1, prepend=None, append=None)": "diff",
    "(shape, *, dtype=None, device=None)": "empty ones zeros",
    "(x, /, *, dtype=None, device=None)": "empty_like ones_like zeros_like",
    "(x, /, *, axis=0)": "expand_dims unstack",
    "(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None)": "eye",
    "(type, /)": "finfo iinfo",
    "(x, /, *, axis=None)": "flip",
    "(x, /, *, device=None, copy=None)": "from_dlpack",
    "(shape, fill_value, *, dtype=None, device=None)": "full",
    "(x, /, fill_value, *, dtype=None, device=None)": "full_like",
    "(dtype, kind)": "isdtype",
    "(start, stop, /, num, *, dtype=None, device=None, endpoint=True)": "linspace",
    "(*arrays, indexing='xy')": "meshgrid",
    "(x, source, destination, /)": "moveaxis",
    "(x, /, axes)": "permute_dims",
    "(x, /, *, axis=None, dtype=None, keepdims=False)": "prod sum",
    "(x, repeats, /, *, axis=None)": "repeat",
    "(x, /, shape, *, copy=None)": "reshape",
    "(*arrays_and_dtypes)": "result_type",
    "(x, /, shift, *, axis=None)": "roll",
    "(x1, x2, /, *, side='left', sorter=None)": "searchsorted",
    "(x, /, axis)": "squeeze",
    "(x, /, *, axis=None, correction=0.0, keepdims=False)": "std var",
    "(x, indices, /, *, axis=None)": "take",
    "(x, indices, /, *, axis=-1)": "take_along_axis",
    "(x1, x2, /, *, axes=2)": "tensordot linalg.tensordot",
    "(x, repetitions, /)": "tile",
    "(x, /, *, k=0)": "tril triu",
    "(x1, x2, /, *, axis=-1)": "vecdot linalg.cross linalg.vecdot",
    "(condition, x1, x2, /)": "where",
    "(x, /, *, upper=False)": "linalg.cholesky",
    "(x, /, *, offset=0)": "linalg.diagonal",
    "(x, /, *, keepdims=False, ord='fro')": "linalg.matrix_norm",
    "(x, n, /)": "linalg.matrix_power",
    "(x, /, *, rtol=None)": "linalg.matrix_rank linalg.pinv",
    "(x, /, *, mode='reduced')": "linalg.qr",
    "(x, /, *, full_matrices=True)": "linalg.svd",
    "(x, /, *, offset=0, dtype=None)": "linalg.trace",
    "(x, /, *, axis=None, keepdims=False, ord=2)": "linalg.vector_norm",
}
METHODS = {
    "(other, /)": "__add__ __radd__ __iadd__ __sub__ __mul__ __truediv__ __floordiv__ __mod__ __pow__ __matmul__ "
    "__and__ __or__ __xor__ __lshift__ __rshift__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __rpow__ __ior__",
    "()": "__abs__ __neg__ __pos__ __invert__ __bool__ __int__ __float__ __complex__ __index__ __dlpack_device__",
    "(key, /)": "__getitem__",
    "(key, value, /)": "__setitem__",
    "(*, api_version=None)": "__array_namespace__",
    "(*, stream=None, max_version=None, dl_device=None, copy=None)": "__dlpack__",
    "(device, /, *, stream=None)": "to_device",
}


def _signature(f: Any) -> str:
    found = inspect.signature(f)
    plain = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    return str(found.replace(parameters=plain, return_annotation=found.empty))


def test_signatures() -> None:
    """Names, kinds and defaults of all arguments are the standard's, and no function is without one."""
    names = {name: text for text, names in SIGNATURES.items() for name in names.split()}
    for name, text in names.items():
        assert _signature(operator.attrgetter(name)(xp)) == text, name
    functions = {n for n in xp.__all__ if inspect.isfunction(getattr(xp, n))}
    functions |= {f"linalg.{n}" for n in xp.linalg.__all__ if inspect.isfunction(getattr(xp.linalg, n))}
    assert functions == set(names) | {"__array_namespace_info__"}
    x = xp.ones(2)
    for text, methods in METHODS.items():
        for name in methods.split():
            assert _signature(getattr(x, name)) == text, name


def test_dtypes_by_device() -> None:
    info = xp.__array_namespace_info__()
    for device in info.devices():
        for dtype in info.dtypes(device=device, kind="numeric").values():
            assert xp.ones(1, dtype=dtype, device=device).dtype is dtype
    assert len(info.dtypes(device="cpu")) == 11
