"""Linear algebra: products, norms, factorizations and what is solved with them.

Factorizations run through NumPy's LAPACK on the host, at the call: the input is computed, its factors become new leaves
on its device. Their derivatives are graphs like all others, so gradients fuse, run on the device and can be
differentiated again. Inside `weft.compile` a factorization of traced values is refused, since it would be a host step.
Everything that is only a formula (norms, powers, products) stays lazy.
Source of the derivatives: Giles, "An extended collection of matrix derivative results", 2008; Seeger et al.,
"Auto-differentiating linear algebra", 2017.
"""
# Tests: tests/core/test_surface.py, tests/core/test_torch_samples.py

from weft.core.functions.norms import vector_norm
from weft.core.linear_algebra.cholesky_factors import (
    cholesky,
    cholesky_ex,
    cholesky_inverse,
    cholesky_solve,
    torch_cholesky,
)
from weft.core.linear_algebra.host import Checked, LinAlgError
from weft.core.linear_algebra.inverse import SignLog, det, inv, inv_ex, logdet, slogdet, tensorinv
from weft.core.linear_algebra.ldl_factors import LDL, LDLChecked, ldl_factor, ldl_factor_ex, ldl_solve
from weft.core.linear_algebra.lu_factors import (
    LU,
    Compact,
    CompactChecked,
    lu,
    lu_factor,
    lu_factor_ex,
    lu_solve,
    lu_unpack,
    torch_lu,
    torch_lu_solve,
)
from weft.core.linear_algebra.norms import cond, matrix_norm, norm
from weft.core.linear_algebra.orthogonal_factors import (
    QR,
    Reflections,
    geqrf,
    householder_product,
    ormqr,
    qr,
    torch_qr,
)
from weft.core.linear_algebra.products import (
    cross,
    diagonal_of,
    matrix_exp,
    matrix_power,
    multi_dot,
    trace,
    vander,
    vecdot,
)
from weft.core.linear_algebra.pseudoinverse import LeastSquares, lstsq, matrix_rank, pinv
from weft.core.linear_algebra.solving import solve, solve_ex, solve_triangular, tensorsolve, triangular_solve
from weft.core.linear_algebra.spectra import SVD, Eigen, eigh, eigvalsh, svd, svdvals, torch_svd

__all__ = [
    "Checked", "Compact", "CompactChecked", "Eigen", "LDL", "LDLChecked", "LU", "LeastSquares", "LinAlgError", "QR",
    "Reflections", "SVD", "SignLog", "cholesky", "cholesky_ex", "cholesky_inverse", "cholesky_solve",
    "cond", "cross", "det", "diagonal_of", "eigh", "eigvalsh", "geqrf", "householder_product", "inv",
    "inv_ex", "ldl_factor", "ldl_factor_ex", "ldl_solve", "logdet", "lstsq", "lu",
    "lu_factor", "lu_factor_ex", "lu_solve", "lu_unpack", "matrix_exp",
    "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "ormqr", "pinv", "qr", "slogdet",
    "solve", "solve_ex", "solve_triangular", "svd", "svdvals", "tensorinv", "tensorsolve",
    "torch_cholesky", "torch_lu", "torch_lu_solve", "torch_qr", "torch_svd", "trace", "triangular_solve", "vander",
    "vecdot", "vector_norm",
]  # fmt: skip
