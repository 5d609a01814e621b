"""Special functions under torch's names."""
# Tests: tests/core/composed/test_halves.py

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.core.functional.activations import log_softmax, softmax
from weft.core.functions.reductions import logsumexp
from weft.core.pointwise.elementwise import erf, exp2, expm1, log1p, logit, round
from weft.core.pointwise.elementwise import sigmoid as expit
from weft.core.pointwise.special_functions import (
    airy_ai,
    bessel_j0,
    bessel_j1,
    bessel_y0,
    bessel_y1,
    digamma,
    entr,
    erfc,
    erfcx,
    erfinv,
    gammainc,
    gammaincc,
    i0,
    i0e,
    i1,
    i1e,
    log_ndtr,
    modified_bessel_i0,
    modified_bessel_i1,
    modified_bessel_k0,
    modified_bessel_k1,
    ndtr,
    ndtri,
    polygamma,
    recurrence,
    scaled_modified_bessel_k0,
    scaled_modified_bessel_k1,
    spherical_bessel_j0,
    xlog1py,
    xlogy,
    zeta,
)  # fmt: skip
from weft.core.pointwise.special_functions import digamma as psi
from weft.core.pointwise.special_functions import lgamma as gammaln
from weft.core.pointwise.special_functions import mvlgamma as multigammaln
from weft.core.pointwise.trigonometry import sinc
from weft.core.surface.keywords import offer, offer_out
from weft.core.surface.overrides import offer_namespace

if TYPE_CHECKING:
    from weft.core.args.handle import Number, TensorLike
    from weft.core.tensor.tensor import Tensor

    Step = Callable[[Tensor, int, Tensor, Tensor], Tensor]


def _chebyshev(x: Tensor, k: int, here: Tensor, before: Tensor) -> Tensor:
    return x * here * 2 - before


def chebyshev_polynomial_t(input: TensorLike, n: Tensor | Number) -> Tensor:
    """The Chebyshev polynomial of the first kind of degree n."""
    return recurrence("chebyshev_polynomial_t", input, n, lambda x: x, _chebyshev)


def chebyshev_polynomial_u(input: TensorLike, n: Tensor | Number) -> Tensor:
    """The Chebyshev polynomial of the second kind of degree n."""
    return recurrence("chebyshev_polynomial_u", input, n, lambda x: x * 2, _chebyshev)


def chebyshev_polynomial_v(input: TensorLike, n: Tensor | Number) -> Tensor:
    """The Chebyshev polynomial of the third kind of degree n."""
    return recurrence("chebyshev_polynomial_v", input, n, lambda x: x * 2 - 1, _chebyshev)


def chebyshev_polynomial_w(input: TensorLike, n: Tensor | Number) -> Tensor:
    """The Chebyshev polynomial of the fourth kind of degree n."""
    return recurrence("chebyshev_polynomial_w", input, n, lambda x: x * 2 + 1, _chebyshev)


def shifted_chebyshev_polynomial_t(input: TensorLike, n: Tensor | Number) -> Tensor:
    """chebyshev_polynomial_t of 2 x - 1."""
    return recurrence("shifted_chebyshev_polynomial_t", input, n, lambda x: x, _chebyshev, shifted=True)


def shifted_chebyshev_polynomial_u(input: TensorLike, n: Tensor | Number) -> Tensor:
    """chebyshev_polynomial_u of 2 x - 1."""
    return recurrence("shifted_chebyshev_polynomial_u", input, n, lambda x: x * 2, _chebyshev, shifted=True)


def shifted_chebyshev_polynomial_v(input: TensorLike, n: Tensor | Number) -> Tensor:
    """chebyshev_polynomial_v of 2 x - 1."""
    return recurrence(
        "shifted_chebyshev_polynomial_v", input, n, lambda x: x * 2 - 1, _chebyshev, shifted=True
    )


def shifted_chebyshev_polynomial_w(input: TensorLike, n: Tensor | Number) -> Tensor:
    """chebyshev_polynomial_w of 2 x - 1."""
    return recurrence(
        "shifted_chebyshev_polynomial_w", input, n, lambda x: x * 2 + 1, _chebyshev, shifted=True
    )


def hermite_polynomial_h(input: TensorLike, n: Tensor | Number) -> Tensor:
    """The physicist's Hermite polynomial of degree n."""
    step: Step = lambda x, k, here, before: x * here * 2 - before * (2 * k)  # noqa: E731  (its type is the point)
    return recurrence("hermite_polynomial_h", input, n, lambda x: x * 2, step)


def hermite_polynomial_he(input: TensorLike, n: Tensor | Number) -> Tensor:
    """The probabilist's Hermite polynomial of degree n."""
    step: Step = lambda x, k, here, before: x * here - before * k  # noqa: E731
    return recurrence("hermite_polynomial_he", input, n, lambda x: x, step)


def laguerre_polynomial_l(input: TensorLike, n: Tensor | Number) -> Tensor:
    """The Laguerre polynomial of degree n."""
    step: Step = lambda x, k, here, before: ((2 * k + 1 - x) * here - before * k) / (k + 1)  # noqa: E731
    return recurrence("laguerre_polynomial_l", input, n, lambda x: 1 - x, step)


def legendre_polynomial_p(input: TensorLike, n: Tensor | Number) -> Tensor:
    """The Legendre polynomial of degree n."""
    step: Step = lambda x, k, here, before: (x * here * (2 * k + 1) - before * k) / (k + 1)  # noqa: E731
    return recurrence("legendre_polynomial_p", input, n, lambda x: x, step)


__all__ = [
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "chebyshev_polynomial_t", "chebyshev_polynomial_u",
    "chebyshev_polynomial_v", "chebyshev_polynomial_w", "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2",
    "expit", "expm1", "gammainc", "gammaincc", "gammaln", "hermite_polynomial_h", "hermite_polynomial_he", "i0", "i0e",
    "i1", "i1e", "laguerre_polynomial_l", "legendre_polynomial_p", "log1p", "log_ndtr", "log_softmax", "logit",
    "logsumexp", "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1", "multigammaln",
    "ndtr", "ndtri", "polygamma", "psi", "round", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
    "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w", "sinc", "softmax", "spherical_bessel_j0", "xlog1py", "xlogy", "zeta",
]  # fmt: skip

offer(globals(), __all__, "weft.special")
offer_out(globals(), [n for n in __all__ if "_polynomial_" in n], "weft.special")
offer_namespace("weft.special")
