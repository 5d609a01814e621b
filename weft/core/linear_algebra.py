"""Factorizations and what is solved with them.

Factorizations run through NumPy's LAPACK on the host, at the call: the input is computed, its factors become new leaves
on its device. Their derivatives are graphs like all others, so gradients fuse, run on the device and can be
differentiated again. Inside `weft.compile` a factorization of traced values is refused, since it would be a host step.
Everything that is only a formula (norms, powers, products) stays lazy.
Source of the derivatives: Giles, "An extended collection of matrix derivative results", 2008; Seeger et al.,
"Auto-differentiating linear algebra", 2017.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

import numpy as np

from weft.autograd.value import Value, composed
from weft.core import broadcast as bc
from weft.core import run, tracing
from weft.core.axes import axis, is_int
from weft.core.creation import eye, tensor
from weft.core.elementwise import abs, eq, gt, lt, maximum, ne, pow, reciprocal, sqrt, where
from weft.core.handle import Dims, Handle, describe, value_of, wrap
from weft.core.matmul import matmul
from weft.core.movement import diagonal, expand, movedim, narrow, reshape, stack, tril, triu, unsqueeze
from weft.core.precision import widened
from weft.core.reductions import amax, amin, sum
from weft.errors import ArgumentError, DTypeError, ShapeError, WeftError
from weft.ir.dtypes import DType, int32, int64
from weft.ir.graph import elements

if TYPE_CHECKING:
    from weft.core.tensor import Tensor

Array = np.ndarray[Any, Any]


class LinAlgError(WeftError, RuntimeError):
    """A matrix is singular, not positive definite, or a method did not converge."""


# ---------------------------------------------------------------------------------------------- host steps


def _square(op: str, x: Tensor) -> Value:
    v = _matrices(op, x)
    if v.shape[-1] != v.shape[-2]:
        raise ShapeError(f"{op}: needs square matrices, got shape {tuple(v.shape)}")
    return v


def _matrices(op: str, x: Tensor) -> Value:
    v = value_of(op, x)
    if len(v.shape) < 2:
        raise ShapeError(f"{op}: needs matrices of at least 2 dimensions, got shape {tuple(v.shape)}")
    return _floats(op, x)


def _floats(op: str, x: Tensor) -> Value:
    v = value_of(op, x)
    if v.dtype.name not in ("float32", "float64"):
        raise DTypeError(f"{op}: needs float32 or float64, got {v.dtype.name}; convert it with .float()")
    return v


def _host(op: str, v: Value) -> Array:
    if tracing.current() is not None and tracing.is_traced(v.node):
        tracing.host_only(op)
    return run.to_numpy(v.node)


def _lapack(op: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)
    except np.linalg.LinAlgError as error:
        raise LinAlgError(f"{op}: {str(error).lower()}") from None


def _leaf(array: Array, like: Value) -> Value:
    """A factor as a new leaf on the device of what was factorized."""
    return tensor(np.asarray(array, order="C"), dtype=like.dtype, device=like.node.device).value


Rule1: TypeAlias = "Callable[[Tensor, Tensor, Tensor], tuple[Tensor | None, ...]]"
Rule2: TypeAlias = "Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor | None, ...]]"


@overload
def _derived(array: Array, inputs: tuple[Value], rule: Rule1) -> Tensor: ...
@overload
def _derived(array: Array, inputs: tuple[Value, Value], rule: Rule2) -> Tensor: ...
def _derived(
    array: Array, inputs: tuple[Value, ...], rule: Callable[..., tuple[Tensor | None, ...]]
) -> Tensor:
    """A factor of `inputs` with a derivative written on tensors: rule(g, out, *inputs)."""

    def on_values(g: Value, out: Value, *xs: Value) -> tuple[Value | None, ...]:
        found = rule(wrap(g), wrap(out), *(wrap(x) for x in xs))
        return tuple(None if f is None else f.value for f in found)

    return wrap(composed(_leaf(array, inputs[0]).node, inputs, on_values))


def _t(x: Tensor) -> Tensor:
    return x.mT


def _sum_to(x: Tensor, shape: tuple[Any, ...]) -> Tensor:
    """Summed over the batch dimensions along which `shape` was broadcast."""
    extra = len(x.value.shape) - len(shape)
    over = [
        *range(extra),
        *(k + extra for k, n in enumerate(shape) if n == 1 and x.value.shape[k + extra] != 1),
    ]
    return reshape(sum(x, tuple(over)), shape) if over else x


# ---------------------------------------------------------------------------------------------- inverse, determinant


def inv(A: Tensor) -> Tensor:
    """The inverse of square matrices. LinAlgError where there is none."""
    v = _square("linalg.inv", A)
    array = _host("linalg.inv", v)
    return _derived(
        _lapack("linalg.inv", np.linalg.inv, array), (v,), lambda g, y, x: (-(_t(y) @ g @ _t(y)),)
    )


class Checked(NamedTuple):
    """A result, and for each matrix 0 or the LAPACK code of what is wrong with it."""

    result: Tensor
    info: Tensor


def inv_ex(A: Tensor, *, check_errors: bool = False) -> Checked:
    """The inverse and an int32 code per matrix, which is nonzero where there is none."""
    v = _square("linalg.inv_ex", A)
    codes = _pivot_codes(_host("linalg.inv_ex", v))
    if codes.any():
        if check_errors:
            raise LinAlgError("linalg.inv_ex: singular matrix")
        shape = tuple(n for n in v.shape if isinstance(n, int))
        return Checked(wrap(bc.scalar(math.inf, v.dtype, shape)), _codes(codes, v))
    return Checked(inv(A), _codes(codes, v))


def _codes(codes: Array, v: Value) -> Tensor:
    return tensor(codes, dtype=int32, device=v.node.device)


def _pivot_codes(array: Array) -> Array:
    """1 + the place of the first zero pivot of each matrix, or 0."""
    _, lower_upper, _ = _factorized(array)
    if not lower_upper.shape[-1]:
        return np.zeros(array.shape[:-2], np.int32)
    diagonal_ = np.diagonal(lower_upper, axis1=-2, axis2=-1) == 0
    return np.where(diagonal_.any(-1), diagonal_.argmax(-1) + 1, 0).astype(np.int32)


def det(A: Tensor) -> Tensor:
    """The determinant of square matrices."""
    v = _square("linalg.det", A)
    array = np.asarray(_lapack("linalg.det", np.linalg.det, _host("linalg.det", v)), _numpy_dtype(v))

    def rule(g: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor]:
        return (reshape(g, (*g.value.shape, 1, 1)) * _adjugate(x, y),)

    return _derived(array, (v,), rule)


def _numpy_dtype(v: Value) -> Any:
    return np.float64 if v.dtype.name == "float64" else np.float32


def _adjugate(x: Tensor, d: Tensor) -> Tensor:
    """The cofactors: det times the transposed inverse, and for singular matrices from their singular vectors."""
    array = run.to_numpy(x.value.node)
    if not array.size:
        return x * 0
    if np.linalg.cond(array).max(initial=0) < 1 / np.finfo(array.dtype).eps:
        return reshape(d, (*d.value.shape, 1, 1)) * _t(inv(x))
    u, s, vh = svd(x)
    n = x.value.shape[-1]
    assert isinstance(n, int)
    others = [narrow(s, -1, k, 1) for k in range(n)]
    products: list[Tensor] = []
    for k in range(n):
        p: Tensor | None = None
        for j in range(n):
            if j != k:
                p = others[j] if p is None else p * others[j]
        products.append(p if p is not None else others[k] * 0 + 1)
    scale = products[0] if n == 1 else wrap(_concatenated(products))
    turn = reshape(
        tensor(np.linalg.det(run.to_numpy((u @ vh).value.node)), dtype=x.value.dtype), (*d.value.shape, 1, 1)
    )
    return turn * ((u * unsqueeze(scale, -2)) @ vh)


def _concatenated(parts: Sequence[Tensor]) -> Value:
    from weft.core.movement import cat

    return cat(list(parts), -1).value


class SignLog(NamedTuple):
    """The sign of a determinant and the logarithm of its size."""

    sign: Tensor
    logabsdet: Tensor


def slogdet(A: Tensor) -> SignLog:
    """The sign of the determinant and the logarithm of its size, which cannot overflow."""
    v = _square("linalg.slogdet", A)
    found = _lapack("linalg.slogdet", np.linalg.slogdet, _host("linalg.slogdet", v))
    size = _derived(
        np.asarray(found[1], _numpy_dtype(v)), (v,),
        lambda g, y, x: (reshape(g, (*g.value.shape, 1, 1)) * _t(inv(x)),),
    )  # fmt: skip
    return SignLog(wrap(_leaf(np.asarray(found[0], _numpy_dtype(v)), v)), size)


def logdet(input: Tensor) -> Tensor:
    """The logarithm of the determinant; NaN where it is negative."""
    found = slogdet(input)
    return where(lt(found.sign, 0), math.nan, found.logabsdet)


# ---------------------------------------------------------------------------------------------- solving


def _as_columns(op: str, A: Value, B: Value, left: bool) -> tuple[Value, bool]:
    """B as matrices; True where it was vectors, one per matrix of A."""
    vector = len(B.shape) == 1 or (left and len(B.shape) == len(A.shape) - 1 and B.shape == A.shape[:-1])
    return (bc.reshape(B, (*B.shape, 1)), True) if vector else (B, False)


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """The X with A X = B (or X A = B without `left`). B may be vectors. LinAlgError for singular A."""
    a, b = _square("linalg.solve", A), _floats("linalg.solve", B)
    if a.dtype is not b.dtype:
        raise DTypeError(f"linalg.solve: A is {a.dtype.name}, B {b.dtype.name}; convert one with .to(...)")
    columns, vector = _as_columns("linalg.solve", a, b, left)
    if vector and not left:
        raise ShapeError("linalg.solve: B must be matrices for left=False")
    if columns.shape[-2 if left else -1] != a.shape[-1]:
        raise ShapeError(f"linalg.solve: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit")
    lead = bc.broadcast_shape("linalg.solve", (a.shape[:-2], columns.shape[:-2]))
    out = _solved(a, bc.expand(columns, (*lead, *columns.shape[-2:])), left)
    return reshape(out, out.value.shape[:-1]) if vector else out


def _solved(a: Value, b: Value, left: bool) -> Tensor:
    x, y = _host("linalg.solve", a), _host("linalg.solve", b)
    if left:
        array = _lapack("linalg.solve", np.linalg.solve, x, y)
    else:
        array = np.swapaxes(
            _lapack("linalg.solve", np.linalg.solve, np.swapaxes(x, -1, -2), np.swapaxes(y, -1, -2)), -1, -2
        )

    def rule(g: Tensor, out: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gb = solve(_t(a), g, left=left)
        ga = -(gb @ _t(out)) if left else -(_t(out) @ gb)
        return _sum_to(ga, a.value.shape), gb

    return _derived(array, (a, b), rule)


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Checked:
    """As solve, with an int32 code per matrix."""
    v = _square("linalg.solve_ex", A)
    codes = _pivot_codes(_host("linalg.solve_ex", v))
    if codes.any() and not check_errors:
        shape = value_of("linalg.solve_ex", B).shape
        return Checked(wrap(bc.scalar(math.nan, v.dtype, shape)), _codes(codes, v))
    return Checked(solve(A, B, left=left), _codes(codes, v))


def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """The X with A X = B (X A = B without `left`) for triangular A, whose other half is not looked at."""
    a, b = _square("linalg.solve_triangular", A), _matrices("linalg.solve_triangular", B)
    if a.shape[-1] != b.shape[-2 if left else -1]:
        raise ShapeError(f"linalg.solve_triangular: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit")
    triangle = (
        triu(wrap(a), 1 if unitriangular else 0) if upper else tril(wrap(a), -1 if unitriangular else 0)
    )
    if unitriangular:
        triangle = triangle + eye(_size(a), dtype=a.dtype, device=a.node.device)
    lead = bc.broadcast_shape("linalg.solve_triangular", (a.shape[:-2], b.shape[:-2]))
    full = bc.expand(b, (*lead, *b.shape[-2:]))
    whole = triangle.value
    x = _host("linalg.solve_triangular", whole)
    y = _host("linalg.solve_triangular", full)
    if (np.diagonal(x, axis1=-2, axis2=-1) == 0).any():
        array = _substituted(x, y, upper, left)
        return wrap(_leaf(array, a))
    return _solved(whole, full, left)


def _substituted(x: Array, y: Array, upper: bool, left: bool) -> Array:
    """Substitution as it stands, with the infinities that a zero on the diagonal gives."""
    if not left:
        turned = _substituted(np.swapaxes(x, -1, -2), np.swapaxes(y, -1, -2), not upper, True)
        return np.swapaxes(turned, -1, -2)
    x = np.broadcast_to(x, (*y.shape[:-2], *x.shape[-2:]))
    out = np.array(y)
    n = x.shape[-1]
    with np.errstate(all="ignore"):
        for i in reversed(range(n)) if upper else range(n):
            part = slice(i + 1, n) if upper else slice(0, i)
            rest = out[..., i, :] - (x[..., i, None, part] @ out[..., part, :])[..., 0, :]
            out[..., i, :] = rest / x[..., i, i, None]
    return out


def triangular_solve(
    input: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    """The solution of A X = input for triangular A, and a copy of A; torch's older form of solve_triangular."""
    matrix = A.mT if transpose else A
    out = solve_triangular(matrix, input, upper=upper != transpose, unitriangular=unitriangular)
    return out, A.clone()


