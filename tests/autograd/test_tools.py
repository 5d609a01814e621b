"""weft.autograd's and weft.func's tools beside torch's, and what hooks, Function and checkpoint promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import autograd, func

RNG = np.random.default_rng(0)


def data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


A, B, C = data(3, 4, 5), data(3, 5, 2), data(5)
IMAGES, FILTERS = data(3, 2, 6, 6), data(3, 4, 2, 3, 3)

MAPPED: dict[str, tuple[Callable[..., Any], Any, tuple[np.ndarray, ...]]] = {
    "matmul": (lambda m, f, a, b: a @ b, 0, (A, B)),
    "shared": (lambda m, f, a, c: a * c + c, (0, None), (A, C)),
    "last axis": (lambda m, f, a: a.softmax(-1).cumsum(0), 2, (A,)),
    "reductions": (lambda m, f, a: a.max(0).values + a.var(0) + a.logsumexp(0), 1, (A,)),
    "movement": (
        lambda m, f, a: m.cat([a.flip(0), a.T.reshape(4, 5), a[1:3, ::2].repeat(1, 2)[:, :5]]),
        0,
        (A,),
    ),
    "gather": (lambda m, f, a: a.gather(0, a.argmax(0, keepdim=True)) + a[[0, 2]].sum(), 0, (A,)),
    "scatter": (lambda m, f, a: m.zeros(4, 5).scatter_add(0, a.argmax(0, keepdim=True), a[:1]), 0, (A,)),
    "norm": (lambda m, f, a: f.layer_norm(a, (5,)) + f.gelu(a), 0, (A,)),
    "conv": (lambda m, f, x, w: f.conv2d(x[None], w, padding=1)[0], 0, (IMAGES, FILTERS)),
    "conv shared": (lambda m, f, x, w: f.conv2d(x[None], w, stride=2)[0], (0, None), (IMAGES, FILTERS[0])),
    "pool": (lambda m, f, x: f.max_pool2d(x[None], 2)[0] + f.avg_pool2d(x[None], 2)[0], 0, (IMAGES,)),
    "loss": (lambda m, f, a: f.cross_entropy(a, m.tensor([0, 1, 2, 3])), 0, (A,)),
    "constant": (lambda m, f, a: m.arange(3.0), 0, (A,)),
}


def torch_of() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")


def test_vmap_is_a_loop() -> None:
    """Values, and gradients of what was mapped, against torch's function called on each slice."""
    torch = torch_of()
    got: dict[str, list[Any]] = {}
    want: dict[str, list[Any]] = {}
    for name, (fn, dims, arrays) in MAPPED.items():
        each = dims if isinstance(dims, tuple) else (dims,) * len(arrays)
        for m, f, found in ((weft, F, got), (torch, torch.nn.functional, want)):
            args = [m.tensor(a, requires_grad=True) for a in arrays]

            def call(*xs: Any, fn: Any = fn, m: Any = m, f: Any = f) -> Any:
                return fn(m, f, *xs)

            if m is weft:
                out = weft.vmap(call, in_dims=dims)(*args)
            else:
                slices = [x.unbind(k) if k is not None else [x] * 99 for x, k in zip(args, each, strict=True)]
                out = m.stack([call(*xs) for xs in zip(*slices, strict=False)])
            found[name] = [out]
            if out.requires_grad:
                (out * m.arange(float(out.numel())).reshape(out.shape).sin()).sum().backward()
                found[name] += [x.grad for x in args]
    weft.realize(*(t for r in got.values() for t in r))
    for name, results in got.items():
        for a, b in zip(results, want[name], strict=True):
            np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_vmap_dims_chunks_nesting_and_containers() -> None:
    x = weft.tensor(A)
    assert weft.vmap(lambda t: t * 2, in_dims=1, out_dims=-1)(x).tolist() == (x * 2).permute(0, 2, 1).tolist()
    assert weft.vmap(lambda t: t.sum(), chunk_size=2)(x).tolist() == pytest.approx(
        x.sum((1, 2)).tolist(), rel=1e-5
    )
    pairs = weft.vmap(weft.vmap(lambda a, b: (a * b).sum(), in_dims=(None, 0)), in_dims=(0, None))(x[0], x[1])
    np.testing.assert_allclose(pairs.numpy(), (x[0] @ x[1].T).numpy(), rtol=1e-5)
    out = weft.vmap(lambda d, k: {"sum": d["a"] + d["b"][0], "k": (k,)}, in_dims=({"a": 0, "b": None}, 1))(
        {"a": x[0], "b": [x[1, 0]]}, x[2].T
    )
    assert out["sum"].shape == (4, 5) and out["k"][0].shape == (4, 5)
    grads = weft.vmap(weft.grad(lambda t: (t * t).sum()))(x)
    np.testing.assert_allclose(grads.numpy(), 2 * A, rtol=1e-6)


