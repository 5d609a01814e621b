"""The wider surface beside NumPy, SciPy's and mpmath's numbers, and torch where it is installed."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest

import weft

RNG = np.random.default_rng(0)
HAVE_TORCH = importlib.util.find_spec("torch") is not None


def ulps(got: np.ndarray, exact: np.ndarray) -> float:
    """The largest error in units of the last place."""
    finite = np.isfinite(exact) & (exact != 0)
    size = np.spacing(np.abs(exact[finite]).astype(got.dtype)).astype(np.float64)
    return float(np.max(np.abs(got[finite].astype(np.float64) - exact[finite]) / size, initial=0))


# range, and the reference in 30 digits
ACCURACY: dict[str, tuple[float, float, Callable[[Any], Any]]] = {
    "asin": (-1, 1, mp.asin), "acos": (-1, 1, mp.acos), "atan": (-40, 40, mp.atan), "asinh": (-50, 50, mp.asinh),
    "acosh": (1, 60, mp.acosh), "atanh": (-1, 1, mp.atanh), "erfc": (-4, 8, mp.erfc), "erfinv": (-1, 1, mp.erfinv),
    "lgamma": (0.05, 40, mp.loggamma), "digamma": (2, 40, mp.digamma), "sinc": (-4, 4, lambda x: mp.sincpi(x)),
    "special.i0e": (-30, 30, lambda x: mp.besseli(0, x) * mp.exp(-abs(x))),
    "special.i1e": (-30, 30, lambda x: mp.besseli(1, x) * mp.exp(-abs(x))),
    "special.modified_bessel_k0": (0.01, 20, lambda x: mp.besselk(0, x)),
    "special.modified_bessel_k1": (0.01, 20, lambda x: mp.besselk(1, x)),
    "special.airy_ai": (-2, 10, mp.airyai),
    "special.ndtri": (0, 1, lambda p: mp.sqrt(2) * mp.erfinv(2 * p - 1)),
    "special.erfcx": (-3, 40, lambda x: mp.exp(x * x) * mp.erfc(x)),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCURACY)
def test_accuracy(name: str) -> None:
    low, high, exact = ACCURACY[name]
    module: Any = weft
    for part in name.split("."):
        module = getattr(module, part)
    x = RNG.uniform(low, high, 200)
    with mp.workdps(30):
        for dtype, limit in ((np.float32, 4), (np.float64, 40 if name != "lgamma" else 400)):
            given = x.astype(dtype)
            given = given[(given > low) & (given < high)]
            wanted = np.array([float(mp.re(exact(mp.mpf(float(v))))) for v in given])
            assert ulps(module(weft.tensor(given)).numpy(), wanted) <= limit, dtype


def test_bessel_waves() -> None:
    """Near their zeros the error is that of the phase."""
    x = RNG.uniform(0.01, 60, 200)
    for name, exact in (("j0", mp.besselj), ("j1", mp.besselj), ("y0", mp.bessely), ("y1", mp.bessely)):
        wanted = np.array([float(exact(int(name[1]), v)) for v in x])
        got = getattr(weft.special, f"bessel_{name}")(weft.tensor(x)).numpy()
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=4e-15)


def test_incomplete_gamma() -> None:
    a = RNG.uniform(0.05, 200, 60)
    x = a * RNG.uniform(0.6, 1.5, 60)
    lower = np.array([float(mp.gammainc(p, 0, q, regularized=True)) for p, q in zip(a, x, strict=True)])
    np.testing.assert_allclose(weft.igamma(weft.tensor(a), weft.tensor(x)).numpy(), lower, atol=2e-12)
    np.testing.assert_allclose(weft.igammac(weft.tensor(a), weft.tensor(x)).numpy(), 1 - lower, atol=2e-12)


@pytest.mark.parametrize(("shape", "dim"), [((7,), 0), ((33,), 0), ((2, 100, 3), 1), ((1000,), 0)])
def test_sort(shape: tuple[int, ...], dim: int) -> None:
    x = np.round(RNG.standard_normal(shape) * 3).astype(np.float32)
    x.flat[0], x.flat[-1], x.flat[2] = np.nan, -0.0, np.inf
    values, indices = weft.tensor(x).sort(dim)
    order = np.argsort(x, axis=dim, kind="stable")
    np.testing.assert_array_equal(indices.numpy(), order)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, order, dim))
    whole = RNG.integers(-9, 9, shape).astype(np.int32)
    down = weft.tensor(whole).argsort(dim, descending=True).numpy()
    np.testing.assert_array_equal(down, np.argsort(-whole, axis=dim, kind="stable"))
    top = weft.tensor(whole).topk(3, dim)
    np.testing.assert_array_equal(top.indices.numpy(), np.take(down, range(3), dim))


def test_sort_inside_compile() -> None:
    @weft.compile
    def order(x: weft.Tensor) -> weft.Tensor:
        return x.sort().values

    for n in range(3):
        x = RNG.standard_normal(70)
        np.testing.assert_array_equal(order(weft.tensor(x)).numpy(), np.sort(x)), n


@pytest.mark.parametrize("n", [1, 31, 33, 1500])
def test_scans(n: int) -> None:
    x = RNG.uniform(0.9, 1.1, (2, n))
    t = weft.tensor(x)
    np.testing.assert_allclose(t.cumsum(1).numpy(), np.cumsum(x, 1))
    np.testing.assert_allclose(t.cumprod(1).numpy(), np.cumprod(x, 1))
    np.testing.assert_allclose(t.logcumsumexp(1).numpy(), np.log(np.cumsum(np.exp(x), 1)))
    best, at = t.cummax(1)
    np.testing.assert_array_equal(best.numpy(), np.maximum.accumulate(x, 1))
    np.testing.assert_array_equal(np.take_along_axis(x, at.numpy(), 1), best.numpy())


def test_cumsum_gradient() -> None:
    x = weft.tensor(RNG.standard_normal(50), requires_grad=True)
    weights = np.arange(50.0)
    (x.cumsum(0) * weft.tensor(weights)).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.cumsum(weights[::-1])[::-1])


FACTORS: dict[str, Callable[[Any], Any]] = {
    "inv": lambda a: weft.linalg.inv(a),
    "det": lambda a: weft.linalg.det(a),
    "logabsdet": lambda a: weft.linalg.slogdet(a)[1],
    "solve": lambda a: weft.linalg.solve(a, a.mT @ a + 1),
    "cholesky": lambda a: weft.linalg.cholesky(a @ a.mT + weft.eye(3, dtype=weft.float64)),
    "qr": lambda a: weft.cat(list(weft.linalg.qr(a)), 1),
    "eigh": lambda a: weft.linalg.eigh(a + a.mT)[0],
    "svd": lambda a: weft.linalg.svd(a)[1],
    "projections": lambda a: (lambda f: f[0] @ f[2])(weft.linalg.svd(a)),
    "lu": lambda a: weft.cat(list(weft.linalg.lu(a)[1:]), 1),
    "pinv": lambda a: weft.linalg.pinv(a[:, :2]),
    "norms": lambda a: weft.linalg.norm(a, "nuc") + weft.linalg.norm(a) + weft.linalg.matrix_norm(a, 2),
    "exp": lambda a: weft.linalg.matrix_exp(a),
    "power": lambda a: weft.linalg.matrix_power(a, 3) + weft.linalg.matrix_power(a, -2),
}


@pytest.mark.parametrize("name", FACTORS)
def test_derivatives_of_factorizations(name: str) -> None:
    """Against central differences."""
    f = FACTORS[name]
    a = np.random.default_rng(3).standard_normal((3, 3)) + 2 * np.eye(3)
    weights = np.random.default_rng(4).standard_normal(tuple(f(weft.tensor(a)).shape))

    def total(x: np.ndarray) -> float:
        return float((f(weft.tensor(x)).numpy() * weights).sum())

    x = weft.tensor(a, requires_grad=True)
    (f(x) * weft.tensor(weights)).sum().backward()
    assert x.grad is not None
    step = 1e-6
    for i, j in ((0, 0), (1, 2), (2, 1)):
        up, down = a.copy(), a.copy()
        up[i, j] += step
        down[i, j] -= step
        slope = (total(up) - total(down)) / (2 * step)
        assert math.isclose(float(x.grad.numpy()[i, j]), slope, rel_tol=1e-5, abs_tol=1e-6), (i, j)


def test_linalg_mistakes() -> None:
    with pytest.raises(weft.linalg.LinAlgError, match="singular"):
        weft.linalg.inv(weft.zeros(2, 2))
    with pytest.raises(weft.ShapeError, match="square"):
        weft.linalg.det(weft.ones(2, 3))
    with pytest.raises(weft.DTypeError, match="float32 or float64"):
        weft.linalg.svd(weft.ones(2, 2, dtype=weft.int64))
    with pytest.raises(weft.ArgumentError, match="k must be from"):
        weft.topk(weft.ones(3), 4)
    with pytest.raises(weft.ArgumentError, match="on the host"):
        weft.compile(lambda a: weft.linalg.inv(a), fullgraph=True)(weft.eye(2))


def test_in_place_is_the_function() -> None:
    x = weft.tensor([0.25, -0.5, 0.75])
    y = x.clone()
    same = y.asin_().abs_().clamp_(max=0.5)
    assert same is y
    np.testing.assert_array_equal(y.numpy(), x.asin().abs().clamp(max=0.5).numpy())
    y.unsqueeze_(0)
    assert y.shape == (1, 3)
    z = weft.tensor([1, 2])
    with pytest.raises(weft.DTypeError, match="cannot hold"):
        z.add_(0.5)
    leaf = weft.tensor([1.0], requires_grad=True)
    with pytest.raises(weft.GradError, match="no_grad"):
        leaf.mul_(2)
    a = weft.tensor([2.0], requires_grad=True)
    b = a * 3
    b.square_()
    b.sum().backward()
    assert a.grad is not None and a.grad.item() == 36


def test_quantiles() -> None:
    x = RNG.standard_normal((4, 9))
    q = np.array([0.0, 0.3, 0.5, 1.0])
    for how in ("linear", "lower", "higher", "midpoint", "nearest"):
        got = weft.tensor(x).quantile(weft.tensor(q), 1, interpolation=how).numpy()
        np.testing.assert_allclose(got, np.quantile(x, q, 1, method=how), err_msg=how)
    np.testing.assert_array_equal(weft.tensor(x).median(1).values.numpy(), np.sort(x, 1)[:, 4])
    x[1, 3] = np.nan
    assert np.isnan(weft.tensor(x).median(1).values.numpy()[1])
    np.testing.assert_allclose(weft.tensor(x).nanquantile(0.5, 1).numpy(), np.nanquantile(x, 0.5, 1))


def test_searching() -> None:
    edges, x = np.sort(RNG.standard_normal(40)), RNG.standard_normal((3, 5))
    for right in (False, True):
        side = "right" if right else "left"
        got = weft.searchsorted(weft.tensor(edges), weft.tensor(x), right=right).numpy()
        np.testing.assert_array_equal(got, np.searchsorted(edges, x, side))
    whole = RNG.integers(0, 9, 200)
    np.testing.assert_array_equal(
        weft.isin(weft.tensor(whole), weft.tensor([1, 5])).numpy(), np.isin(whole, [1, 5])
    )
    np.testing.assert_array_equal(weft.unique(weft.tensor(whole)).numpy(), np.unique(whole))


def test_array_api() -> None:
    xp = weft.array_api
    assert all(hasattr(xp, name) for name in xp.__all__)
    x = xp.asarray([[3, 1], [2, 5]], dtype=xp.uint8)
    assert x.__array_namespace__() is xp
    assert xp.sum(x).dtype is xp.uint64
    assert xp.add(x, xp.asarray(1, dtype=xp.int16)).dtype is xp.int16
    assert xp.result_type(xp.float32, 1, xp.float64) is xp.float64
    assert xp.argsort(x, axis=0).tolist() == [[1, 0], [0, 1]]
    assert xp.cumulative_sum(xp.asarray([1.0, 2.0]), include_initial=True).tolist() == [0, 1, 3]
    assert np.signbit(xp.remainder(xp.asarray([0.0]), xp.asarray([-1.0])).numpy()).all()
    assert xp.isdtype(xp.int8, "integral") and not xp.can_cast(xp.float64, xp.float32)
    found = xp.unique_all(xp.asarray([2.0, 1.0, 2.0]))
    assert (
        found.values.tolist() == [1, 2]
        and found.indices.tolist() == [1, 0]
        and found.counts.tolist() == [1, 2]
    )
    assert xp.linalg.solve(xp.eye(2), xp.ones((2,))).shape == (2,)


def test_interchange() -> None:
    t = weft.tensor([[1.0, 2.0], [3.0, 4.0]])
    array = np.asarray(t)
    assert not array.flags.writeable
    assert np.shares_memory(array, np.asarray(t))
    np.testing.assert_array_equal(np.from_dlpack(t), [[1, 2], [3, 4]])
    assert weft.from_dlpack(np.arange(3)).tolist() == [0, 1, 2]
    u = weft.zeros(3).contiguous().realize()
    view = np.asarray(u)
    u += 1
    u.realize()
    assert view.tolist() == [0, 0, 0] and u.tolist() == [1, 1, 1]
    with pytest.raises(weft.DTypeError, match="__dlpack__"):
        weft.from_dlpack([1])


def test_airy_waves() -> None:
    """Near the zeros on the negative side the error is that of the phase; infinity gives NaN, as in torch."""
    x = RNG.uniform(-60, -2, 200)
    got = weft.special.airy_ai(weft.tensor(np.append(x, [np.inf, -np.inf, np.nan]))).numpy()
    np.testing.assert_allclose(got[:-3], [float(mp.airyai(v)) for v in x], atol=2e-14)
    assert np.isnan(got[-3:]).all()


@pytest.mark.parametrize("n", [0, 1, 2, 7, 30])
def test_ldl(n: int) -> None:
    a = RNG.standard_normal((3, n, n))
    a = a + a.swapaxes(-1, -2)
    if n > 1:
        a[0, range(n), range(n)] = 0  # needs blocks of 2 x 2
    b = RNG.standard_normal((n, 2))
    found = weft.linalg.ldl_factor_ex(weft.tensor(a))
    x = weft.linalg.ldl_solve(found.LD, found.pivots, weft.tensor(b))
    np.testing.assert_allclose(a @ x.numpy(), np.broadcast_to(b, (3, n, 2)), atol=1e-8)
    assert found.info.tolist() == [0, 0, 0] and (n < 2 or (found.pivots.numpy()[0] < 0).any())
    assert weft.linalg.ldl_factor_ex(weft.zeros(2, 2)).info.item() == 1
    with pytest.raises(weft.linalg.LinAlgError, match="is zero"):
        weft.linalg.ldl_factor_ex(weft.zeros(2, 2), check_errors=True)


def test_histogramdd() -> None:
    points, weight = RNG.standard_normal((200, 2)), RNG.uniform(0, 1, 200)
    edges = [np.array([-1.0, 0.0, 0.5, 2.0]), np.array([-2.0, 0.0, 1.0])]
    ours = weft.tensor(points)
    wanted, _ = np.histogramdd(points, [3, 4])
    got, lines = weft.histogramdd(ours, [3, 4])
    np.testing.assert_array_equal(got.numpy(), wanted)
    assert [tuple(e.shape) for e in lines] == [(4,), (5,)]
    wanted, _ = np.histogramdd(points, edges, weights=weight, density=True)
    got, _ = weft.histogramdd(ours, [weft.tensor(e) for e in edges], weight=weft.tensor(weight), density=True)
    np.testing.assert_allclose(got.numpy(), wanted)
    with pytest.raises(weft.ArgumentError, match="3 bins for points of 2 coordinates"):
        weft.histogramdd(ours, [1, 2, 3])


def test_printing_as_set() -> None:
    x = weft.tensor([1.12345, 2.0, 3.0])
    try:
        weft.set_printoptions(precision=2)
        assert str(x) == "tensor([1.12, 2.  , 3.  ])"
        weft.set_printoptions(sci_mode=True)
        assert str(x) == "tensor([1.12e+00, 2.00e+00, 3.00e+00])"
        weft.set_printoptions(threshold=5, edgeitems=1)
        assert str(weft.arange(10)) == "tensor([0, ..., 9])"
        with pytest.raises(weft.ArgumentError, match="profile must be one of"):
            weft.set_printoptions(profile="long")
    finally:
        weft.set_printoptions(profile="default")
    assert str(x) == "tensor([1.1235, 2.    , 3.    ])"


def test_chosen_branches() -> None:
    x = weft.tensor([1.0, 2.0])
    assert weft.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,)).tolist() == [2.0, 3.0]
    assert weft.cond(False, lambda: 1, lambda: 2) == 2


def test_ranges_in_integers() -> None:
    """int64 takes the whole parts of the numbers first, other integers their values, as in torch."""
    assert weft.arange(0, 3.1, dtype=weft.int64).tolist() == [0, 1, 2]
    assert weft.arange(0, 3.1, dtype=weft.int32).tolist() == [0, 1, 2, 3]
    start = weft.tensor(0.1)
    line = weft.linspace(start, 50, 50, dtype=weft.float64).numpy()
    np.testing.assert_allclose(line, np.linspace(float(np.float32(0.1)), 50, 50), rtol=1e-15)


def test_lazy_values_are_not_computed_for_a_check() -> None:
    p = weft.tensor([0.5, 1.0]) * 2
    drawn = weft.bernoulli(p)
    assert p.value.node.storage is None and drawn.shape == (2,)


def test_integers_and_images() -> None:
    """int64 is averaged and images of uint8 are resized as by torch: whole numbers, toward 0, and rounded."""
    F = weft.nn.functional
    x = weft.tensor([[[1, 2, 4, -3, -4, 0]]])
    assert F.avg_pool1d(x, 2).tolist() == [[[1, 0, -2]]]
    image = weft.tensor(np.array([0, 100, 200, 255], np.uint8).reshape(1, 1, 2, 2))
    grown = F.interpolate(image, size=(2, 4), mode="bilinear", align_corners=True)
    assert grown.dtype is weft.uint8 and grown.tolist() == [[[[0, 33, 67, 100], [200, 218, 237, 255]]]]
    yes, at = weft.tensor(True), weft.tensor(0)
    assert weft.tensor(False).scatter_add(0, at, yes).item() is True
    assert weft.linspace(4.3, -3, 50, dtype=weft.int64).tolist()[:3] == [4, 3, 3]


def test_coverage_of_torch() -> None:
    """At least nine in ten of the names that apply; the record is torch 2.13's."""
    import torch_coverage

    table = torch_coverage.coverage()
    assert set(table) == set(torch_coverage.NAMESPACES)
    for namespace, (names, missing) in table.items():
        assert len(missing) <= 0.1 * len(names), (namespace, missing)
    lacking = {f"{namespace}.{n}" for namespace, (_, missing) in table.items() for n in missing}
    assert lacking == set(torch_coverage.MISSING), (
        "each name has a reason, and each reason is for a missing name"
    )


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "cov": (lambda: weft.cov(weft.ones(2, 3), fweights=weft.ones(3)), weft.DTypeError, "fweights must be integers"),
    "gradient": (lambda: weft.gradient(weft.ones(3, 3), dim=(1, 1)), weft.ArgumentError, "appears twice"),
    "isclose": (lambda: weft.isclose(weft.ones(2), weft.ones(2), rtol=-1), weft.ArgumentError, "must be 0 or more"),
    "roll": (lambda: weft.roll(weft.ones(2, 2), (1, 2), 0), weft.ArgumentError, "as many of both"),
    "unbind": (lambda: weft.unbind(weft.tensor(1.0)), weft.IndexError, "without dimensions"),
    "multinomial": (lambda: weft.multinomial(weft.tensor([0.0, 0.0]), 1), weft.ArgumentError, "too few positive"),
    "multinomial of too many": (
        lambda: weft.multinomial(weft.ones((1 << 24) + 1), 1), weft.ArgumentError, r"16,777,217 categories are more",
    ),
    "bernoulli": (
        lambda: weft.bernoulli(weft.tensor([0.5, 1.5])), weft.ArgumentError, "must be from 0 to 1, got 1.5",
    ),
    "bernoulli_": (lambda: weft.ones(2).bernoulli_(2.0), weft.ArgumentError, "p must be from 0 to 1, got 2"),
    "normal": (
        lambda: weft.normal(weft.zeros(1), weft.tensor([-1.0])), weft.ArgumentError, "std must be at least 0, got -1",
    ),
    "binary_cross_entropy": (
        lambda: weft.nn.functional.binary_cross_entropy(weft.tensor([0.5, math.nan]), weft.tensor([0.0, 1.0])),
        weft.ArgumentError, "input must be from 0 to 1, got nan",
    ),
    "gaussian_nll_loss": (
        lambda: weft.nn.functional.gaussian_nll_loss(weft.ones(2), weft.ones(2), weft.tensor([1.0, -1.0])),
        weft.ArgumentError, "var must be at least 0, got -1",
    ),
    "embedding_bag": (
        lambda: weft.nn.functional.embedding_bag(weft.tensor([0, 1]), weft.ones(3, 2), weft.tensor([1, 2])),
        weft.ArgumentError, r"the first bag must begin at 0, got offsets\[0\] = 1",
    ),
    "exponential": (lambda: weft.ones(2).exponential_(0.0), weft.ArgumentError, "must be positive"),
    "linspace": (lambda: weft.linspace(0, 1, 2.0), weft.DTypeError, "steps must be an int"),
    "searchsorted": (lambda: weft.searchsorted(weft.tensor(1.0), weft.ones(2)), weft.ShapeError, "at least 1 dim"),
    "cdist": (lambda: weft.cdist(weft.ones(2, 3), weft.ones(2, 4)), weft.ShapeError, "equally long rows"),
    "logaddexp": (lambda: weft.logaddexp(weft.tensor([1]), weft.tensor([2])), weft.DTypeError, "float tensors"),
    "gcd": (lambda: weft.gcd(weft.ones(2), weft.ones(2)), weft.DTypeError, "integer tensors"),
    "put": (lambda: weft.ones(3).put(weft.tensor([0]), weft.ones(2)), weft.ShapeError, "differ in size"),
    "quantile": (lambda: weft.quantile(weft.ones(3), 2.0), weft.ArgumentError, "from 0 to 1"),
    "as_strided": (lambda: weft.as_strided(weft.ones(3), (2, 2), (2, 1)), weft.ShapeError, "leave the 3 elements"),
    "select_scatter": (
        lambda: weft.select_scatter(weft.ones(2, 2), weft.ones(3), 0, 0), weft.ShapeError, "its place",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    mistake, kind, text = MISTAKES[name]
    with pytest.raises(kind, match=text):
        mistake()


@pytest.mark.parametrize("edge_order", [1, 2])
@pytest.mark.parametrize("spacing", ["step", "points"])
@pytest.mark.parametrize("dim", [0, 1])
def test_gradient_is_that_of_numpy(dim: int, spacing: str, edge_order: int) -> None:
    x = np.random.default_rng(2).standard_normal((4, 5))
    at = np.cumsum(np.arange(1.0, x.shape[dim] + 1)) if spacing == "points" else 0.5
    given = (weft.tensor(at),) if isinstance(at, np.ndarray) else at
    (found,) = weft.gradient(weft.tensor(x), spacing=given, dim=dim, edge_order=edge_order)
    np.testing.assert_allclose(found.numpy(), np.gradient(x, at, axis=dim, edge_order=edge_order), rtol=1e-10)


def test_nonzero_gives_rows_of_indices_or_a_vector_for_each_dimension() -> None:
    x = np.array([[0, 3, 0], [4, 0, 5]], np.float32)
    np.testing.assert_array_equal(weft.nonzero(weft.tensor(x)).numpy(), np.argwhere(x))
    for found, want in zip(weft.nonzero(weft.tensor(x), as_tuple=True), np.nonzero(x), strict=True):
        np.testing.assert_array_equal(found.numpy(), want)
    deep = (RNG.integers(0, 3, (3, 4, 5)) - 1).astype(np.int32)
    np.testing.assert_array_equal(weft.nonzero(weft.tensor(deep)).numpy(), np.argwhere(deep))
    for empty in (np.zeros((2, 3)), np.zeros((3, 0, 2)), np.float32(0), np.float32(math.nan)):
        np.testing.assert_array_equal(weft.nonzero(weft.tensor(empty)).numpy(), np.argwhere(empty))
    assert [t.tolist() for t in weft.nonzero(weft.tensor(2.0), as_tuple=True)] == [[0]]


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_mask_over_several_dimensions_selects_and_takes_rows_in_order(dims: int) -> None:
    a = RNG.standard_normal((3, 4, 5)).astype(np.float32)
    mask = RNG.random(a.shape[:dims]) > 0.4
    x = weft.tensor(a, requires_grad=True)
    weights = RNG.standard_normal(a[mask].shape).astype(np.float32)
    for key in (mask, weft.tensor(mask), weft.tensor(mask.astype(np.uint8))):
        np.testing.assert_array_equal(x[key].numpy(), a[mask])
        x.grad = None
        (x[key] * weft.tensor(weights)).sum().backward()
        want = np.zeros_like(a)
        want[mask] = weights
        assert x.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), want)
    y = weft.tensor(a)
    y[weft.tensor(mask)] = weft.tensor(weights)
    want = a.copy()
    want[mask] = weights
    np.testing.assert_array_equal(y.numpy(), want)
    nothing = weft.tensor(np.zeros(a.shape[:dims], np.bool_))
    assert y[nothing].shape == a[nothing.numpy()].shape


def test_bytes_select_as_booleans_do_and_numbers_in_order() -> None:
    x = weft.tensor(np.arange(24.0).reshape(2, 3, 4))
    mask = weft.tensor([1, 0], dtype=weft.uint8)
    assert x[mask].shape == (1, 3, 4) and x[mask][0, 0, 0].item() == 0
    assert x[True].shape == (1, 2, 3, 4) and x[None, :, None].shape == (1, 2, 1, 3, 4)
    i, j = weft.tensor(1), weft.tensor(2)
    assert x[i, :, j].tolist() == [14.0, 18.0, 22.0] and x[i, j].tolist() == [20.0, 21.0, 22.0, 23.0]
