# Written by tools/surface.py from weft/surface/table.py.

from weft.core.functional.activations import log_softmax, softmax
from weft.core.functions.reductions import logsumexp
from weft.core.pointwise.elementwise import erf, exp2, expm1, log1p, logit, round, sigmoid as expit
from weft.core.pointwise.polynomials import (
    chebyshev_polynomial_t, chebyshev_polynomial_u, chebyshev_polynomial_v, chebyshev_polynomial_w,
    hermite_polynomial_h, hermite_polynomial_he, laguerre_polynomial_l, legendre_polynomial_p,
    shifted_chebyshev_polynomial_t, shifted_chebyshev_polynomial_u, shifted_chebyshev_polynomial_v,
    shifted_chebyshev_polynomial_w,
)
from weft.core.pointwise.special_functions import (
    airy_ai, bessel_j0, bessel_j1, bessel_y0, bessel_y1, digamma, digamma as psi, entr, erfc, erfcx, erfinv,
    gammainc, gammaincc, i0, i0e, i1, i1e, lgamma as gammaln, log_ndtr, modified_bessel_i0,
    modified_bessel_i1, modified_bessel_k0, modified_bessel_k1, mvlgamma as multigammaln, ndtr, ndtri,
    polygamma, scaled_modified_bessel_k0, scaled_modified_bessel_k1, spherical_bessel_j0, xlog1py, xlogy,
    zeta,
)
from weft.core.pointwise.trigonometry import sinc
__all__ = [
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "chebyshev_polynomial_t",
    "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w", "digamma", "entr", "erf",
    "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammainc", "gammaincc", "gammaln",
    "hermite_polynomial_h", "hermite_polynomial_he", "i0", "i0e", "i1", "i1e", "laguerre_polynomial_l",
    "legendre_polynomial_p", "log1p", "log_ndtr", "log_softmax", "logit", "logsumexp", "modified_bessel_i0",
    "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1", "multigammaln", "ndtr", "ndtri",
    "polygamma", "psi", "round", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
    "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w", "sinc", "softmax", "spherical_bessel_j0", "xlog1py", "xlogy", "zeta",
]