def test_vmap_randomness() -> None:
    x = weft.zeros(3, 50)
    with pytest.raises(weft.ArgumentError, match="draws random numbers"):
        weft.vmap(lambda t: F.dropout(t + 1))(x)
    same = weft.vmap(lambda t: t + weft.rand(50), randomness="same")(x).numpy()
    different = weft.vmap(lambda t: t + weft.rand(50), randomness="different")(x).numpy()
    assert (same[0] == same[1]).all() and (different[0] != different[1]).sum() > 45
    assert 0.35 < different.mean() < 0.65 and different.std() > 0.2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: weft.vmap(lambda t: t, in_dims=(0, 0))(x), "vmap: in_dims has 2 entries for 1 arguments"),
        (lambda x: weft.vmap(lambda t: t, in_dims=None)(x), "vmap: at least one Tensor must be sliced"),
        (lambda x: weft.vmap(lambda a, b: a + b)(x, x[:2]), "vmap: sliced dimensions must have one size"),
        (
            lambda x: weft.vmap(lambda t: t.sum().item())(x),
            "stands for one example or step in a function that vmap or scan runs",
        ),
        (lambda x: weft.vmap(lambda t: 1.0)(x), "vmap: the function must return Tensors"),
        (lambda x: weft.vmap(lambda t: t, out_dims=None)(x), "vmap: a result that depends on"),
        (lambda x: autograd.grad(x.sum(), x), "does not depend on one that requires grad"),
        (lambda x: x.register_hook(print), "register_hook: this tensor does not require grad"),
        (lambda x: func.jvp(lambda t: t, (x,), (x[0],)), r"jvp: expected shape \(3, 4, 5\), got \(4, 5\)"),
        (
            lambda x: autograd.gradcheck(lambda t: t, x.detach().requires_grad_()),
            "gradcheck: input 0 is float32",
        ),
    ],
)
def test_mistakes(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(weft.WeftError, match=message):
        call(weft.tensor(A))


def two(m: Any) -> Callable[..., Any]:
    return lambda x, y: ((x * y).sin().sum(1), (x.exp() * y.sum()).sum())


def test_jacobians_and_products_are_torchs() -> None:
    torch = torch_of()
    x, y = data(3, 4), data(3, 4)
    got, want = [], []
    for m, f, results in ((weft, func, got), (torch, torch.func, want)):
        fn, a, b = two(m), m.tensor(x), m.tensor(y)
        for jac in (f.jacrev, f.jacfwd):
            rows = jac(fn, argnums=(0, 1))(a, b)
            results += [rows[0][0], rows[0][1], rows[1][0], rows[1][1]]
            results.append(jac(lambda t: t.tanh() @ t.T)(a))
        scalar = lambda t: (t.sin() * t * t).sum()  # noqa: E731
        results.append(f.hessian(scalar)(a))
        out, pull = f.vjp(fn, a, b)
        results += [*out, *pull((out[0], out[1]))]
        out, rate = f.jvp(fn, (a, b), (b, a))
        results += [*out, *rate]
        out, push = f.linearize(lambda t: t.exp(), a)
        results += [out, push(b)]
        g, value = f.grad_and_value(scalar)(a)
        results += [g, value]
        tools = m.autograd.functional
        results += [tools.jacobian(lambda t: t * t.sum(), a), tools.hessian(scalar, a)]
        results += [*tools.vhp(scalar, a, b), *tools.hvp(scalar, a, b), *tools.vjp(lambda t: t * t, a, b)]
        results += [
            *tools.jvp(lambda t: t * t, a, b),
            tools.hessian(lambda s, t: (s * t * t).sum(), (a, b))[0][1],
        ]
        results.append(f.vmap(f.jacrev(lambda t: t.sin() * t.sum()))(a))
        results.append(f.grad(lambda t: f.grad(lambda s: (s**3).sum())(t).sum())(a))
    weft.realize(*got)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.shape == tuple(b.shape), k
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-4, err_msg=str(k))


