"""Orthogonal polynomials, each by its recurrence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.core.pointwise.special_functions import recurrence

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
