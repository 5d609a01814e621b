"""The Tensor as a user meets it: making, converting, printing, assigning, differentiating."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest

import weft
from weft import Tensor
from weft.core.args import broadcast
from weft.ir.ops import Op


def test_python_data_takes_the_default_dtypes() -> None:
    assert weft.tensor(1.5).dtype is weft.float32
    assert weft.tensor([1, 2]).dtype is weft.int64
    assert weft.tensor([True]).dtype is weft.bool
    assert weft.tensor([]).dtype is weft.float32
    assert weft.tensor([[1, 2.5], [3, 4]]).tolist() == [[1.0, 2.5], [3.0, 4.0]]


def test_numpy_data_keeps_its_dtype_and_is_copied() -> None:
    a = np.arange(3.0)
    t = weft.tensor(a)
    a[0] = 9
    assert t.dtype is weft.float64
    assert t.tolist() == [0.0, 1.0, 2.0]
    out = t.numpy()
    out[1] = 7
    assert t.tolist() == [0.0, 1.0, 2.0]


def test_set_default_dtype() -> None:
    weft.set_default_dtype(weft.float64)
    try:
        assert weft.tensor(1.0).dtype is weft.float64
        assert (weft.tensor([1]) / 2).dtype is weft.float64
        assert weft.zeros(2).dtype is weft.float64
    finally:
        weft.set_default_dtype(weft.float32)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint64", "bool"])
def test_dtypes_round_trip(dtype: str) -> None:
    t = weft.tensor([0, 1, 2], dtype=getattr(weft, dtype))
    assert t.dtype.name == dtype
    assert [float(x) for x in t] == [0.0, 1.0, 1.0 if dtype == "bool" else 2.0]
    assert t.to(weft.float32).to(getattr(weft, dtype)).tolist() == t.tolist()


def test_ranges() -> None:
    for args in ((5,), (2, 9, 3), (9, 2, -3), (0.0, 1.0, 0.3), (1, 3.5, 0.5), (3, 3)):
        np.testing.assert_allclose(weft.arange(*args).numpy(), np.arange(*args).astype(np.float32), rtol=1e-6)
    for args in ((0, 1, 5), (-2.0, 7.0, 4), (3, 3, 1), (5, 1, 3)):
        np.testing.assert_allclose(weft.linspace(*args).numpy(), np.linspace(*args), rtol=1e-6)
    assert weft.linspace(0, 0.1, 7)[-1].item() == np.float32(0.1)
    np.testing.assert_array_equal(weft.eye(2, 3).numpy(), np.eye(2, 3))
    assert weft.arange(3).dtype is weft.int64
    assert weft.arange(3.0).dtype is weft.float32


def test_full_and_like() -> None:
    x = weft.full((2, 1), 7)
    assert x.dtype is weft.int64
    assert weft.zeros_like(x).dtype is weft.int64
    assert weft.ones(2, 3).shape == weft.ones((2, 3)).shape == (2, 3)
    assert weft.full_like(x, 2.5, dtype=weft.float64).tolist() == [[2.5], [2.5]]
    assert x.new_ones(3).dtype is weft.int64


def test_shape_properties() -> None:
    x = weft.zeros(2, 3, 4)
    assert (x.ndim, x.dim(), x.numel(), x.size(-1), len(x), x.nbytes) == (3, 3, 24, 4, 2, 96)
    assert x.shape == x.size() == (2, 3, 4)
    assert x.device == "cpu:0"
    assert x.T.shape == (4, 3, 2)
    assert x.mT.shape == (2, 4, 3)


def test_numbers_from_tensors() -> None:
    x = weft.tensor([3])
    assert (int(x), float(x), bool(x), x.item(), [10, 20, 30, 40][x[0]]) == (3, 3.0, True, 3, 40)
    assert f"{weft.tensor(2.5):.2f}" == "2.50"
    assert 3 in x
    assert 4 not in x
    assert math.isclose(weft.tensor(0.1, dtype=weft.bfloat16).item(), 0.10009765625)


def test_printing() -> None:
    assert repr(weft.tensor([1.0, 2.5])) == "tensor([1. , 2.5])"
    assert repr(weft.tensor([1], dtype=weft.int32)) == "tensor([1], dtype=weft.int32)"
    assert repr(weft.ones(2, requires_grad=True)) == "tensor([1., 1.], requires_grad=True)"
    assert repr(weft.zeros(0, 3)) == "tensor([], size=(0, 3))"
    assert repr(weft.tensor([[1, 2], [3, 4]])) == "tensor([[1, 2],\n        [3, 4]])"


def test_comparison_with_other_things_is_identity() -> None:
    x = weft.ones(2)
    assert (x == None) is False  # noqa: E711  (the operator is what is tested)
    assert (x != "a") is True
    assert len({x, x}) == 1


def test_numpy_operands() -> None:
    x = weft.ones(2)
    for out in (
        x + np.ones(2, np.float32),
        np.ones(2, np.float32) + x,
        np.float32(1) * x + 1,
        x + np.float64(1),
    ):
        assert isinstance(out, Tensor)
        assert out.dtype is weft.float32
        assert out.tolist() == [2.0, 2.0]
    assert np.asarray(x).dtype == np.float32


def test_numpy_functions() -> None:
    """Of tensors: weft's functions, with gradients; what weft lacks is NumPy's."""
    a = np.array([3.0, 1.0, 2.0], np.float32)
    x, m = weft.tensor(a), np.arange(6, dtype=np.float32).reshape(2, 3)
    for f in (
        lambda t: np.sqrt(t), lambda t: np.arctan2(t, a), lambda t: m @ t, lambda t: np.power(2, t), lambda t: a**t,
        lambda t: np.rint(t / 2), lambda t: np.equal(t, a), lambda t: np.invert(t > 1), lambda t: np.cbrt(t),
        lambda t: np.float32(3) - t, lambda t: np.fmod(a, t), lambda t: a // t, lambda t: np.maximum(a, t + 1),
    ):  # fmt: skip
        got, want = f(x), f(a)
        assert isinstance(got, Tensor)
        np.testing.assert_allclose(got, want, rtol=1e-6)
    x.requires_grad_()
    np.exp(x).sum().backward()
    np.testing.assert_allclose(x.grad, np.exp(a), rtol=1e-6)
    with pytest.raises(
        weft.GradError, match=r"numpy.cbrt: .* requires grad; use weft's functions, or .detach\(\)"
    ):
        np.cbrt(x)
    x = x.detach()
    total = a.copy()
    total += x
    assert type(total) is np.ndarray and total.tolist() == [6.0, 2.0, 4.0]
    assert np.add.reduce(x) == 6
    whole, part = np.modf(x)[::-1]
    assert isinstance(whole, Tensor) and isinstance(part, Tensor)
    with pytest.raises(TypeError):
        np.add(a, a, out=x)


def test_shapes_and_devices_have_parts() -> None:
    x = weft.ones(2, 3, 4)
    assert x.shape == weft.Size([2, 3, 4]) == x.size() and x.shape.numel() == 24 and x.shape[1:].numel() == 12
    assert (
        repr(x.shape) == "weft.Size([2, 3, 4])"
        and isinstance(x.shape[0], int)
        and hash(x.shape) == hash((2, 3, 4))
    )
    assert (x.device.type, x.device.index) == ("cpu", None) and x.device == weft.device("cpu") == "cpu:0"
    assert f"{x.device}" == str(x.device) == "cpu" and repr(x.device) == "weft.device('cpu')"
    assert pickle.loads(pickle.dumps(x.device)) == x.device and isinstance(
        copy.deepcopy(x.device), weft.device
    )
    with weft.device("dummy", 1):
        assert weft.ones(2).device == weft.device("dummy:1") == weft.device(weft.device("dummy:1"))
    assert x.to(weft.device("dummy")).device.type == "dummy"
    for wrong in (("dummy:1", 1), ("dummy", -1), ("dummy", "1")):
        with pytest.raises(weft.ArgumentError, match="expected a backend and a number"):
            weft.device(*wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        weft.DTypeError, match=r"format: '.2f' is for numbers, and this tensor has shape \(2, 3, 4\)"
    ):
        format(x, ".2f")


def test_in_place_syntax_rebinds_the_handle() -> None:
    x = weft.zeros(3)
    y = x
    z = x.clone()
    x += 2
    x *= 3
    x[1] = 0
    assert y is x
    assert x.tolist() == [6.0, 0.0, 6.0]
    assert z.tolist() == [0.0, 0.0, 0.0]
    x.zero_().add_(1).div_(4)
    assert x.tolist() == [0.25] * 3
    x.copy_(weft.arange(3))
    assert x.dtype is weft.float32
    assert x.tolist() == [0.0, 1.0, 2.0]


def test_gradients_flow_through_in_place_syntax() -> None:
    w = weft.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x = w * 2
    x[0] = w[2] * 5
    x += w
    (x * weft.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [1.0, 30.0, 305.0]


INDEX_CASES = {
    "number": lambda x: (1,),
    "negative": lambda x: (-1, -2),
    "slice": lambda x: (slice(1, None), slice(None, None, 2)),
    "reverse": lambda x: (slice(None, None, -1), slice(5, 0, -2)),
    "ellipsis": lambda x: (Ellipsis, 2),
    "new axis": lambda x: (None, 1, None, Ellipsis),
    "empty": lambda x: (slice(2, 2),),
    "list": lambda x: ([0, 2, 0],),
    "lists": lambda x: ([0, 1], [1, 2]),
    "apart": lambda x: ([0, 1], slice(None), [3, 0]),
    "grid": lambda x: (np.array([[0], [2]]), np.array([[1, 2]])),
    "mask": lambda x: (x > 0,),
    "row mask": lambda x: (x[:, 0, 0] > 0,),
    "mask and list": lambda x: (np.array([True, False, True]), [0, 1]),
    "mask apart": lambda x: (slice(None), slice(None), np.array([True, False, True, False])),
    "all false": lambda x: (x > 99,),
}


@pytest.mark.parametrize("name", INDEX_CASES)
def test_indexing_and_assignment_as_numpy(name: str) -> None:
    a = np.random.default_rng(0).standard_normal((3, 6 if name == "reverse" else 3, 4)).astype(np.float32)
    key = INDEX_CASES[name](a)
    x = weft.tensor(a)
    ours = tuple(weft.tensor(k) if isinstance(k, np.ndarray) else k for k in key)
    np.testing.assert_array_equal(x[ours].numpy(), a[key])
    values = np.random.default_rng(1).standard_normal(a[key].shape).astype(np.float32)
    for value in (values, np.float32(5.0)):
        if name == "list":  # where places repeat, the last value stays
            value = np.full(a[key].shape, 2.0, np.float32) if value is values else value
        expected, got = a.copy(), weft.tensor(a)
        expected[key] = value
        got[ours] = weft.tensor(value) if isinstance(value, np.ndarray) else float(value)
        np.testing.assert_array_equal(got.numpy(), expected)


def test_index_put_accumulates() -> None:
    i = weft.tensor([0, 1, 0])
    assert weft.zeros(3).index_put((i,), weft.ones(3), accumulate=True).tolist() == [2.0, 1.0, 0.0]


def test_shrink_and_pad() -> None:
    x = weft.arange(12).reshape(3, 4)
    assert x.shrink([(1, 3), None])[:, 0].tolist() == [4, 8]
    assert x.shrink([(1, 2), (2, 4)]).pad((1, 0), value=-1).tolist() == [[-1, 6, 7]]


def test_zero_sizes() -> None:
    x = weft.zeros(0, 3)
    assert x.sum().item() == 0.0
    assert x.sum(0).tolist() == [0.0, 0.0, 0.0]
    assert x.prod(0).tolist() == [1.0, 1.0, 1.0]
    assert (x @ weft.ones(3, 2)).shape == (0, 2)
    assert (weft.ones(2, 0) @ weft.ones(0, 3)).tolist() == [[0.0] * 3] * 2
    assert weft.cat([x, weft.ones(1, 3)]).shape == (1, 3)
    assert x.any().item() is False
    assert x.all().item() is True
    assert x.softmax(0).shape == x.reshape(3, 0).mT.shape == (0, 3)
    assert math.isnan(x.mean().item())
    assert x.logsumexp(0).tolist() == [-math.inf] * 3
    assert x[:, 1].shape == (0,)
    assert x.tolist() == []


def test_scalars_have_no_dimensions() -> None:
    x = weft.tensor(3.0)
    assert x.sum(-1).item() == x.sum(0).item() == x.max().item() == x.softmax(0).item() * 3 == 3.0
    assert x.argmax().item() == 0
    assert x.reshape(1, 1).squeeze().shape == ()
    assert x[None].shape == (1,)
    assert (x + weft.ones(2)).shape == (2,)


def test_nan_counts_as_the_extremum() -> None:
    x = weft.tensor([[1.0, math.nan, 3.0, math.nan], [4.0, 2.0, 4.0, 1.0]])
    assert x.argmax(1).tolist() == [1, 0]
    assert x.argmin(1).tolist() == [1, 3]
    assert math.isnan(x.max().item())
    assert weft.tensor([math.nan, -1.0]).relu().tolist()[1] == 0.0
    assert math.isnan(weft.tensor(math.nan).relu().item())
    assert math.isnan(weft.tensor(math.nan).clamp(0, 1).item())


def test_logsumexp_and_softmax_at_infinity() -> None:
    inf = math.inf
    x = weft.tensor([[-inf, -inf], [inf, 1.0], [-inf, 2.0], [1e4, 1e4]])
    assert x.logsumexp(1).tolist() == [-inf, inf, 2.0, pytest.approx(1e4 + math.log(2))]
    assert x[2:].softmax(1).tolist() == [[0.0, 1.0], [0.5, 0.5]]


def test_sigmoid_and_friends_have_no_nan_gradient() -> None:
    x = weft.tensor([-200.0, -30.0, 0.0, 30.0, 200.0], requires_grad=True)
    from weft.nn import functional as F

    (
        x.sigmoid() + F.softplus(x) + F.logsigmoid(x) + F.silu(x) + F.gelu(x) + F.mish(x) + F.elu(x)
    ).sum().backward()
    assert x.grad is not None
    assert np.isfinite(x.grad.numpy()).all()
    small = weft.tensor(-30.0, requires_grad=True)
    small.sigmoid().backward()
    assert small.grad is not None
    assert small.grad.item() == pytest.approx(math.exp(-30.0), rel=1e-5)


# ---------------------------------------------------------------------------------------------- gradients


def test_backward_accumulates() -> None:
    w = weft.ones(2, requires_grad=True)
    for _ in range(3):
        (w * weft.tensor([1.0, 2.0])).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [3.0, 6.0]
    w.grad = None
    assert w.grad is None


def test_equal_tensors_have_gradients_of_their_own() -> None:
    a, b = weft.zeros(2, requires_grad=True), weft.zeros(2, requires_grad=True)
    (a * 2 + b * 3).sum().backward()
    assert a.grad is not None and b.grad is not None
    assert (a.grad.tolist(), b.grad.tolist()) == ([2.0, 2.0], [3.0, 3.0])


def test_no_grad_detach_and_clone() -> None:
    w = weft.ones(2, requires_grad=True)
    with weft.no_grad():
        assert not (w * 2).requires_grad
        with weft.enable_grad():
            assert (w * 2).requires_grad

    @weft.no_grad()
    def f() -> Tensor:
        return w * 2

    assert not f().requires_grad
    assert weft.is_grad_enabled()
    assert not w.detach().requires_grad
    copied = w.clone()
    assert copied.requires_grad
    assert not copied.is_leaf
    (copied * 3).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [3.0, 3.0]


def test_parameters_are_updated_in_place_under_no_grad() -> None:
    w = weft.ones(2, requires_grad=True)
    for _ in range(2):
        w.grad = None
        (w * w).sum().backward()
        assert w.grad is not None
        with weft.no_grad():
            w -= 0.25 * w.grad
    assert w.tolist() == [0.25, 0.25]
    assert w.requires_grad and w.is_leaf


def test_retain_grad() -> None:
    w = weft.ones(2, requires_grad=True)
    y = w * 3
    y.retain_grad()
    (y * y).sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [6.0, 6.0]


def test_gradients_of_chosen_tensors() -> None:
    w, unused = weft.ones(2, requires_grad=True), weft.ones(1, requires_grad=True)
    y = (w**3).sum()
    (g,) = weft.gradients(y, w, create_graph=True)
    assert g is not None
    (h,) = weft.gradients(g.sum(), [w])
    assert h is not None
    assert (g.tolist(), h.tolist()) == ([3.0, 3.0], [6.0, 6.0])
    assert weft.gradients(y, [unused], allow_unused=True) == (None,)
    assert w.grad is None


def test_grad_as_a_transformation() -> None:
    f = weft.grad(lambda x: (x**3).sum())
    x = weft.tensor([1.0, 2.0])
    assert f(x).tolist() == [3.0, 12.0]
    assert not f(x).requires_grad
    assert weft.grad(lambda x: f(x).sum())(x).tolist() == [6.0, 12.0]
    value, (a, b) = weft.value_and_grad(lambda a, b: (a * b["w"]).sum(), argnums=(0, 1))(x, {"w": x + 1})
    assert value.item() == 8.0
    assert (a.tolist(), b["w"].tolist()) == ([2.0, 3.0], [1.0, 2.0])
    g, aux = weft.grad(lambda x: (x.sum(), "aux"), has_aux=True)(x)
    assert (g.tolist(), aux) == ([1.0, 1.0], "aux")


def test_grad_of_a_closure_over_parameters_keeps_their_history() -> None:
    w = weft.tensor(2.0, requires_grad=True)
    inner = weft.grad(lambda x: w * x * x)
    inner(weft.tensor(3.0)).backward()
    assert w.grad is not None
    assert w.grad.item() == 6.0


def test_backward_with_a_gradient_and_chosen_inputs() -> None:
    a, b = weft.ones(2, requires_grad=True), weft.ones(2, requires_grad=True)
    (a * b).backward(weft.tensor([1.0, 5.0]), inputs=[a])
    assert a.grad is not None
    assert a.grad.tolist() == [1.0, 5.0]
    assert b.grad is None


def test_copying_and_pickling() -> None:
    w = weft.tensor([1.0, 2.0], requires_grad=True)
    for other in (copy.deepcopy(w), pickle.loads(pickle.dumps(w))):
        assert other is not w
        assert other.tolist() == [1.0, 2.0]
        assert other.requires_grad
        (other * 2).sum().backward()
        assert other.grad is not None
    assert w.grad is None


# ---------------------------------------------------------------------------------------------- randomness


def test_the_same_seed_gives_the_same_numbers() -> None:
    weft.manual_seed(7)
    first = [
        weft.rand(3).tolist(),
        weft.randn(2).tolist(),
        weft.randint(0, 10, (4,)).tolist(),
        weft.randperm(5).tolist(),
    ]
    weft.manual_seed(7)
    again = [
        weft.rand(3).tolist(),
        weft.randn(2).tolist(),
        weft.randint(0, 10, (4,)).tolist(),
        weft.randperm(5).tolist(),
    ]
    assert first == again
    assert weft.rand(3).tolist() != first[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_distributions(dtype: str) -> None:
    weft.manual_seed(0)
    u = weft.rand(20000, dtype=getattr(weft, dtype)).double().numpy()
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.003
    n = weft.randn(20000, dtype=getattr(weft, dtype)).double().numpy()
    assert abs(n.mean()) < 0.03 and abs(n.std() - 1) < 0.02 and abs((n**4).mean() - 3) < 0.3


def test_integers_and_permutations() -> None:
    weft.manual_seed(1)
    x = weft.randint(-3, 4, (7000,)).numpy()
    assert set(x.tolist()) == set(range(-3, 4))
    assert (np.bincount(x + 3) > 850).all()
    wide = weft.randint(0, 2**40, (100,)).numpy()
    assert wide.max() > 2**36
    assert sorted(weft.randperm(50).tolist()) == list(range(50))


def test_dropout() -> None:
    from weft.nn import functional as F

    weft.manual_seed(3)
    x = weft.ones(10000)
    y = F.dropout(x, 0.25).numpy()
    assert set(np.round(np.unique(y), 5)) == {0.0, np.float32(np.round(4 / 3, 5))}
    assert abs((y == 0).mean() - 0.25) < 0.02
    assert F.dropout(x, 0.5, training=False) is x
    channels = F.dropout2d(weft.ones(8, 16, 3, 3)).numpy()
    assert all(len(np.unique(c)) == 1 for c in channels.reshape(-1, 9))


def test_batch_norm_moves_its_running_statistics() -> None:
    from weft.nn import functional as F

    x = weft.tensor(np.random.default_rng(0).standard_normal((4, 2, 3)).astype(np.float32))
    mean, var = weft.zeros(2), weft.ones(2)
    F.batch_norm(x, mean, var, training=True, momentum=0.5)
    a = x.numpy()
    np.testing.assert_allclose(mean.numpy(), a.mean((0, 2)) * 0.5, rtol=1e-5)
    np.testing.assert_allclose(var.numpy(), 0.5 + 0.5 * a.var((0, 2), ddof=1), rtol=1e-5)
    assert not mean.requires_grad


def test_long_chains_build_and_differentiate() -> None:
    w = weft.tensor(1.0, requires_grad=True)
    y = w
    for _ in range(20000):
        y = y + 1
    y.backward()
    assert w.grad is not None
    assert w.grad.item() == 1.0


def test_computing_a_constant_leaves_it_one_for_others() -> None:
    x = weft.tensor(3.0, requires_grad=True)
    x.backward()
    assert x.grad is not None and x.grad.item() == 1.0
    assert broadcast.scalar(1, weft.float32, ()).node.op is Op.CONST


@pytest.mark.parametrize(
    ("dtype", "signed"),
    [(weft.float32, True), (weft.bfloat16, True), (weft.int8, True), (weft.uint8, False), (weft.bool, False)],
)
def test_which_dtypes_have_a_sign(dtype: weft.dtype, signed: bool) -> None:
    assert weft.zeros(2, dtype=dtype).is_signed() is signed