class Cube(autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, scale: float) -> Any:
        out = x * x * x * scale
        ctx.save_for_backward(x, out)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, out = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, False)
        return g * 3 * out / x, None


class Two(autograd.Function):
    """Results whose backward is not linear in its gradients: both must come together."""

    @staticmethod
    def forward(x: Any, y: Any) -> Any:
        return x * y, x.to(weft.float64) + y, x > 0

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any, _: Any) -> Any:
        x, y = ctx.saved_tensors
        return g * y * h.float(), g * x + h.float()


def test_function() -> None:
    x = weft.tensor(C, requires_grad=True)
    assert autograd.gradcheck(lambda t: Cube.apply(t, 2.0), weft.tensor(C.astype("f8"), requires_grad=True))
    y = Cube.apply(x, 2.0)
    (g,) = autograd.grad(y.sum(), x, create_graph=True)
    (h,) = autograd.grad(g.sum(), x)
    np.testing.assert_allclose(g.numpy(), 6 * C**2, rtol=1e-5)
    np.testing.assert_allclose(h.numpy(), 12 * C, rtol=1e-5)
    np.testing.assert_allclose(
        weft.vmap(weft.grad(lambda t: Cube.apply(t, 1.0)))(weft.tensor(C)).numpy(), 3 * C**2, rtol=1e-5
    )
    a, b = weft.tensor(C, requires_grad=True), weft.tensor(C[::-1].copy(), requires_grad=True)
    p, q, mask = Two.apply(a, b)
    assert not mask.requires_grad and q.dtype is weft.float64
    (p.sum() + 2 * q.sum()).backward()
    np.testing.assert_allclose(a.grad.numpy(), 2 * b.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(b.grad.numpy(), C + 2, rtol=1e-6)
    with weft.no_grad():
        assert not Cube.apply(x, 1.0).requires_grad


def test_hooks() -> None:
    seen: list[Any] = []
    x = weft.tensor(C, requires_grad=True)
    y = x * 2
    handle = x.register_hook(lambda g: seen.append("leaf") or g * 10)
    y.register_hook(lambda g: seen.append("result"))
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad is not None))
    y.sum().backward()
    assert seen == ["result", "leaf", True] and x.grad.tolist() == [20.0] * 5
    optimizer = weft.optim.SGD([x], lr=0.0)
    optimizer.step()  # the leaf stands for another value now, and keeps its hooks
    optimizer.zero_grad()
    (x * 1).sum().backward()
    assert x.grad.tolist() == [10.0] * 5
    handle.remove()
    x.grad = None
    weft.compile(lambda: (x * 3).sum().backward())()
    assert x.grad.tolist() == [3.0] * 5


def test_hooks_run_in_compiled_steps() -> None:
    x = weft.tensor(C, requires_grad=True)
    x.register_hook(lambda g: g * 5)

    @weft.compile
    def step() -> None:
        x.grad = None
        (x * 1).sum().backward()

    step()
    step()
    assert x.grad.tolist() == [5.0] * 5


