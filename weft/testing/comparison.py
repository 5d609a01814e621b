"""torch.testing.assert_close: tensors, numbers, and nested containers of them, compared within tolerances."""
# Tests: tests/core/surface/test_overrides.py

from __future__ import annotations

import cmath
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from weft.core.args.handle import Handle
from weft.core.layout.creation import as_tensor
from weft.errors import ArgumentError, DTypeError
from weft.ir.dtypes import DType
from weft.lazy_dataclass import dataclass

__all__ = ["assert_close"]

_TOLERANCES = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
}
"""rtol and atol by dtype, as torch's; 0 for the others."""


@dataclass(frozen=True, slots=True)
class _How:
    """The arguments of a comparison."""

    allow_subclasses: bool
    rtol: float | None
    atol: float | None
    equal_nan: bool
    check_device: bool
    check_dtype: bool
    check_stride: bool

    def tolerances(self, *dtypes: DType) -> tuple[float, float]:
        """The given ones, or the larger of those of the dtypes."""
        if self.rtol is not None and self.atol is not None:
            return self.rtol, self.atol
        found = [_TOLERANCES.get(d.name, (0.0, 0.0)) for d in dtypes]
        return max(r for r, _ in found), max(a for _, a in found)


def assert_close(
    actual: Any,
    expected: Any,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: str | Callable[[str], str] | None = None,
) -> None:
    """AssertionError unless |actual - expected| <= atol + rtol * |expected| everywhere, with what differs and where.

    Tolerances follow from the dtypes unless both are given: 1.3e-6 and 1e-5 for float32, 1e-7 and 1e-7 for float64,
    1e-3 and 1e-5 for float16, 1.6e-2 and 1e-5 for bfloat16, 0 for the rest. `msg` takes the message's place, or makes
    one of it. ArgumentError where one tolerance is given without the other, DTypeError for what cannot be compared.
    """
    if (rtol is None) != (atol is None):
        lacks = "rtol" if rtol is None else "atol"
        raise ArgumentError(f"assert_close: rtol and atol are given together or not at all, got no {lacks}")
    how = _How(allow_subclasses, rtol, atol, equal_nan, check_device, check_dtype, check_stride)
    wrong = _difference(actual, expected, how, "")
    if wrong is not None:
        raise AssertionError(wrong if msg is None else msg if isinstance(msg, str) else msg(wrong))


def _difference(x: Any, y: Any, how: _How, place: str) -> str | None:
    """The message on a difference, with the place within containers; None for none."""
    where = f"\n\nThe failure occurred for item {place}" if place else ""
    if isinstance(x, Mapping) and isinstance(y, Mapping):
        a, b = cast("Mapping[Any, Any]", x), cast("Mapping[Any, Any]", y)
        if a.keys() != b.keys():
            missing, more = sorted(map(str, b.keys() - a.keys())), sorted(map(str, a.keys() - b.keys()))
            return (
                "The keys of the mappings do not match:\n"
                f"Missing keys in the actual mapping: {missing}\nAdditional keys in the actual mapping: {more}{where}"
            )
        return _first(_difference(a[k], b[k], how, f"{place}[{k!r}]") for k in a)
    if _is_sequence(x) and _is_sequence(y):
        p, q = cast("Sequence[Any]", x), cast("Sequence[Any]", y)
        if len(p) != len(q):
            return f"The length of the sequences mismatch: {len(p)} != {len(q)}{where}"
        return _first(
            _difference(a, b, how, f"{place}[{k}]") for k, (a, b) in enumerate(zip(p, q, strict=True))
        )
    found = _leaf_difference(x, y, how)
    return None if found is None else f"{found}{where}"


def _first(found: Any) -> str | None:
    return next((f for f in found if f is not None), None)


def _is_sequence(x: Any) -> bool:
    return isinstance(x, Sequence) and not isinstance(x, str | bytes)


def _leaf_difference(x: Any, y: Any, how: _How) -> str | None:
    if x is None or y is None:
        return None if x is y else f"None mismatch: {x} is not {y}"
    if _is_bool(x) and _is_bool(y):
        return None if bool(x) is bool(y) else f"Booleans mismatch: {x} is not {y}"
    if _is_number(x) and _is_number(y):
        return _number_difference(x, y, how)
    if _is_array(x) and _is_array(y):
        if not how.allow_subclasses and type(x) is not type(y):
            return f"The types do not match: {type(x)} != {type(y)}."
        return _tensor_difference(as_tensor(x), as_tensor(y), how)
    raise DTypeError(f"assert_close: cannot compare {type(x).__name__} with {type(y).__name__}")


