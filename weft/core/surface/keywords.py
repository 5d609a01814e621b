"""Keywords that torch takes besides its own: NumPy's names (axis, keepdims, x, x1, x2, a), and `out=`.

Every function of torch's namespaces takes them, whatever its own parameters are called, so they are translated in one
place, around the functions, which stay plain.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from weft.autograd.context import grad_enabled
from weft.core.args import broadcast as bc
from weft.core.args.argument_types import signature, taken_over
from weft.core.args.handle import Handle, describe
from weft.errors import DTypeError, GradError, wraps_calls
from weft.ir.dtypes import bool_, uint8

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

wraps_calls(__file__)

ALIASES = {"axis": "dim", "keepdims": "keepdim", "x": "input", "a": "input", "x1": "input", "x2": "other"}
"""NumPy's name -> torch's."""


@cache
def _aliases(function: Callable[..., Any]) -> Mapping[str, str]:
    """The aliases of a function's parameters."""
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        function = inner
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found = {alias: name for alias, name in ALIASES.items() if name in own and alias not in own}
    if function.__module__ in _MAKERS:
        found |= {k: _IGNORED for k in ("layout", "memory_format", "pin_memory") if k not in own}
    return found


_MAKERS = ("weft.core.layout.creation", "weft.core.functions.random")
_IGNORED = ""
"""The translation of a keyword that says how elements lie in memory, which weft decides."""


@cache
def _many(function: Callable[..., Any]) -> str | None:
    """The name of a function's `*sizes`; None where it takes none."""
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        function = inner
    code = getattr(function, "__code__", None)
    if code is None or not code.co_flags & inspect.CO_VARARGS:
        return None
    return code.co_varnames[code.co_argcount + code.co_kwonlyargcount]


def _sizes_given(
    function: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]
) -> tuple[Any, ...]:
    """The positional arguments with the sizes that are given as `size=` or `shape=`, as torch takes them too."""
    for name in ("size", "shape"):
        if name in given and _many(function) in ("size", "shape", "sizes_"):
            return (*args, given.pop(name))
    return args