@pytest.mark.parametrize("compiled", [False, True])
def test_checkpoint(compiled: bool) -> None:
    results = []
    for use in (False, True):
        weft.manual_seed(0)
        w, x = weft.tensor(data(5, 5) * 0 + 0.3, requires_grad=True), weft.tensor(A[0], requires_grad=True)

        def block(t: Any, w: Any = w) -> Any:
            return F.dropout((t @ w).sin(), 0.3), t.sum()

        def step(use: bool = use, x: Any = x, w: Any = w, block: Any = block) -> Any:
            x.grad = w.grad = None
            out, total = autograd.checkpoint(block, x * 2) if use else block(x * 2)
            loss = (out * out).sum() + total
            loss.backward()
            return loss.detach()

        run = weft.compile(step) if compiled else step
        losses = [run().item() for _ in range(2)]
        results.append([losses, x.grad.tolist(), w.grad.tolist()])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_grad_options() -> None:
    x, z = weft.tensor(C, requires_grad=True), weft.ones(2, requires_grad=True)
    y = x.sin()
    assert autograd.grad(y.sum(), [x, z], allow_unused=True)[1] is None
    assert autograd.grad(y.sum(), [x, z], materialize_grads=True)[1].tolist() == [0, 0]
    rows = autograd.grad(y, x, weft.eye(5), is_grads_batched=True)[0]
    np.testing.assert_allclose(rows.numpy(), np.diag(np.cos(C)), rtol=1e-5, atol=1e-6)
    autograd.backward([y.sum(), (2 * x).sum()])
    np.testing.assert_allclose(x.grad.numpy(), np.cos(C) + 2, rtol=1e-5)


def test_gradcheck() -> None:
    x = weft.tensor(C.astype("f8"), requires_grad=True)
    y = weft.tensor(C[::-1].astype("f8").copy(), requires_grad=True)
    assert autograd.gradcheck(lambda a, b: (a * b, a.exp().sum()), (x, y))
    assert autograd.gradgradcheck(lambda a, b: a * a * b, (x, y))
    broken = lambda t: Wrong.apply(t)  # noqa: E731
    assert not autograd.gradcheck(broken, x, raise_exception=False)
    with pytest.raises(weft.GradError, match="gradcheck: the gradient of output 0 by input 0 is wrong"):
        autograd.gradcheck(broken, x)


class Wrong(autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


@pytest.mark.parametrize("segments", [1, 2, 3, 5, 9])
def test_functions_in_a_row_of_checkpoints_are_applied_each_once(segments: int) -> None:
    steps = [lambda x, k=k: x * (k + 2) + k for k in range(5)]
    x = weft.tensor(C, requires_grad=True)
    out = weft.utils.checkpoint.checkpoint_sequential(steps, min(segments, len(steps)), x)
    want = C
    for k in range(5):
        want = want * (k + 2) + k
    np.testing.assert_allclose(out.detach().numpy(), want, rtol=1e-5)
    out.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.full(5, 720.0), rtol=1e-5)


def test_checkpoints_keep_what_has_no_gradient_of_its_own() -> None:
    empty, whole = weft.ones(0, requires_grad=True), weft.tensor([1, 2])

    def f(x: Any, none: Any, counts: Any) -> Any:
        return x.sin() * counts.sum() + none.sum()

    x = weft.tensor(C, requires_grad=True)
    weft.utils.checkpoint.checkpoint(f, x, empty, whole).sum().backward()
    assert x.grad is not None and empty.grad is not None and empty.grad.shape == (0,)
    np.testing.assert_allclose(x.grad.numpy(), 3 * np.cos(C), rtol=1e-5)