def _is_bool(x: Any) -> bool:
    return isinstance(x, bool | np.bool_)


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float | complex | np.number) and not isinstance(x, bool)


def _is_array(x: Any) -> bool:
    return isinstance(x, Handle | np.ndarray)


def _number_difference(x: Any, y: Any, how: _How) -> str | None:
    if how.check_dtype and type(x) is not type(y):
        return f"The (d)types do not match: {type(x)} != {type(y)}."
    exact = all(isinstance(v, int | np.integer) for v in (x, y))
    known = how.rtol is not None and how.atol is not None
    rtol, atol = (how.rtol, how.atol) if known else (0.0, 0.0) if exact else (1e-7, 1e-7)
    assert rtol is not None
    assert atol is not None
    off = abs(x - y)
    if (
        x == y
        or (how.equal_nan and cmath.isnan(x) and cmath.isnan(y))
        or (cmath.isfinite(x) and cmath.isfinite(y) and off <= atol + rtol * abs(y))
    ):
        return None
    if rtol == atol == 0:
        return f"Scalars are not equal!\n\nExpected {y} but got {x}.\nAbsolute difference: {off}"
    return (
        f"Scalars are not close!\n\nExpected {y} but got {x}.\nAbsolute difference: {off} (up to {atol} allowed)\n"
        f"Relative difference: {off / abs(y) if y else float('inf')} (up to {rtol} allowed)"
    )


def _tensor_difference(x: Any, y: Any, how: _How) -> str | None:
    attributes = [("shape", x.shape, y.shape)]
    if how.check_device:
        attributes.append(("device", x.device, y.device))
    if how.check_dtype:
        attributes.append(("dtype", x.dtype, y.dtype))
    if how.check_stride:
        attributes.append(("stride()", x.stride(), y.stride()))
    for name, a, b in attributes:
        if a != b:
            return f"The values for attribute '{name}' do not match: {a} != {b}."
    if x.is_meta or y.is_meta:
        return None if x.is_meta and y.is_meta else "Comparing meta tensors with others is not possible"
    rtol, atol = how.tolerances(x.dtype, y.dtype)
    a, b = (t.detach().double().numpy() if t.is_floating_point() else t.detach().numpy() for t in (x, y))
    if not (x.is_floating_point() or y.is_floating_point()):
        a, b = a.astype(object), b.astype(object)  # exact, whatever the width
    with np.errstate(all="ignore"):
        off = np.asarray(abs(a - b) if a.dtype != bool else a ^ b)
        close = np.asarray(a == b)
        if a.dtype == np.float64 or b.dtype == np.float64:
            finite = np.isfinite(a.astype(np.float64)) & np.isfinite(b.astype(np.float64))
            close |= finite & (off <= atol + rtol * abs(b))
            if how.equal_nan:
                close |= np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
        elif rtol or atol:
            close |= off <= atol + rtol * abs(b)
        close = close.astype(bool)
        if close.all():
            return None
        wide = off.astype(np.float64)
        share = np.where(wide == 0, 0.0, wide / abs(b.astype(np.float64)))
    return _message(close, wide, share, rtol, atol, scalar=not x.shape, values=(a, b))


def _message(
    close: np.ndarray[Any, Any],
    off: np.ndarray[Any, Any],
    share: np.ndarray[Any, Any],
    rtol: float,
    atol: float,
    scalar: bool,
    values: tuple[Any, Any],
) -> str:
    """The message on elements that differ: how many, and where most."""
    exact = rtol == atol == 0
    verdict = "equal" if exact else "close"
    limits = ("", "") if exact else (f" (up to {atol} allowed)", f" (up to {rtol} allowed)")
    if scalar:
        return (
            f"Scalars are not {verdict}!\n\nExpected {values[1].item()} but got {values[0].item()}.\n"
            f"Absolute difference: {off.item()}{limits[0]}\nRelative difference: {share.item()}{limits[1]}"
        )
    count = int(close.size - close.sum())
    lines = [
        f"Tensor-likes are not {verdict}!\n",
        f"Mismatched elements: {count} / {close.size} ({count / close.size:.1%})",
    ]
    for name, d, limit in (("absolute", off, limits[0]), ("relative", share, limits[1])):
        looked = np.where(close, -np.inf, np.where(np.isnan(d), np.inf, d))
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(looked)), d.shape))
        lines.append(f"Greatest {name} difference: {d[at]} at index {at}{limit}")
    return "\n".join(lines)