def translated(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """The keywords under the function's own names. TypeError where one is given under both."""
    aliases = _aliases(function)
    if aliases.keys().isdisjoint(given):
        return given
    out: dict[str, Any] = {}
    for key, value in given.items():
        name = aliases.get(key, key)
        if name == _IGNORED:
            if key == "memory_format":
                from weft.core.args.switches import check_memory_format

                check_memory_format(function.__name__, value)
            continue
        if name in out or (name is not key and name in given):
            raise TypeError(f"{function.__name__}() got {name!r} also as {key!r}")
        out[name] = value
    return out


def with_aliases(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method that takes NumPy's names too; the function itself where it has no such parameters."""
    types_ = signature(function)
    if types_ is not None and taken_over(function, types_):
        types_ = None
    if types_ is None:
        if not _aliases(function) and _many(function) is None:
            return function

        def call(*args: Any, **kwargs: Any) -> Any:
            if not kwargs:
                return function(*args)
            args = _sizes_given(function, args, kwargs)
            return function(*args, **translated(function, kwargs))

        return _like(call, function)
    first, check = types_.first, types_.check

    def checking(*args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            if len(args) > first:
                check(args, kwargs)
            return function(*args)
        args = _sizes_given(function, args, kwargs)
        kwargs = translated(function, kwargs)
        check(args, kwargs)
        return function(*args, **kwargs)

    return _checked(_like(checking, function))


def with_out(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function of the namespace: NumPy's names, and `out=`, a tensor or a tuple of some to stand for the results."""

    types_ = signature(function, name)
    if types_ is not None and taken_over(function, types_):
        types_ = None
    first = 0 if types_ is None else types_.first

    def call(*args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            if types_ is not None and len(args) > first:
                types_.check(args, kwargs)
            return function(*args)
        out = kwargs.pop("out", None)
        args = _sizes_given(function, args, kwargs)
        kwargs = translated(function, kwargs)
        if types_ is not None:
            types_.check(args, kwargs)
        result = function(*args, **kwargs)
        return result if out is None else _given_to(name, result, out)

    return _checked(_like(call, function))


def _like(call: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    call.__name__, call.__qualname__, call.__doc__ = (
        function.__name__,
        function.__qualname__,
        function.__doc__,
    )
    call.__module__ = function.__module__
    call.__wrapped__ = function  # pyright: ignore[reportFunctionMemberAccess]  (what inspect.signature follows)
    return call


def _checked(call: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function as one that checks the types of its arguments: what is put around it need not."""
    call.checked = True  # pyright: ignore[reportFunctionMemberAccess]
    return call


_EXACT = frozenset({
    "abs", "absolute", "addbmm", "addmm", "addmv", "alias_copy", "all", "amax", "amin", "aminmax", "any", "argmax",
    "argmin", "as_strided_copy", "avg_pool2d", "avg_pool3d", "baddbmm", "bmm", "bucketize", "ceil", "cholesky",
    "cholesky_ex", "conj_physical", "cross", "cummax", "cummin", "det", "diag", "diagonal_copy", "diff", "dot",
    "eigh", "eigvalsh", "expand_copy", "fix", "float_power", "floor", "frac", "frexp", "gather", "gelu",
    "hardshrink", "heaviside", "histc", "histogram", "index_add", "index_copy", "index_select", "inner", "inv",
    "inv_ex", "inverse", "isin", "isneginf", "isposinf", "kthvalue", "ldl_factor", "ldl_factor_ex", "ldl_solve",
    "log_softmax", "logcumsumexp", "logsigmoid", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "lu_unpack",
    "masked_select", "matmul", "matrix_norm", "mm", "mode", "msort", "multi_dot", "multinomial", "mv", "nan_to_num",
    "nanquantile", "narrow_copy", "neg", "negative", "nonzero", "norm", "ormqr", "permute_copy", "qr", "quantile",
    "renorm", "round", "scatter", "scatter_add", "searchsorted", "sgn", "sign", "signbit", "slice_scatter",
    "slogdet", "softmax", "softplus", "softshrink", "solve", "solve_ex", "solve_triangular", "sort",
    "split_with_sizes_copy", "squeeze_copy", "svd", "svdvals", "t_copy", "take", "take_along_dim", "tensordot",
    "topk", "transpose_copy", "triangular_solve", "tril", "triu", "trunc", "unbind_copy", "unfold_copy",
    "unsqueeze_copy", "vdot", "vecdot", "vector_norm", "view_copy",
})  # fmt: skip
"""Functions whose `out` has the dtype of the result, as in torch; with others it may be one that can hold it."""


def _given_to(name: str, result: Any, out: Any) -> Any:
    """`out`, standing for the results."""
    if isinstance(result, tuple) and isinstance(out, (tuple, list)):
        results, outs = list(cast("tuple[Any, ...]", result)), list(cast("tuple[Any, ...]", out))
        if len(results) != len(outs):
            raise TypeError(f"{name}: out must be {len(results)} tensors, got {len(outs)}")
        for r, o in zip(results, outs, strict=True):
            _given_to(name, r, o)
        kind = type(cast("tuple[Any, ...]", result))
        return kind(*outs) if hasattr(kind, "_fields") else tuple(outs)
    if not isinstance(out, Handle) or not isinstance(result, Handle):
        raise DTypeError(f"{name}: out must be a Tensor for each result, got {describe(out)}")
    target, value = cast("Tensor", out), result.value
    if grad_enabled() and (value.needs_grad or target.requires_grad):
        raise GradError(
            f"{name}: out= has no gradients; write x = {name}(...), or call it under weft.no_grad()"
        )
    if name in _EXACT and value.dtype is not target.dtype and (value.dtype, target.dtype) != (bool_, uint8):
        raise DTypeError(f"{name}: out must be {value.dtype.name}, as the result is, got {target.dtype.name}")
    if not bc.can_cast(value.dtype, target.dtype):
        raise DTypeError(
            f"{name}: the result is {value.dtype.name}, which out of {target.dtype.name} cannot hold"
        )
    return target.in_shape(name, bc.cast(value, target.dtype))