def test_hooks_of_each_kind_make_a_tensor_another_argument() -> None:
    seen: list[str] = []
    x = weft.ones(2, requires_grad=True)
    step = weft.compile(lambda t: (t * 3).sum().backward())
    step(x)
    x.register_post_accumulate_grad_hook(lambda t: seen.append("after"))
    step(x)
    assert seen == ["after"]
    x.register_hook(lambda g: seen.append("before"))
    step(x)
    assert seen == ["after", "before", "after"]


def positive(a: weft.Tensor) -> weft.Tensor:
    return a @ a.mT + 3 * weft.eye(a.shape[-1], dtype=a.dtype)


ON_HOST: dict[str, tuple[tuple[int, ...], Callable[[weft.Tensor], weft.Tensor]]] = {
    "qr, tall": ((3, 2), lambda a: weft.linalg.qr(a)[1]),
    "qr, wide": ((2, 3), lambda a: weft.linalg.qr(a)[0]),
    "cholesky": ((3, 3), lambda a: weft.linalg.cholesky(positive(a))),
    "solve": ((3, 3), lambda a: weft.linalg.solve(positive(a), a)),
    "solve_triangular": ((3, 3), lambda a: weft.linalg.solve_triangular(positive(a).tril(), a, upper=False)),
    "lu": ((3, 3), lambda a: weft.linalg.lu(positive(a))[2]),
}
"""Functions whose gradients are computed on the host: they read the values of what they differentiate."""


@pytest.mark.parametrize("name", ON_HOST)
def test_jacobians_of_what_is_computed_on_the_host(name: str) -> None:
    shape, f = ON_HOST[name]
    x = weft.tensor(np.random.default_rng(0).normal(size=shape), requires_grad=True)
    assert weft.autograd.gradcheck(f, (x,))
    np.testing.assert_allclose(weft.func.jacfwd(f)(x).numpy(), weft.func.jacrev(f)(x).numpy(), atol=1e-9)


def test_hessian_of_a_gaussian_likelihood() -> None:
    """Of 1/2 y' K(s)^-1 y + 1/2 log det K(s), by its Cholesky factor, beside differences of gradients."""
    rng = np.random.default_rng(0)
    b, y = weft.tensor(rng.normal(size=(4, 4))), weft.tensor(rng.normal(size=(4, 1)))

    def loss(s: weft.Tensor) -> weft.Tensor:
        L = weft.linalg.cholesky(positive(b) * s[0] + weft.eye(4, dtype=s.dtype) * s[1])
        z = weft.linalg.solve_triangular(L, y, upper=False)
        return (z * z).sum() / 2 + L.diagonal().log().sum()

    s = np.array([0.7, 1.3])
    slope = lambda at: weft.func.grad(loss)(weft.tensor(at)).numpy()  # noqa: E731
    h = 1e-5
    want = np.stack([(slope(s + h * e) - slope(s - h * e)) / (2 * h) for e in np.eye(2)])
    np.testing.assert_allclose(weft.func.hessian(loss)(weft.tensor(s)).numpy(), want, rtol=1e-6)


def test_jacobians_without_elements_of_what_is_computed_on_the_host() -> None:
    x = weft.zeros(0, 0, dtype=weft.float64)
    assert weft.func.jacrev(weft.linalg.cholesky)(x).shape == (0, 0, 0, 0)
    assert weft.func.jacfwd(weft.linalg.cholesky)(x).shape == (0, 0, 0, 0)


def test_grad_is_by_the_first_argument_and_vjp_takes_a_cotangent_for_each_output() -> None:
    a, b = weft.tensor([2.0, 3.0]), weft.tensor([5.0, 7.0])
    assert weft.func.grad(lambda x, y: (x * x * y).sum())(a, b).tolist() == [20.0, 42.0]
    _, pull = weft.func.vjp(lambda x: (x * 2, x * 3), a)
    (g,) = pull(weft.tensor([1.0, 0.0]), weft.tensor([0.0, 1.0]))
    assert g.tolist() == [2.0, 3.0]
