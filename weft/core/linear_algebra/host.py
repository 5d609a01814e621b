"""Common parts of factorizations: checks of arguments, the step to the host, new leaves with derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

import numpy as np

from weft.autograd.value import Value, composed
from weft.core.args import broadcast as bc
from weft.core.args.handle import value_of, wrap
from weft.core.execute import host_operations, run, tracing
from weft.core.functions.reductions import sum
from weft.core.layout.creation import tensor
from weft.core.layout.movement import pad_value, reshape
from weft.errors import DTypeError, NoValueError, ShapeError, WeftError
from weft.ir.dtypes import int32

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


Array = np.ndarray[Any, Any]


class LinAlgError(WeftError):
    """A matrix is singular, not positive definite, or a method did not converge."""


def square_matrices(op: str, x: Tensor) -> Value:
    """The value of square matrices of floats; ShapeError or DTypeError for anything else."""
    v = matrices(op, x)
    if v.shape[-1] != v.shape[-2]:
        raise ShapeError(f"{op}: needs square matrices, got shape {tuple(v.shape)}")
    return v


def matrices(op: str, x: Tensor) -> Value:
    """The value of matrices of floats; ShapeError or DTypeError for anything else."""
    v = value_of(op, x)
    if len(v.shape) < 2:
        raise ShapeError(f"{op}: needs matrices of at least 2 dimensions, got shape {tuple(v.shape)}")
    return floats(op, x)


def floats(op: str, x: Tensor) -> Value:
    """The value of a float32 or float64 tensor; DTypeError for anything else."""
    v = value_of(op, x)
    if v.dtype.name not in ("float32", "float64"):
        raise DTypeError(f"{op}: needs float32 or float64, got {v.dtype.name}; convert it with .float()")
    return v


def host_array(op: str, v: Value) -> Array:
    """The computed values on the host. Inside weft.compile a traced value is refused; NoValueError for one that stands
    for one example of a batch, as in vmap."""
    if tracing.current() is not None and tracing.is_traced(v.node):
        tracing.host_only(op)
    host_operations.note(op)
    try:
        return run.to_numpy(v.node)
    except NoValueError:
        raise NoValueError(
            f"{op}: is computed on the host, from values, and shape {tuple(v.shape)} stands for one example in a "
            f"function that vmap or scan runs; {op} takes batches of matrices: give it all examples at once, outside"
        ) from None


def lapack(op: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A call of NumPy's LAPACK; what it cannot solve is a LinAlgError."""
    try:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)
    except np.linalg.LinAlgError as error:
        raise LinAlgError(f"{op}: {str(error).lower()}") from None


def leaf(array: Array, like: Value) -> Value:
    """A factor as a new leaf on the device of what was factorized."""
    return tensor(np.asarray(array, order="C"), dtype=like.dtype, device=like.node.device).value


Rule1: TypeAlias = "Callable[[Tensor, Tensor, Tensor], tuple[Tensor | None, ...]]"
Rule2: TypeAlias = "Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor | None, ...]]"


@overload
def derived(array: Array, inputs: tuple[Value], rule: Rule1) -> Tensor: ...
@overload
def derived(array: Array, inputs: tuple[Value, Value], rule: Rule2) -> Tensor: ...
def derived(
    array: Array, inputs: tuple[Value, ...], rule: Callable[..., tuple[Tensor | None, ...]]
) -> Tensor:
    """A factor of `inputs` with a derivative written on tensors: rule(g, out, *inputs)."""

    def on_values(g: Value, out: Value, *xs: Value) -> tuple[Value | None, ...]:
        found = rule(wrap(g), wrap(out), *(wrap(x) for x in xs))
        return tuple(None if f is None else f.value for f in found)

    return wrap(composed(leaf(array, inputs[0]).node, inputs, on_values))


def sum_to(x: Tensor, shape: tuple[Any, ...]) -> Tensor:
    """Summed over the batch dimensions along which `shape` was broadcast."""
    extra = len(x.value.shape) - len(shape)
    over = [
        *range(extra),
        *(k + extra for k, n in enumerate(shape) if n == 1 and x.value.shape[k + extra] != 1),
    ]
    return reshape(sum(x, tuple(over)), shape) if over else x


class Checked(NamedTuple):
    """A result, and for each matrix 0 or the LAPACK code of what is wrong with it."""

    result: Tensor
    info: Tensor


def codes_of(codes: Array, v: Value) -> Tensor:
    """LAPACK codes as an int32 tensor beside v."""
    return tensor(codes, dtype=int32, device=v.node.device)


def pivot_codes(lower_upper: Array) -> Array:
    """1 + the place of the first zero pivot of each eliminated matrix, or 0."""
    if 0 in lower_upper.shape[-2:]:
        return np.zeros(lower_upper.shape[:-2], np.int32)
    diagonal_ = np.diagonal(lower_upper, axis1=-2, axis2=-1) == 0
    return np.where(diagonal_.any(-1), diagonal_.argmax(-1) + 1, 0).astype(np.int32)


def numpy_dtype(v: Value) -> Any:
    """The NumPy dtype of v: float64 or float32."""
    return np.float64 if v.dtype.name == "float64" else np.float32


def as_columns(op: str, A: Value, B: Value, left: bool) -> tuple[Value, bool]:
    """B as matrices; True where it was vectors, one per matrix of A."""
    vector = len(B.shape) == 1 or (left and len(B.shape) == len(A.shape) - 1 and B.shape == A.shape[:-1])
    return (bc.reshape(B, (*B.shape, 1)), True) if vector else (B, False)


def known_size(v: Value) -> int:
    """The last size, which must not be a runtime variable."""
    n = v.shape[-1]
    if not isinstance(n, int):
        raise ShapeError(f"linalg: the size {n} must be known")
    return n


def known_sizes(v: Value) -> tuple[int, int]:
    """The rows and columns, which must not be runtime variables."""
    m, n = v.shape[-2:]
    if not isinstance(m, int) or not isinstance(n, int):
        raise ShapeError(f"linalg: the sizes {m} and {n} must be known")
    return m, n


def eliminated(array: Array) -> tuple[Array, Array, Array]:
    """Row order, both triangles in one, and exchanges from 1, by elimination with the largest pivot of each column."""
    lu: Array = np.array(array)
    m, n = lu.shape[-2:]
    flat = lu.reshape(math.prod(lu.shape[:-2]), m, n)
    k = min(m, n)
    order: Array = np.tile(np.arange(m, dtype=np.int64), (len(flat), 1))
    pivots: Array = np.zeros((len(flat), k), np.int32)
    with np.errstate(all="ignore"):
        for b, a in enumerate(flat):
            for j in range(k):
                p = j + int(np.argmax(np.abs(a[j:, j])))
                pivots[b, j] = p + 1
                if p != j:
                    a[[j, p]] = a[[p, j]]
                    order[b, [j, p]] = order[b, [p, j]]
                if a[j, j] != 0:
                    a[j + 1 :, j] /= a[j, j]
                a[j + 1 :, j + 1 :] -= np.outer(a[j + 1 :, j], a[j, j + 1 :])
    lead = lu.shape[:-2]
    return order.reshape(*lead, m), lu, pivots.reshape(*lead, k)


def padded(x: Tensor, dim: int, by: int) -> Tensor:
    """x with `by` zeros after its last element along dim."""
    low, high = [0] * len(x.value.shape), [0] * len(x.value.shape)
    high[dim] = by
    return wrap(pad_value(x.value, low, high))