def _size(v: Value) -> int:
    n = v.shape[-1]
    if not isinstance(n, int):
        raise ShapeError(f"linalg: the size {n} must be known")
    return n


def _sizes(v: Value) -> tuple[int, int]:
    m, n = v.shape[-2:]
    if not isinstance(m, int) or not isinstance(n, int):
        raise ShapeError(f"linalg: the sizes {m} and {n} must be known")
    return m, n


# ---------------------------------------------------------------------------------------------- Cholesky


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The lower triangular L with A = L L^T (or the upper one). LinAlgError unless A is positive definite."""
    v = _square("linalg.cholesky", A)
    array = _lapack("linalg.cholesky", np.linalg.cholesky, _host("linalg.cholesky", v))
    lower = _derived(array, (v,), _cholesky_rule)
    return lower.mT if upper else lower


def _cholesky_rule(g: Tensor, low: Tensor, x: Tensor) -> tuple[Tensor]:
    """L^-T sym(phi(L^T g)) L^-1, phi halving the diagonal of the lower triangle."""
    inner = tril(_t(low) @ g)
    inner = inner - _diagonal_matrix(inner) * 0.5
    whole = solve_triangular(low.mT, inner, upper=True)
    whole = solve_triangular(low, whole, upper=False, left=False)
    return ((whole + whole.mT) * 0.5,)


def _diagonal_matrix(x: Tensor) -> Tensor:
    n = _size(x.value)
    return x * eye(n, dtype=x.value.dtype, device=x.value.node.device)


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> Checked:
    """As cholesky, with an int32 code per matrix: the order of the first minor that is not positive."""
    v = _square("linalg.cholesky_ex", A)
    array = _host("linalg.cholesky_ex", v)
    codes = np.zeros(array.shape[:-2], np.int32)
    for at in np.ndindex(array.shape[:-2]):
        for k in range(1, array.shape[-1] + 1):
            try:
                np.linalg.cholesky(array[at][:k, :k])
            except np.linalg.LinAlgError:
                codes[at] = k
                break
    if codes.any():
        if check_errors:
            raise LinAlgError("linalg.cholesky_ex: matrix is not positive definite")
        return Checked(wrap(bc.scalar(math.nan, v.dtype, v.shape)), _codes(codes, v))
    return Checked(cholesky(A, upper=upper), _codes(codes, v))


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """The X with A X = B, from the Cholesky factor of A."""

    def value(B: Tensor, L: Tensor) -> Tensor:
        low = L.mT if upper else L
        first = solve_triangular(low, B, upper=False)
        return solve_triangular(low.mT, first, upper=True)

    b, factor = _matrices("cholesky_solve", B), _square("cholesky_solve", L)

    def rule(g: Value, out: Value, b: Value, factor: Value) -> tuple[Value | None, ...]:
        gb = cholesky_solve(wrap(g), wrap(factor), upper)
        common = gb @ wrap(out).mT
        common = common + common.mT
        gl = -(wrap(factor) @ common) if upper else -(common @ wrap(factor))
        return _sum_to(gb, b.shape).value, _sum_to(gl, factor.shape).value

    out = value(wrap(Value(b.node)), wrap(Value(factor.node)))
    return wrap(composed(out.value.node, (b, factor), rule))


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of A from its Cholesky factor."""
    v = _square("cholesky_inverse", L)
    one = eye(_size(v), dtype=v.dtype, device=v.node.device)
    out = cholesky_solve(expand(one, v.shape), wrap(Value(v.node)), upper)

    def rule(g: Value, result: Value, factor: Value) -> tuple[Value | None, ...]:
        y, common = wrap(result), wrap(g) + wrap(g).mT
        common = y @ common @ y
        return ((-(wrap(factor) @ common) if upper else -(common @ wrap(factor))).value,)

    return wrap(composed(out.value.node, (v,), rule))


