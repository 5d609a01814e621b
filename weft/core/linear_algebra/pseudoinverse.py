"""Functions that singular values decide: the pseudoinverse, the rank, least squares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weft.autograd.value import Value, composed, zero_gradient
from weft.core.args import broadcast as bc
from weft.core.args.handle import Handle, wrap
from weft.core.composed.autocast import widens
from weft.core.execute import run
from weft.core.functions.reductions import amax, sum
from weft.core.layout.movement import reshape, unsqueeze
from weft.core.linear_algebra.host import as_columns, floats, known_sizes, matrices
from weft.core.linear_algebra.spectra import eigh, eigvalsh, svd, svdvals
from weft.core.pointwise.elementwise import abs, eq, gt, maximum, reciprocal, where
from weft.errors import ArgumentError, ShapeError
from weft.ir.dtypes import DType, int64

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


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


@widens
def pinv(
    A: Tensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False, rcond: Any = None
) -> Tensor:
    """The pseudoinverse: singular values up to max(atol, rtol * largest) count as zero."""
    v = matrices("linalg.pinv", A)
    rtol = rtol if rcond is None else rcond
    m, n = known_sizes(v)
    if 0 in (*v.shape,):
        return wrap(zero_gradient(bc.scalar(0, v.dtype, (*v.shape[:-2], n, m)), v))
    x = wrap(Value(v.node))
    if hermitian:
        w, q = eigh(x)
        bound = _cut(w, atol, rtol, max(m, n), v.dtype)
        inverse = where(gt(abs(w), bound), reciprocal(where(eq(w, 0), 1.0, w)), 0.0)
        out = (q * unsqueeze(inverse, -2)) @ q.mT
    else:
        u, s, vh = svd(x, full_matrices=False)
        bound = _cut(s, atol, rtol, max(m, n), v.dtype)
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


@widens
def matrix_rank(
    A: Tensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False, tol: Any = None
) -> Tensor:
    """The number of singular values above max(atol, rtol * largest)."""
    v = matrices("linalg.matrix_rank", A)
    m, n = known_sizes(v)
    if 0 in (m, n):
        return wrap(bc.scalar(0, int64, v.shape[:-2]))
    if tol is not None:
        atol, rtol = tol, 0.0
    x = wrap(Value(v.node))
    s = abs(eigvalsh(x)) if hermitian else svdvals(x)
    return sum(gt(s, _cut(s, atol, rtol, max(m, n), v.dtype)), -1)


class LeastSquares(NamedTuple):
    """The solution, sums of squared residuals, ranks, and singular values."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


@widens
def lstsq(A: Tensor, B: Tensor, rcond: Any = None, *, driver: str | None = None) -> LeastSquares:
    """The X that minimizes |A X - B|, by the pseudoinverse."""
    a, b = matrices("linalg.lstsq", A), floats("linalg.lstsq", B)
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise ArgumentError(f"linalg.lstsq: driver must be gels, gelsy, gelsd or gelss, got {driver!r}")
    columns, vector = as_columns("linalg.lstsq", a, b, True)
    m, n = known_sizes(a)
    if columns.shape[-2] != m:
        raise ShapeError(f"linalg.lstsq: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit")
    out = pinv(wrap(a), rtol=rcond) @ wrap(columns)
    none = wrap(bc.scalar(0, a.dtype, (0,)))
    residuals = wrap(zero_gradient(none.value, a, b))
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
