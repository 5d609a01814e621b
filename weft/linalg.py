"""Linear algebra under torch's names. Factorizations run through LAPACK on the host, at the call."""
# Tests: tests/core/test_against_torch.py

from weft.core.functions.matmul import matmul
from weft.core.linear_algebra import (
    LinAlgError,
    cholesky,
    cholesky_ex,
    cond,
    cross,
    det,
    eigh,
    eigvalsh,
    householder_product,
    inv,
    inv_ex,
    ldl_factor,
    ldl_factor_ex,
    ldl_solve,
    lstsq,
    lu,
    lu_factor,
    lu_factor_ex,
    lu_solve,
    matrix_exp,
    matrix_norm,
    matrix_power,
    matrix_rank,
    multi_dot,
    norm,
    pinv,
    qr,
    slogdet,
    solve,
    solve_ex,
    solve_triangular,
    svd,
    svdvals,
    tensorinv,
    tensorsolve,
    vander,
    vecdot,
    vector_norm,
)  # fmt: skip
from weft.core.linear_algebra import diagonal_of as diagonal
from weft.core.surface.keywords import offer
from weft.core.surface.overrides import offer_namespace

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eigh", "eigvalsh",
    "householder_product", "inv", "inv_ex", "ldl_factor", "ldl_factor_ex", "ldl_solve", "lstsq", "lu",
    "lu_factor", "lu_factor_ex", "lu_solve", "matmul",
    "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv", "qr", "slogdet", "solve",
    "solve_ex", "solve_triangular", "svd", "svdvals", "tensorinv", "tensorsolve", "vander", "vecdot", "vector_norm",
]  # fmt: skip

offer(globals(), __all__, "weft.linalg")
offer_namespace("weft.linalg")
