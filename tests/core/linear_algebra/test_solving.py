"""Linear equations over several dimensions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dims", [None, (0, 2)])
def test_tensorsolve(dims: tuple[int, ...] | None) -> None:
    a = RNG.normal(size=(2, 3, 3, 2) if dims is None else (3, 2, 2, 3))
    b = RNG.normal(size=(2, 3))
    want = np.linalg.tensorsolve(a, b, dims)
    np.testing.assert_allclose(weft.linalg.tensorsolve(weft.tensor(a), weft.tensor(b), dims).numpy(), want)


def test_tensorsolve_needs_as_many_equations_as_unknowns() -> None:
    with pytest.raises(weft.ShapeError, match="do not fit"):
        weft.linalg.tensorsolve(weft.ones(2, 3, 5), weft.ones(2, 3))


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_triangles_with_a_zero_on_the_diagonal_give_infinities(upper: bool, left: bool) -> None:
    """As substitution does: what does not depend on the zero is right, the rest is not finite."""
    a = np.tril(RNG.normal(size=(3, 3))) + 3 * np.eye(3)
    a[2, 2] = 0.0  # the last row of a lower triangle, the first of an upper one that is its mirror image
    a = a[::-1, ::-1].copy() if upper else a
    b = RNG.normal(size=(3, 2))
    given = (a, b) if left else (a.T.copy(), b.T.copy())
    x = weft.linalg.solve_triangular(*map(weft.tensor, given), upper=upper is left, left=left).numpy()
    x = x if left else x.T
    rows = [2, 1] if upper else [0, 1]
    np.testing.assert_allclose((a @ np.where(np.isfinite(x), x, 0.0))[rows], b[rows])
    assert np.isfinite(x[rows]).all() and not np.isfinite(x[0 if upper else 2]).any()


def test_triangles_are_solved_from_both_sides() -> None:
    a = np.triu(RNG.normal(size=(2, 3, 3))) + 3 * np.eye(3)
    b = RNG.normal(size=(2, 3, 3))
    x = weft.linalg.solve_triangular(weft.tensor(a), weft.tensor(b), upper=True)
    y = weft.linalg.solve_triangular(weft.tensor(a), weft.tensor(b), upper=True, left=False)
    np.testing.assert_allclose(a @ x.numpy(), b)
    np.testing.assert_allclose(y.numpy() @ a, b)


@pytest.mark.parametrize(
    "op", [weft.linalg.qr, weft.linalg.cholesky, weft.linalg.inv, weft.linalg.det], ids=lambda f: f.__name__
)
def test_vmap_of_what_the_host_computes_says_that_it_takes_batches(
    op: Callable[[weft.Tensor], object],
) -> None:
    with pytest.raises(
        weft.ArgumentError, match=r"linalg\.\w+: is computed on the host.*takes batches of matrices"
    ):
        weft.vmap(op)(weft.eye(3).expand(4, 3, 3))
