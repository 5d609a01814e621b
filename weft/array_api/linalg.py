"""The standard's extension for linear algebra, less `eig` and `eigvals`, whose results are complex."""

from __future__ import annotations

from typing import Literal

from weft.array_api.array import offer_arrays
from weft.array_api.manipulation import broadcast_arrays
from weft.array_api.products import matmul, matrix_transpose, tensordot, vecdot
from weft.array_api.promotion import Axes, over_axes, together
from weft.array_api.statistics import sum
from weft.core import linear_algebra as factorized
from weft.core.functions import matmul as products
from weft.core.layout import movement
from weft.core.linear_algebra import QR, SVD, Eigen, SignLog
from weft.core.tensor.tensor import Tensor
from weft.ir.dtypes import DType


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """The triangular factor of positive definite matrices, the lower one by default."""
    return factorized.cholesky(x, upper=upper)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of 3 along an axis."""
    return factorized.cross(*broadcast_arrays(*together("cross", x1, x2)), dim=axis)


def det(x: Tensor, /) -> Tensor:
    """The determinant of square matrices."""
    return factorized.det(x)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """The diagonals of matrices, as a new last axis."""
    return factorized.diagonal_of(x, offset=offset)


def eigh(x: Tensor, /) -> Eigen:
    """Eigenvalues, ascending, and eigenvectors of symmetric matrices."""
    return factorized.eigh(x)


def eigvalsh(x: Tensor, /) -> Tensor:
    """Eigenvalues of symmetric matrices, ascending."""
    return factorized.eigvalsh(x)


def inv(x: Tensor, /) -> Tensor:
    """The inverse of square matrices."""
    return factorized.inv(x)


def matrix_norm(
    x: Tensor, /, *, keepdims: bool = False, ord: float | Literal["fro", "nuc"] | None = "fro"
) -> Tensor:
    """A norm of matrices: "fro", "nuc", or inf, -inf, 1, -1, 2, -2."""
    return factorized.matrix_norm(x, "fro" if ord is None else ord, keepdim=keepdims)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """Square matrices multiplied n times; the inverse for negative n."""
    return factorized.matrix_power(x, n)


def matrix_rank(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """The number of singular values that are larger than rtol times the largest."""
    return factorized.matrix_rank(x, rtol=rtol)


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The products of all pairs of elements of two vectors."""
    return products.outer(*together("outer", x1, x2))


def pinv(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """The pseudoinverse; singular values up to rtol times the largest count as zero."""
    return factorized.pinv(x, rtol=rtol)


def qr(x: Tensor, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QR:
    """Orthonormal columns Q and an upper triangle R."""
    return factorized.qr(x, mode)


def slogdet(x: Tensor, /) -> SignLog:
    """The sign of the determinant and the logarithm of its size."""
    return factorized.slogdet(x)


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The X with x1 X = x2; x2 is one vector where it has one axis, and matrices otherwise."""
    a, b = together("solve", x1, x2)
    if b.ndim == 1:
        return factorized.solve(a, movement.unsqueeze(b, -1))[..., 0]
    rank = max(a.ndim, b.ndim)  # as many axes in both say that x2 is matrices
    return factorized.solve(movement.reshape(a, (1,) * (rank - a.ndim) + tuple(a.shape)), b)


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVD:
    """Singular vectors U, values S, descending, and vectors Vh with x = U S Vh."""
    return factorized.svd(x, full_matrices)


def svdvals(x: Tensor, /) -> Tensor:
    """Singular values, descending."""
    return factorized.svdvals(x)


def trace(x: Tensor, /, *, offset: int = 0, dtype: DType | None = None) -> Tensor:
    """The sums of diagonals of matrices."""
    return sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def vector_norm(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """(sum |x|**ord) ** (1 / ord) over axes, all by default."""
    return over_axes(x, axis, keepdims, lambda x, d, k: factorized.vector_norm(x, ord, d, k))


__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power",
    "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot",
    "trace", "vecdot", "vector_norm",
]  # fmt: skip

offer_arrays(globals(), __all__)