# ---------------------------------------------------------------------------------------------- QR


class QR(NamedTuple):
    """Orthonormal columns Q and an upper triangle R."""

    Q: Tensor
    R: Tensor


def qr(A: Tensor, mode: str = "reduced") -> QR:
    """A = Q R. mode "complete" gives a square Q, "r" only R."""
    v = _matrices("linalg.qr", A)
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f"linalg.qr: mode must be 'reduced', 'complete' or 'r', got {mode!r}")
    array = _host("linalg.qr", v)
    if mode == "r":
        r = _lapack("linalg.qr", np.linalg.qr, array, "r")
        return QR(wrap(bc.scalar(0, v.dtype, (0,))), wrap(_leaf(r, v)))
    q, r = _lapack("linalg.qr", np.linalg.qr, array, mode)
    m, n = array.shape[-2:]
    if mode == "complete" and m > n:

        def refuse(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
            raise ArgumentError(
                "linalg.qr: mode='complete' has no derivative for more rows than columns; use mode='reduced'"
            )

        return QR(_derived(q, (v,), refuse), _derived(r, (v,), refuse))
    q_leaf, r_leaf = _leaf(q, v), _leaf(r, v)

    def back(gq: Tensor | None, gr: Tensor | None, x: Tensor) -> Tensor:
        Q, R = (wrap(Value(q_leaf.node)), wrap(Value(r_leaf.node))) if not x.value.needs_grad else qr(x)
        return _qr_gradient(gq, gr, Q, R, x)

    return QR(
        _derived(q, (v,), lambda g, y, x: (back(g, None, x),)),
        _derived(r, (v,), lambda g, y, x: (back(None, g, x),)),
    )


def _qr_gradient(gq: Tensor | None, gr: Tensor | None, Q: Tensor, R: Tensor, x: Tensor) -> Tensor:
    m, n = _sizes(x.value)
    if m >= n:
        return _qr_tall(gq, gr, Q, R)
    # wide: A = [X | Y] with square X = Q U, and Y = Q V: gradients of U and V
    left, right = narrow(R, -1, 0, m), narrow(R, -1, m, n - m)
    g_left = None if gr is None else narrow(gr, -1, 0, m)
    g_right = None if gr is None else narrow(gr, -1, m, n - m)
    y = narrow(x, -1, m, n - m)
    inner = gq
    if g_right is not None:
        extra = y @ g_right.mT
        inner = extra if inner is None else inner + extra
    gx = _qr_tall(inner, g_left, Q, left)
    gy = Q @ g_right if g_right is not None else right * 0
    from weft.core.movement import cat

    return cat([gx, gy], -1)


def _qr_tall(gq: Tensor | None, gr: Tensor | None, Q: Tensor, R: Tensor) -> Tensor:
    inner: Tensor | None = None
    if gr is not None:
        inner = R @ gr.mT
    if gq is not None:
        part = gq.mT @ Q
        inner = -part if inner is None else inner - part
    assert inner is not None
    low = tril(inner, -1)
    symmetric = low + low.mT + _diagonal_matrix(inner)
    right = Q @ symmetric
    right = right if gq is None else right + gq
    return solve_triangular(R.mT, right, upper=False, left=False)


# ---------------------------------------------------------------------------------------------- eigenvalues, SVD


class Eigen(NamedTuple):
    """Eigenvalues, ascending, and the eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def eigh(A: Tensor, UPLO: str = "L") -> Eigen:
    """Eigenvalues and eigenvectors of symmetric matrices, of which only the triangle UPLO is looked at."""
    v = _square("linalg.eigh", A)
    if UPLO.upper() not in ("L", "U"):
        raise ArgumentError(f"linalg.eigh: UPLO must be 'L' or 'U', got {UPLO!r}")
    array = _host("linalg.eigh", v)
    w, q = _lapack("linalg.eigh", np.linalg.eigh, array, UPLO.upper())

    def values_rule(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
        Q = _vectors(x, q, UPLO)[1]
        return ((Q * unsqueeze(g, -2)) @ Q.mT,)

    def vectors_rule(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
        values, Q = _vectors(x, q, UPLO, w)
        gaps = unsqueeze(values, -2) - unsqueeze(values, -1)
        n = _size(Q.value)
        one = eye(n, dtype=Q.value.dtype, device=Q.value.node.device)
        inverse = where(ne(one, 0), 0.0, reciprocal(where(ne(one, 0), 1.0, gaps)))
        inner = (Q.mT @ g) * inverse
        return (Q @ inner @ Q.mT,)

    return Eigen(_derived(w, (v,), values_rule), _derived(q, (v,), vectors_rule))


def _vectors(x: Tensor, q: Array, uplo: str, w: Array | None = None) -> tuple[Tensor, Tensor]:
    """The factors again: on the tape where the gradient is to be differentiated."""
    if x.value.needs_grad:
        from weft.autograd.value import grad_enabled

        if grad_enabled():
            found = eigh(x, uplo)
            return found.eigenvalues, found.eigenvectors
    return wrap(_leaf(w if w is not None else q, x.value)), wrap(_leaf(q, x.value))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of symmetric matrices, ascending."""
    return eigh(A, UPLO).eigenvalues


class SVD(NamedTuple):
    """Orthonormal columns U, singular values S descending, orthonormal rows Vh."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> SVD:
    """A = U diag(S) Vh. Without full_matrices, only as many vectors as singular values."""
    v = _matrices("linalg.svd", A)
    array = _host("linalg.svd", v)
    u, s, vh = _lapack("linalg.svd", np.linalg.svd, array, full_matrices)
    k = s.shape[-1]

    def part(which: str) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor]]:
        def rule(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
            from weft.autograd.value import grad_enabled

            factors = SVD(*(wrap(_leaf(a, x.value)) for a in (u[..., :, :k], s, vh[..., :k, :])))
            U, S, Vh = svd(x, full_matrices=False) if grad_enabled() and x.value.needs_grad else factors
            if which == "S":
                return ((U * unsqueeze(g, -2)) @ Vh,)
            if which == "U":
                return (_svd_gradient(narrow(g, -1, 0, k), None, U, S, Vh),)
            return (_svd_gradient(None, narrow(g, -2, 0, k), U, S, Vh),)

        return rule

    return SVD(_derived(u, (v,), part("U")), _derived(s, (v,), part("S")), _derived(vh, (v,), part("Vh")))


def _svd_gradient(gu: Tensor | None, gvh: Tensor | None, U: Tensor, S: Tensor, Vh: Tensor) -> Tensor:
    k = _size(S.value)
    m, n = _sizes(U.value)[0], _sizes(Vh.value)[1]
    one = eye(k, dtype=S.value.dtype, device=S.value.node.device)
    same = ne(one, 0)
    row, column = unsqueeze(S, -1), unsqueeze(S, -2)
    gap = where(same, 0.0, reciprocal(where(same, 1.0, (column - row) * (column + row))))
    if gu is not None:
        a = U.mT @ gu
        inner = U @ (((a - a.mT) * gap) * column)
        if m > k:
            rest = gu / column
            inner = inner + rest - U @ (U.mT @ rest)
        return inner @ Vh
    assert gvh is not None
    b = gvh @ Vh.mT
    inner = (row * ((b.mT - b) * gap)) @ Vh
    if n > k:
        rest = gvh / row
        inner = inner + rest - (rest @ Vh.mT) @ Vh
    return U @ inner


def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values, descending."""
    return svd(A, full_matrices=False).S


def torch_svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """torch.svd, the older form: V instead of its transpose."""
    u, s, vh = svd(input, full_matrices=not some)
    if not compute_uv:
        m, n = input.value.shape[-2:]
        lead = input.value.shape[:-2]
        zero = bc.scalar(0, input.value.dtype, (*lead, m, m)), bc.scalar(0, input.value.dtype, (*lead, n, n))
        return wrap(zero[0]), s, wrap(zero[1])
    return u, s, vh.mT


# ---------------------------------------------------------------------------------------------- pseudoinverse, rank


def _cut(s: Tensor, atol: Any, rtol: Any, size: int, dtype: DType) -> Tensor:
    """The size below which a singular value counts as zero."""
    eps = 2.0**-52 if dtype.name == "float64" else 2.0**-23
    largest = amax(abs(s), -1, keepdim=True)
    if rtol is None:
        given = atol is not None and (isinstance(atol, Handle) or atol > 0)
        if isinstance(atol, Handle):
            relative: Any = where(gt(wrap(atol.value), 0), 0.0, size * eps)
        else:
            relative = 0.0 if given else size * eps
    else:
        relative = rtol
    bound = largest * (unsqueeze(wrap(relative.value), -1) if isinstance(relative, Handle) else relative)
    if atol is not None:
        bound = maximum(
            bound, (unsqueeze(wrap(atol.value), -1) if isinstance(atol, Handle) else bound * 0 + atol)
        )
    return bound


def pinv(
    A: Tensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False, rcond: Any = None
) -> Tensor:
    """The pseudoinverse: singular values up to max(atol, rtol * largest) count as zero."""
    v = _matrices("linalg.pinv", A)
    rtol = rtol if rcond is None else rcond
    m, n = _sizes(v)
    if 0 in (*v.shape,):
        return wrap(bc.scalar(0, v.dtype, (*v.shape[:-2], n, m)))
    x = wrap(Value(v.node))
    if hermitian:
        w, q = eigh(x)
        bound = _cut(w, atol, rtol, max_(m, n), v.dtype)
        inverse = where(gt(abs(w), bound), reciprocal(where(eq(w, 0), 1.0, w)), 0.0)
        out = (q * unsqueeze(inverse, -2)) @ q.mT
    else:
        u, s, vh = svd(x, full_matrices=False)
        bound = _cut(s, atol, rtol, max_(m, n), v.dtype)
        inverse = where(gt(s, bound), reciprocal(where(eq(s, 0), 1.0, s)), 0.0)
        out = (vh.mT * unsqueeze(inverse, -2)) @ u.mT

    def rule(g: Value, result: Value, a: Value) -> tuple[Value]:
        y, gy, ax = wrap(result), wrap(g), wrap(a)
        yt, gt_ = y.mT, gy.mT
        first = yt @ gy @ yt
        left = (gt_ - ax @ (y @ gt_)) @ (y @ yt)
        right = (yt @ y) @ (gt_ - (gt_ @ y) @ ax)
        return ((left + right - first).value,)

    return wrap(composed(out.value.node, (v,), rule))


def max_(a: int, b: int) -> int:
    """The larger of two sizes."""
    return builtins.max(a, b)


def matrix_rank(
    A: Tensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False, tol: Any = None
) -> Tensor:
    """How many singular values are above max(atol, rtol * largest)."""
    v = _matrices("linalg.matrix_rank", A)
    m, n = _sizes(v)
    if 0 in (m, n):
        return wrap(bc.scalar(0, int64, v.shape[:-2]))
    if tol is not None:
        atol, rtol = tol, 0.0
    x = wrap(Value(v.node))
    s = abs(eigvalsh(x)) if hermitian else svdvals(x)
    return sum(gt(s, _cut(s, atol, rtol, max_(m, n), v.dtype)), -1)


class LeastSquares(NamedTuple):
    """The solution, sums of squared residuals, ranks, and singular values."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def lstsq(A: Tensor, B: Tensor, rcond: Any = None, *, driver: str | None = None) -> LeastSquares:
    """The X that minimizes |A X - B|, by the pseudoinverse."""
    a, b = _matrices("linalg.lstsq", A), _floats("linalg.lstsq", B)
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise ArgumentError(f"linalg.lstsq: driver must be gels, gelsy, gelsd or gelss, got {driver!r}")
    columns, vector = _as_columns("linalg.lstsq", a, b, True)
    m, n = _sizes(a)
    if columns.shape[-2] != m:
        raise ShapeError(f"linalg.lstsq: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit")
    out = pinv(wrap(a), rtol=rcond) @ wrap(columns)
    none = wrap(bc.scalar(0, a.dtype, (0,)))
    residuals = none
    rank = matrix_rank(wrap(Value(a.node)), rtol=rcond)
    if m > n and driver != "gelsy":
        full = bool((run.to_numpy(rank.value.node) == n).all())
        if full:
            rest = wrap(a) @ out - wrap(columns)
            residuals = sum(rest * rest, -2)
    if driver in (None, "gels", "gelsy"):
        values = none
    else:
        values = svdvals(wrap(Value(a.node)))
    ranks = rank if driver not in ("gels",) else wrap(bc.scalar(0, int64, (0,)))
    if driver is None:
        ranks = rank
    return LeastSquares(reshape(out, out.value.shape[:-1]) if vector else out, residuals, ranks, values)


# ---------------------------------------------------------------------------------------------- LU


class LU(NamedTuple):
    """A = P L U: a permutation, a lower triangle with ones on its diagonal, an upper triangle."""

    P: Tensor
    L: Tensor
    U: Tensor


class Compact(NamedTuple):
    """Both triangles of an LU factorization in one matrix, and its row exchanges, counted from 1."""

    LU: Tensor
    pivots: Tensor


class CompactChecked(NamedTuple):
    """As Compact, with an int32 code per matrix."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


def _factorized(array: Array) -> tuple[Array, Array, Array]:
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


def lu(A: Tensor, *, pivot: bool = True) -> LU:
    """A = P L U with row exchanges (`pivot`)."""
    v = _matrices("linalg.lu", A)
    if not pivot:
        raise ArgumentError("linalg.lu: pivot=False is not offered on a CPU, as in torch")
    order, packed, _ = _factorized(_host("linalg.lu", v))
    m, n = packed.shape[-2:]
    k = min(m, n)
    low = np.tril(packed[..., :, :k], -1) + np.eye(m, k, dtype=packed.dtype)
    high = np.triu(packed[..., :k, :])
    shuffle = np.eye(m, dtype=packed.dtype)[order].swapaxes(-1, -2)
    P = wrap(_leaf(shuffle, v))

    def rules(which: str) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor]]:
        def rule(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
            from weft.autograd.value import grad_enabled

            factors = LU(P, wrap(_leaf(low, x.value)), wrap(_leaf(high, x.value)))
            _, L, U = lu(x) if grad_enabled() and x.value.needs_grad else factors
            return (P @ _lu_gradient(g if which == "L" else None, g if which == "U" else None, L, U, m, n),)

        return rule

    return LU(P, _derived(low, (v,), rules("L")), _derived(high, (v,), rules("U")))


def _lu_gradient(gl: Tensor | None, gu: Tensor | None, L: Tensor, U: Tensor, m: int, n: int) -> Tensor:
    """The gradient of P^T A = L U, split at the square part of size min(m, n)."""
    from weft.core.movement import cat

    k = min(m, n)
    L1, U1 = narrow(L, -2, 0, k), narrow(U, -1, 0, k)
    gl1 = None if gl is None else narrow(gl, -2, 0, k)
    gu1 = None if gu is None else narrow(gu, -1, 0, k)
    inner: Tensor = L1 * 0
    if gl1 is not None:
        inner = inner + tril(L1.mT @ gl1, -1)
    if gu1 is not None:
        inner = inner + triu(gu1 @ U1.mT)
    if m > n:
        g2 = None if gl is None else narrow(gl, -2, k, m - k)
        L2 = narrow(L, -2, k, m - k)
        if g2 is not None:
            inner = inner - triu(L2.mT @ g2)
            bottom = solve_triangular(U1.mT, g2, upper=False, left=False)
        else:
            bottom = L2 * 0
        top = _between(inner, L1, U1)
        return cat([top, bottom], -2)
    if n > m:
        g2 = None if gu is None else narrow(gu, -1, k, n - k)
        U2 = narrow(U, -1, k, n - k)
        if g2 is not None:
            inner = inner - tril(g2 @ U2.mT, -1)
            right = solve_triangular(L1.mT, g2, upper=True, unitriangular=True)
        else:
            right = U2 * 0
        return cat([_between(inner, L1, U1), right], -1)
    return _between(inner, L1, U1)


def _between(inner: Tensor, L1: Tensor, U1: Tensor) -> Tensor:
    """L^-T inner U^-T."""
    left = solve_triangular(L1.mT, inner, upper=True, unitriangular=True)
    return solve_triangular(U1.mT, left, upper=False, left=False)


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> CompactChecked:
    """As lu_factor, with an int32 code per matrix: 1 + the place of the first zero pivot."""
    v = _matrices("linalg.lu_factor_ex", A)
    found = lu(A, pivot=pivot)
    _, packed, pivots = _factorized(run.to_numpy(v.node))
    m, n = packed.shape[-2:]
    k = min(m, n)
    low, high = tril(found.L, -1), found.U
    if m > n:
        high = _padded(high, -2, m - k)
    if n > m:
        low = _padded(low, -1, n - k)
    codes = np.diagonal(packed, axis1=-2, axis2=-1) == 0
    info = (
        np.where(codes.any(-1), codes.argmax(-1) + 1, 0).astype(np.int32)
        if k
        else np.zeros(packed.shape[:-2], np.int32)
    )
    if check_errors and info.any():
        raise LinAlgError("linalg.lu_factor_ex: a pivot is exactly zero")
    return CompactChecked(low + high, tensor(pivots, dtype=int32, device=v.node.device), _codes(info, v))


def _padded(x: Tensor, dim: int, by: int) -> Tensor:
    from weft.core.movement import pad_value

    low, high = [0] * len(x.value.shape), [0] * len(x.value.shape)
    high[dim] = by
    return wrap(pad_value(x.value, low, high))


def lu_factor(A: Tensor, *, pivot: bool = True) -> Compact:
    """Both triangles of the LU factorization in one matrix, and the row exchanges."""
    found = lu_factor_ex(A, pivot=pivot)
    return Compact(found.LU, found.pivots)


def _row_order(pivots: Array, m: int) -> Array:
    """The order of rows that exchanges lead to."""
    flat = (
        pivots.reshape(-1, pivots.shape[-1])
        if pivots.size
        else np.zeros((math.prod(pivots.shape[:-1]), 0), np.int64)
    )
    order = np.tile(np.arange(m), (len(flat), 1))
    for b, line in enumerate(flat):
        for j, p in enumerate(line):
            order[b, [j, p - 1]] = order[b, [p - 1, j]]
    return order.reshape(*pivots.shape[:-1], m)


def lu_unpack(LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> LU:
    """P, L and U from the compact form."""
    v = _matrices("lu_unpack", LU_data)
    m, n = _sizes(v)
    k = min(m, n)
    none = wrap(bc.scalar(0, v.dtype, (0,)))
    low, high, shuffle = none, none, none
    if unpack_data:
        low = tril(narrow(LU_data, -1, 0, k), -1) + eye(m, k, dtype=v.dtype, device=v.node.device)
        high = triu(narrow(LU_data, -2, 0, k))
    if unpack_pivots:
        order = _row_order(_host("lu_unpack", value_of("lu_unpack", LU_pivots)), m)
        shuffle = wrap(_leaf(np.eye(m, dtype=_numpy_dtype(v))[order].swapaxes(-1, -2), v))
    return LU(shuffle, low, high)


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """The X with A X = B (X A = B, A^T X = B) from the compact LU factorization of A."""
    P, L, U = lu_unpack(LU, pivots)
    if not left:
        return lu_solve(LU, pivots, B.mT, adjoint=not adjoint).mT
    if adjoint:
        first = solve_triangular(U.mT, B, upper=False)
        return P @ solve_triangular(L.mT, first, upper=True, unitriangular=True)
    first = solve_triangular(L, P.mT @ B, upper=False, unitriangular=True)
    return solve_triangular(U, first, upper=True)


# ---------------------------------------------------------------------------------------------- norms


def vector_norm(
    x: Tensor, ord: float = 2, dim: Dims | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """(sum |x|**ord) ** (1 / ord) over dim (all by default); largest and smallest for inf and -inf, count for 0."""
    v = value_of("linalg.vector_norm", x)
    if dtype is not None:
        v = bc.cast(v, dtype)
    if not v.dtype.is_float:
        raise DTypeError(
            f"linalg.vector_norm: needs a float tensor, got {v.dtype.name}; convert it with .float()"
        )
    a = wrap(widened(v))
    if ord in (math.inf, -math.inf):
        size = abs(a)
        if not elements(v.shape):
            return wrap(bc.cast(sum(size, dim, keepdim).value, v.dtype))
        out = amax(size, dim, keepdim) if ord > 0 else amin(size, dim, keepdim)
    elif ord == 0:
        out = sum(wrap(bc.cast(ne(a, 0).value, a.value.dtype)), dim, keepdim)
    elif ord == 1:
        out = sum(abs(a), dim, keepdim)
    elif ord == 2:
        out = _root_of_squares(a, dim, keepdim)
    else:
        out = pow(sum(pow(abs(a), ord), dim, keepdim), 1.0 / ord)
    return wrap(bc.cast(out.value, v.dtype))


def _root_of_squares(a: Tensor, dim: Dims | None, keepdim: bool) -> Tensor:
    """The Euclidean length; its gradient at 0 is 0."""
    from weft.autograd.ops import mul

    node = sqrt(sum(wrap(Value(a.value.node)) * wrap(Value(a.value.node)), dim, keepdim=True)).value
    flat = sqrt(sum(wrap(Value(a.value.node)) * wrap(Value(a.value.node)), dim, keepdim)).value

    def rule(g: Value, out: Value, x: Value) -> tuple[Value]:
        length = bc.reshape(out, node.shape)
        unit = wrap(x) / wrap(bc.expand(length, x.shape))
        unit = where(eq(wrap(bc.expand(length, x.shape)), 0), 0.0, unit)
        return (mul(bc.expand(bc.reshape(g, node.shape), x.shape), unit.value),)

    return wrap(composed(flat.node, (a.value,), rule))


def matrix_norm(
    A: Tensor,
    ord: float | str = "fro",
    dim: tuple[int, int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """A norm of matrices: "fro", "nuc", or inf, -inf, 1, -1, 2, -2."""
    v = value_of("linalg.matrix_norm", A)
    if dtype is not None:
        v = bc.cast(v, dtype)
    if len(v.shape) < 2:
        raise ShapeError(f"linalg.matrix_norm: needs at least 2 dimensions, got shape {tuple(v.shape)}")
    if not v.dtype.is_float:
        raise DTypeError(
            f"linalg.matrix_norm: needs a float tensor, got {v.dtype.name}; convert it with .float()"
        )
    if len(dim) != 2:
        raise ArgumentError(f"linalg.matrix_norm: dim must be two dimensions, got {dim}")
    i, j = (axis("linalg.matrix_norm", d, v.shape) for d in dim)
    if i == j:
        raise ArgumentError(f"linalg.matrix_norm: the dimensions {dim} must differ")
    x = wrap(v)
    if ord == "fro":
        return vector_norm(x, 2, (i, j), keepdim)
    if ord in ("nuc", 2, -2):
        moved = movedim(x, (i, j), (-2, -1))
        s = (
            svdvals(moved)
            if v.dtype.bits >= 32
            else wrap(bc.cast(svdvals(wrap(widened(moved.value))).value, v.dtype))
        )
        out = sum(s, -1) if ord == "nuc" else amax(s, -1) if ord == 2 else amin(s, -1)
        if not keepdim:
            return out
        shape = tuple(1 if k in (i, j) else n for k, n in enumerate(v.shape))
        return reshape(out, shape)
    if ord not in (1, -1, math.inf, -math.inf):
        raise ArgumentError(
            f"linalg.matrix_norm: ord must be 'fro', 'nuc', inf, -inf, 1, -1, 2 or -2, got {ord!r}"
        )
    along, other = (i, j) if ord in (1, -1) else (j, i)
    sums = sum(abs(x), along, keepdim=True)
    out = amax(sums, other, keepdim=True) if ord > 0 else amin(sums, other, keepdim=True)
    shape = tuple(n for k, n in enumerate(v.shape) if k not in (i, j))
    return out if keepdim else reshape(out, shape)


def norm(
    A: Tensor,
    ord: float | str | None = None,
    dim: Dims | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """A vector norm of all elements or along one dim, or a matrix norm along two."""
    rank = len(value_of("linalg.norm", A).shape)
    if isinstance(dim, int):
        dim = (dim,)
    if ord is None:
        return vector_norm(A, 2, dim, keepdim, dtype=dtype)
    if dim is not None:
        if len(dim) == 2:
            return matrix_norm(A, ord, (dim[0], dim[1]), keepdim, dtype=dtype)
    elif rank == 2:
        return matrix_norm(A, ord, (0, 1), keepdim, dtype=dtype)
    elif rank > 2:
        raise ShapeError(
            f"linalg.norm: give dim for a tensor of shape {tuple(A.value.shape)} and ord {ord!r}"
        )
    if isinstance(ord, str):
        raise ArgumentError(f"linalg.norm: {ord!r} is a norm of matrices")
    return vector_norm(A, ord, dim, keepdim, dtype=dtype)


def cond(A: Tensor, p: float | str | None = None) -> Tensor:
    """The condition number |A| |A^-1| in a matrix norm, the ratio of singular values by default."""
    v = _matrices("linalg.cond", A)
    if p in (None, 2, -2):
        if not elements(v.shape):
            return wrap(bc.scalar(0, v.dtype, v.shape[:-2]))
        s = svdvals(A)
        first, last = s[..., 0], s[..., -1]
        return last / first if p == -2 else first / last
    if v.shape[-1] != v.shape[-2]:
        raise ShapeError(f"linalg.cond: p={p!r} needs square matrices, got shape {tuple(v.shape)}")
    if not elements(v.shape):
        return wrap(bc.scalar(0, v.dtype, v.shape[:-2]))
    inverse = inv_ex(A).result
    return matrix_norm(A, p) * matrix_norm(inverse, p)


# ---------------------------------------------------------------------------------------------- products and powers


def matrix_power(A: Tensor, n: int) -> Tensor:
    """A @ A @ ... n times, by repeated squaring; of the inverse for negative n."""
    v = value_of("linalg.matrix_power", A)
    if len(v.shape) < 2 or v.shape[-1] != v.shape[-2]:
        raise ShapeError(f"linalg.matrix_power: needs square matrices, got shape {tuple(v.shape)}")
    if not is_int(n):
        raise DTypeError(f"linalg.matrix_power: n must be an int, got {describe(n)}")
    if n < 0:
        return matrix_power(inv(A), -n)
    if n == 0:
        return expand(eye(_size(v), dtype=v.dtype, device=v.node.device), v.shape)
    out: Tensor | None = None
    square = A
    while n:
        if n & 1:
            out = square if out is None else out @ square
        n >>= 1
        square = square @ square if n else square
    assert out is not None
    return out


def matrix_exp(A: Tensor) -> Tensor:
    """The exponential of square matrices: a Taylor polynomial after halving, squared back. Computes A's norm."""
    v = value_of("linalg.matrix_exp", A)
    if len(v.shape) < 2 or v.shape[-1] != v.shape[-2]:
        raise ShapeError(f"linalg.matrix_exp: needs square matrices, got shape {tuple(v.shape)}")
    if not v.dtype.is_float:
        raise DTypeError(
            f"linalg.matrix_exp: needs a float tensor, got {v.dtype.name}; convert it with .float()"
        )
    if not elements(v.shape):
        return A
    x = wrap(widened(v))
    array = _host("linalg.matrix_exp", x.value)
    size = float(np.abs(array).sum(-2).max(initial=0))
    reach = 1.0 if x.value.dtype.name == "float64" else 3.0  # of a Taylor polynomial of degree 18
    halvings = max_(0, math.ceil(math.log2(size / reach))) if math.isfinite(size) and size > 0 else 0
    x = x * 2.0**-halvings
    one = eye(_size(v), dtype=x.value.dtype, device=v.node.device)
    out = one + x * (1 / 18)
    for k in range(17, 0, -1):
        out = one + (x @ out) * (1 / k)
    for _ in range(halvings):
        out = out @ out
    return wrap(bc.cast(out.value, v.dtype))


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of matrices (the first and last may be vectors) in the cheapest order."""
    parts = list(tensors)
    if len(parts) < 2:
        raise ArgumentError(f"linalg.multi_dot: needs at least 2 tensors, got {len(parts)}")
    shapes = [value_of("linalg.multi_dot", p).shape for p in parts]
    if any(len(s) != 2 for s in shapes[1:-1]) or any(len(s) not in (1, 2) for s in (shapes[0], shapes[-1])):
        raise ShapeError(
            f"linalg.multi_dot: only the first and last may be vectors, got {[tuple(s) for s in shapes]}"
        )
    first, last = len(shapes[0]) == 1, len(shapes[-1]) == 1
    if first:
        parts[0] = unsqueeze(parts[0], 0)
    if last:
        parts[-1] = unsqueeze(parts[-1], 1)
    out = _chain(parts)
    if first:
        out = out.squeeze(-2)
    return out.squeeze(-1) if last else out


def _chain(parts: list[Tensor]) -> Tensor:
    """Products in the order of the fewest multiplications, by dynamic programming over where to split."""
    n = len(parts)
    sizes = [_sizes(parts[0].value)[0], *(_sizes(p.value)[1] for p in parts)]
    cost = [[0.0] * n for _ in range(n)]
    split = [[0] * n for _ in range(n)]
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            options = [
                (cost[i][k] + cost[k + 1][j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            ]
            cost[i][j], split[i][j] = min(options)

    def product(i: int, j: int) -> Tensor:
        return parts[i] if i == j else matmul(product(i, split[i][j]), product(split[i][j] + 1, j))

    return product(0, n - 1)


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product of vectors of 3 along dim."""
    x, y = value_of("linalg.cross", input), value_of("linalg.cross", other)
    if len(x.shape) != len(y.shape):
        raise ShapeError(
            f"linalg.cross: shapes {tuple(x.shape)} and {tuple(y.shape)} must have equally many dimensions"
        )
    k = axis("linalg.cross", dim, x.shape)
    if x.shape[k] != 3 or y.shape[k] != 3:
        raise ShapeError(
            f"linalg.cross: dimension {dim} must have size 3, got shapes {tuple(x.shape)} and {tuple(y.shape)}"
        )
    return input.roll(-1, k) * other.roll(1, k) - input.roll(1, k) * other.roll(-1, k)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The dot product along dim."""
    return sum(x * y, dim)


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """The powers 0 to N - 1 of each element, in a new last dimension."""
    v = value_of("linalg.vander", x)
    if not v.shape and N is None:
        raise ShapeError("linalg.vander: needs at least 1 dimension")
    n = v.shape[-1] if N is None else N
    if not isinstance(n, int) or n <= 0:
        if n == 0 and N is None:
            return wrap(bc.scalar(0, v.dtype, (*v.shape, 0)))
        raise ArgumentError(f"linalg.vander: N must be positive, got {n}")
    x = x if v.dtype.is_float else wrap(bc.cast(v, int64))
    x = x if v.shape else reshape(x, 1)
    powers: list[Tensor] = [x * 0 + 1]
    for _ in range(n - 1):
        powers.append(powers[-1] * x)
    return stack(powers, -1)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse for tensordot over the first `ind` dimensions."""
    v = value_of("linalg.tensorinv", A)
    if ind < 1:
        raise ArgumentError(f"linalg.tensorinv: ind must be positive, got {ind}")
    rows, columns = elements(v.shape[:ind]), elements(v.shape[ind:])
    if rows != columns:
        raise ShapeError(f"linalg.tensorinv: shape {tuple(v.shape)} is not square at dimension {ind}")
    return reshape(inv(reshape(A, (rows, columns))), (*v.shape[ind:], *v.shape[:ind]))


def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """The X with tensordot(A, X) = B over all of X's dimensions."""
    v, b = value_of("linalg.tensorsolve", A), value_of("linalg.tensorsolve", B)
    x = A
    if dims is not None:
        x = movedim(A, tuple(dims), tuple(range(len(v.shape) - len(dims), len(v.shape))))
        v = x.value
    rest = v.shape[len(b.shape) :]
    n = elements(b.shape)
    if elements(rest) != n:
        raise ShapeError(f"linalg.tensorsolve: shapes {tuple(v.shape)} and {tuple(b.shape)} do not fit")
    return reshape(solve(reshape(x, (n, n)), reshape(B, (n,))), rest)


def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first columns of the product of reflections I - tau v v^T, v the columns of A below a unit diagonal."""
    v, t = _matrices("linalg.householder_product", A), _floats("linalg.householder_product", tau)
    m, n = _sizes(v)
    k = _size(t)
    if m < n or n < k:
        raise ShapeError(
            f"linalg.householder_product: shapes {tuple(v.shape)} and {tuple(t.shape)} do not fit"
        )
    unit = tril(A, -1) + eye(m, n, dtype=v.dtype, device=v.node.device)
    out = expand(eye(m, n, dtype=v.dtype, device=v.node.device), v.shape)
    for i in reversed(range(k)):
        column = narrow(unit, -1, i, 1)
        factor = unsqueeze(narrow(tau, -1, i, 1), -1)
        out = out - factor * (column @ (column.mT @ out))
    return out


def ormqr(input: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """The product of `other` with the orthogonal matrix that reflections (geqrf) stand for."""
    v = _matrices("ormqr", input)
    m, n = _sizes(v)
    k = _size(tau.value)
    wide = _padded(input, -1, m - n) if m > n else input
    q = householder_product(wide, tau if k <= m else narrow(tau, -1, 0, m))
    q = q.mT if transpose else q
    return q @ other if left else other @ q


class Reflections(NamedTuple):
    """A QR factorization as LAPACK keeps it."""

    a: Tensor
    tau: Tensor


def geqrf(input: Tensor) -> Reflections:
    """The QR factorization as reflections: R above, vectors below the diagonal, and their factors."""
    v = _matrices("geqrf", input)
    array = _host("geqrf", v)
    lead, (m, n) = array.shape[:-2], array.shape[-2:]
    if not array.size:
        return Reflections(wrap(_leaf(array, v)), wrap(_leaf(np.zeros((*lead, min(m, n)), array.dtype), v)))
    h, tau = np.linalg.qr(array, mode="raw")
    return Reflections(wrap(_leaf(h.swapaxes(-1, -2), v)), wrap(_leaf(tau, v)))


def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix."""
    v = value_of("trace", input)
    if len(v.shape) != 2:
        raise ShapeError(f"trace: needs a matrix, got shape {tuple(v.shape)}")
    return sum(diagonal(input))


def torch_cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """torch.cholesky, the older form."""
    return cholesky(input, upper=upper)


def torch_lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """torch.lu_solve, the older form: b comes first."""
    return lu_solve(LU_data, LU_pivots, b)


def torch_lu(A: Tensor, pivot: bool = True, get_infos: bool = False) -> tuple[Tensor, ...]:
    """torch.lu, the older form of lu_factor."""
    found = lu_factor_ex(A, pivot=pivot)
    return (found.LU, found.pivots, found.info) if get_infos else (found.LU, found.pivots)


def diagonal_of(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonals of matrices, as a new last dimension."""
    return diagonal(A, offset, dim1, dim2)
