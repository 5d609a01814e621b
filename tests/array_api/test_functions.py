"""Every function of the array API standard beside NumPy's, over dtypes and shapes, zero sizes and no axes included."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import weft

xp = weft.array_api
SIGNED, UNSIGNED = ["int8", "int16", "int32", "int64"], ["uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float32", "float64"]
REAL = SIGNED + UNSIGNED + FLOATS
SHAPES = [(), (0,), (3,), (2, 0, 3), (2, 3)]
EVERY_DTYPE = ["abs", "ceil", "floor", "negative", "positive", "round", "sign", "square", "trunc"]
ONLY_FLOATS = [
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "isfinite", "isinf", "isnan",
    "log", "log1p", "log2", "log10", "reciprocal", "signbit", "sin", "sinh", "sqrt", "tan", "tanh",
]  # fmt: skip
PAIRS = [
    "add", "subtract", "multiply", "floor_divide", "remainder", "pow", "maximum", "minimum", "equal", "not_equal",
    "less", "less_equal", "greater", "greater_equal",
]  # fmt: skip
BITS = ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"]
FLOAT_PAIRS = ["divide", "atan2", "copysign", "hypot", "logaddexp", "nextafter"]


def data(dtype: str, *shape: int, low: int = 0) -> np.ndarray:
    """Small numbers of a dtype, of both signs where it has them."""
    rng = np.random.default_rng(sum(shape) + len(dtype))
    values = rng.integers(low if dtype.startswith(("u", "b")) else min(low, -4), 5, shape)
    return (values + (0.25 if dtype in FLOATS else 0)).astype(dtype)


def check(calls: list[tuple[str, Any, Any]]) -> None:
    """Dtypes, shapes and values of results of weft beside those of NumPy; all of them are computed together."""
    arrays = [t for _, got, _ in calls for t in (got if isinstance(got, (tuple, list)) else (got,))]
    weft.realize(*(t for t in arrays if isinstance(t, weft.Tensor)))
    for name, got, want in calls:
        if isinstance(want, (tuple, list)):
            assert len(got) == len(want), name
        several = isinstance(want, (tuple, list))
        for g, w in zip(got, want, strict=True) if several else [(got, want)]:
            w = np.asarray(w)
            assert isinstance(g, xp.Array), name
            assert (g.dtype.name, tuple(g.shape)) == (w.dtype.name, w.shape), name
            close = (
                {"rtol": 1e-5 if w.dtype == np.float32 else 1e-12, "atol": 1e-6}
                if w.dtype.kind == "f"
                else {}
            )
            (np.testing.assert_allclose if close else np.testing.assert_array_equal)(
                g.numpy(), w, err_msg=name, **close
            )


@pytest.mark.parametrize("dtype", REAL)
def test_elementwise_functions(dtype: str) -> None:
    calls = []
    with np.errstate(all="ignore"):
        for shape in SHAPES:
            a, b = data(dtype, *shape), data(dtype, *shape, low=1)
            b = np.abs(b) + 1 if dtype not in FLOATS else b
            x, y = xp.asarray(a), xp.asarray(b.astype(dtype))
            for name in EVERY_DTYPE + (ONLY_FLOATS if dtype in FLOATS else ["bitwise_invert"]):
                calls.append((f"{name} {dtype}{shape}", getattr(xp, name)(x), getattr(np, name)(a)))
            for name in PAIRS + (FLOAT_PAIRS if dtype in FLOATS else BITS):
                want = getattr(np, name)(a, b.astype(dtype))
                calls.append((f"{name} {dtype}{shape}", getattr(xp, name)(x, y), want))
            if shape in ((3,), (2, 3)):
                scalar = 2.0 if dtype in FLOATS else 2
                for name in PAIRS:
                    want = getattr(np, name)(a, np.asarray(scalar, dtype))
                    calls.append((f"{name} {dtype} number", getattr(xp, name)(x, scalar), want))
                calls.append(
                    ("clip", xp.clip(x, 0, xp.asarray(3, dtype=x.dtype)), np.clip(a, 0, np.asarray(3, dtype)))
                )
    check(calls)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float32", "float64"])
def test_reductions_and_running_sums(dtype: str) -> None:
    calls = []
    kind = {"i": "int64", "u": "uint64", "f": dtype}[np.dtype(dtype).kind]
    for shape in [(2, 3, 4), (2, 0, 3), ()]:
        a = data(dtype, *shape)
        x = xp.asarray(a)
        for axis in (None, (), 0, -1, (0, 2), (1,)):
            if (isinstance(axis, int) and not shape) or (
                isinstance(axis, tuple) and len(axis) > 0 and not shape
            ):
                continue
            for keepdims in (False, True):
                kw = {"axis": axis, "keepdims": keepdims}
                names = ["sum", "prod", "all", "any"] + (
                    ["mean", "var", "std"] if dtype in FLOATS and a.size else []
                )
                names += ["max", "min"] if a.size else []
                for name in names:
                    own = {"dtype": kind} if name in ("sum", "prod") else {}
                    want = np.asarray(getattr(np, name)(a, **kw, **own))
                    calls.append((f"{name} {shape} {kw}", getattr(xp, name)(x, **kw), want))
                if a.size and not isinstance(axis, tuple):
                    for name in ("argmax", "argmin"):
                        calls.append((f"{name} {kw}", getattr(xp, name)(x, **kw), getattr(np, name)(a, **kw)))
                if axis != ():
                    calls.append((f"count {kw}", xp.count_nonzero(x, **kw), np.count_nonzero(a, **kw)))
        for axis in range(len(shape)):
            for name in ("cumulative_sum", "cumulative_prod"):
                for kw in ({}, {"include_initial": True}):
                    want = getattr(np, name)(a, axis=axis, dtype=kind, **kw)
                    calls.append((f"{name} {shape} {axis} {kw}", getattr(xp, name)(x, axis=axis, **kw), want))
    check(calls)


A, B, V = data("float64", 2, 3, 4), data("float64", 3, 4), data("int32", 5)
SQUARE = data("float64", 2, 3, 3) + 4 * np.eye(3)
CALLS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("arange", [7], {"dtype": "int64"}), ("arange", [5, 1, -2], {"dtype": "int64"}),
    ("arange", [5, 1], {"dtype": "float64"}), ("eye", [3, 4], {"k": -1, "dtype": "float64"}),
    ("eye", [3], {"k": 5, "dtype": "int8"}), ("linspace", [0, 1, 5], {"endpoint": False, "dtype": "float64"}),
    ("linspace", [2.0, -3.0, 4], {"dtype": "float64"}), ("full", [(2, 0), 3], {"dtype": "uint8"}),
    ("full", [3, True], {"dtype": "bool"}), ("tril", [A], {"k": 1}), ("triu", [A], {"k": -1}),
    ("meshgrid", [V, V[:2]], {}), ("meshgrid", [V, V[:2]], {"indexing": "ij"}), ("broadcast_to", [B, (2, 3, 4)], {}),
    ("broadcast_arrays", [A, B], {}), ("concat", [[B, B]], {"axis": -1}), ("concat", [[B, A]], {"axis": None}),
    ("stack", [[B, B]], {"axis": 2}), ("expand_dims", [A], {"axis": -2}), ("flip", [A], {}),
    ("flip", [A], {"axis": (0, -1)}),
    ("moveaxis", [A, (0, 1), (2, 0)], {}), ("permute_dims", [A, (2, 0, 1)], {}), ("repeat", [B, 2], {}),
    ("repeat", [B, np.array([1, 0, 2])], {"axis": 0}), ("reshape", [A, (4, -1)], {}), ("roll", [A, 5], {}),
    ("roll", [A, (1, -2)], {"axis": (0, 2)}), ("squeeze", [A[:1], 0], {}), ("tile", [B, (2, 1, 2)], {}),
    ("tile", [B, ()], {}),
    ("unstack", [A], {"axis": 1}), ("take", [A, np.array([1, 1, 0])], {"axis": -2}),
    ("take_along_axis", [B, np.array([[0, -1], [1, 1], [3, 0]])], {}), ("nonzero", [data("bool", 3, 4)], {}),
    ("searchsorted", [np.arange(5.0), B], {"side": "right"}),
    ("searchsorted", [np.arange(5.0)[::-1].copy(), B], {"sorter": np.arange(5)[::-1].copy()}),
    ("where", [B > 0, B, 2.0], {}), ("diff", [A], {"axis": 1, "n": 2, "prepend": A[:, :1]}), ("sort", [A], {"axis": 0}),
    ("argsort", [A], {"axis": 1}), ("unique_all", [V], {}), ("unique_counts", [A], {}), ("unique_inverse", [B], {}),
    ("matmul", [A, B.T], {}), ("matmul", [V, V], {}), ("matmul", [A[:0], B.T], {}), ("matrix_transpose", [A], {}),
    ("tensordot", [A, B], {}), ("tensordot", [A, B], {"axes": ((2,), (1,))}), ("tensordot", [V, V], {"axes": 0}),
    ("vecdot", [A, B], {}), ("vecdot", [A, A], {"axis": -3}), ("linalg.cross", [A[:, :, :3], B[:, :3]], {}),
    ("linalg.cholesky", [SQUARE @ SQUARE.mT], {}), ("linalg.det", [SQUARE], {}), ("linalg.inv", [SQUARE], {}),
    ("linalg.slogdet", [SQUARE], {}), ("linalg.solve", [SQUARE, SQUARE], {}), ("linalg.svdvals", [A], {}),
    ("linalg.eigvalsh", [SQUARE + SQUARE.mT], {}), ("linalg.pinv", [A], {}), ("linalg.outer", [V, V], {}),
    ("linalg.matrix_rank", [A], {}), ("linalg.matrix_power", [SQUARE, -2], {}), ("linalg.diagonal", [A], {"offset": 1}),
    ("linalg.trace", [A], {"offset": -1}), ("linalg.matrix_norm", [A], {"ord": "nuc", "keepdims": True}),
    ("linalg.vector_norm", [A], {"axis": (0, 2), "ord": 3}), ("linalg.vector_norm", [A], {"ord": 0}),
]  # fmt: skip


def test_functions_of_every_other_kind() -> None:
    def of(m: Any, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value if m is np else xp.asarray(value)
        return [of(m, v) for v in value] if isinstance(value, list) else value

    def call(m: Any, name: str, args: list[Any], kw: dict[str, Any]) -> Any:
        own = {k: getattr(m, v) if k == "dtype" else of(m, v) for k, v in kw.items()}
        return operator.attrgetter(name)(m)(*[of(m, a) for a in args], **own)

    check([(f"{n} {kw}", call(xp, n, args, kw), call(np, n, args, kw)) for n, args, kw in CALLS])


def test_what_numpy_has_not() -> None:
    x = xp.asarray([[3, 1, 2], [1, 1, 3]])
    assert xp.sort(x, axis=1, descending=True).tolist() == [[3, 2, 1], [3, 1, 1]]
    assert xp.argsort(x, axis=1, descending=True, stable=True).tolist() == [[0, 2, 1], [2, 0, 1]]
    assert xp.count_nonzero(x, axis=()).tolist() == [[1, 1, 1], [1, 1, 1]]
    assert xp.asarray(xp.unstack(x), dtype=x.dtype).tolist() == x.tolist()
    assert xp.isdtype(xp.int8, ("bool", "signed integer")) and not xp.isdtype(xp.uint8, "real floating")
    assert xp.result_type(x, 2.0) is xp.float32 and xp.result_type(xp.uint8, xp.int8, 3) is xp.int16
    assert xp.can_cast(xp.int8, xp.int16) is True and xp.can_cast(xp.float64, xp.float32) is False
    same = xp.asarray(x, copy=False)
    copied = xp.asarray(x, copy=True)
    x[0, 0] = 9
    assert (int(same[0, 0]), int(copied[0, 0])) == (9, 3)
    for index, error in ((5, IndexError), ("a", TypeError), ((0, 0, 0), IndexError)):
        with pytest.raises(error):
            x[index]
    for call, error in [
        (lambda: xp.expand_dims(x, axis=4), IndexError),
        (lambda: xp.squeeze(x, 1), ValueError),
        (lambda: xp.nonzero(xp.asarray(1)), ValueError),
        (lambda: xp.matmul(x, xp.asarray(2)), ValueError),
    ]:
        with pytest.raises(error):
            call()
