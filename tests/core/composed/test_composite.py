"""Composed functions are recorded as the graph that they build when run: node for node, with their gradients."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import Tensor
from weft.core.composed import composite
from weft.core.composed.autocast import widens
from weft.ir.calls import expand_calls
from weft.ir.errors import IRError
from weft.ir.graph import toposort
from weft.ir.graph_verify import verify_graph
from weft.ir.ops import Op

ONE: list[Callable[[Tensor], Any]] = [
    F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, F.mish, F.elu, F.celu, F.selu, F.softplus, F.logsigmoid,
    F.softsign, F.tanhshrink, F.hardsigmoid, F.hardswish, F.glu, F.hardshrink, F.softshrink,
    lambda x: F.softmax(x, -1), lambda x: F.log_softmax(x, 0), lambda x: F.softmax(x, 1, dtype=weft.float64),
    lambda x: F.layer_norm(x, (4,)), lambda x: F.rms_norm(x, (4,)), F.normalize,
    weft.sinh, weft.cosh, weft.sigmoid, weft.logit, weft.sign, weft.log1p, weft.tan, weft.log10, weft.frac,
    weft.asin, weft.acos, weft.atan, weft.asinh, weft.acosh, weft.atanh, weft.sinc, weft.nan_to_num,
    weft.special.erfc, weft.special.erfinv, weft.lgamma, weft.digamma, weft.special.ndtr, weft.special.i0,
    weft.special.entr,
    weft.var, lambda x: weft.std(x, 1), lambda x: weft.logsumexp(x, 1), weft.norm, weft.argmax, weft.count_nonzero,
    lambda x: weft.linalg.norm(x, dim=1), lambda x: F.avg_pool1d(x, 2), lambda x: F.max_pool1d(x, 2),
    lambda x: x.tril(),
    lambda x: weft.cumsum(x, 1), lambda x: weft.cumprod(x, 1), lambda x: weft.logcumsumexp(x, 0), weft.diff,
    lambda x: x.max(1).values, lambda x: x.min(0).indices, lambda x: x.max(), lambda x: x.cummax(1).values,
    lambda x: x.cummin(0).indices, lambda x: x.kthvalue(2).values, lambda x: x.mode(0).values,
    lambda x: x.quantile(0.3, 1), lambda x: x.nanquantile(0.3), lambda x: weft.frexp(x)[0], weft.corrcoef,
    lambda x: F.adaptive_avg_pool1d(x, 3), lambda x: F.adaptive_avg_pool2d(x[None], (2, 3)),
]  # fmt: skip
"""Functions of one tensor."""

TWO: list[Callable[[Tensor, Tensor], Any]] = [
    weft.atan2, weft.hypot, weft.fmod, weft.remainder, weft.floor_divide, weft.logaddexp, weft.nextafter,
    weft.copysign, weft.special.xlogy, weft.isclose, lambda x, y: weft.lerp(x, y, 0.3),
    F.mse_loss, F.l1_loss, F.huber_loss, F.smooth_l1_loss, F.kl_div, F.binary_cross_entropy_with_logits,
    F.linear, F.cosine_similarity, lambda x, y: x @ y.T, lambda x, y: F.conv1d(x[None], y[None]),
    lambda x, y: F.scaled_dot_product_attention(x, y, y.detach() * 2),
    lambda x, y: F.scaled_dot_product_attention(x, y, y.detach() * 2, is_causal=True),
    lambda x, y: weft.einsum("ij,kj->ik", x, y), lambda x, y: weft.quantile(x, y[0], 1),
    lambda x, y: F.grid_sample(x[None, None], y[:, :2].reshape(1, 3, 1, 2)),
]  # fmt: skip
"""Functions of two tensors of one shape."""


def _leaves(count: int) -> list[Tensor]:
    return [weft.zeros(3, 4).contiguous().realize().requires_grad_() for _ in range(count)]


@pytest.mark.parametrize("function", [*ONE, *TWO], ids=lambda f: getattr(f, "__name__", "?"))
def test_what_is_recorded_is_what_is_run(function: Callable[..., Tensor]) -> None:
    inputs = _leaves(1 if function in ONE else 2)
    for again in range(2):  # recorded, then called
        del again
        made = function(*inputs)
        plain = composite.without_calls(function)(*inputs)
        assert made.requires_grad == plain.requires_grad
        assert expand_calls([made.value.node]) == [plain.value.node]
        verify_graph([made.value.node])
        if made.requires_grad:
            grads = weft.autograd.grad(made.sum(), inputs, allow_unused=True)
            wanted = composite.without_calls(weft.autograd.grad)(plain.sum(), inputs, allow_unused=True)
            for g, w in zip(grads, wanted, strict=True):
                assert (g is None) == (w is None)
                if g is not None and w is not None:
                    verify_graph([g.value.node])
                    assert expand_calls([g.value.node]) == [w.value.node]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.max(1).indices, lambda x: x.min(1).values, lambda x: x.cummax(1).indices,
        lambda x: x.kthvalue(2).indices, lambda x: x.mode(0).values, lambda x: x.quantile(0.3, 1),
        lambda x: weft.frexp(x)[0], weft.corrcoef, lambda x: F.adaptive_avg_pool1d(x, 3),
        lambda x: weft.einsum("ij,kj->ik", x, x), lambda x: F.grid_sample(x[None, None], x[:, :2].reshape(1, 3, 1, 2)),
    ],
)  # fmt: skip
def test_functions_of_many_ops_are_one_call(function: Callable[..., Tensor]) -> None:
    nodes = toposort([function(*_leaves(1)).value.node])
    moves = (Op.BUFFER, Op.RESHAPE, Op.SHRINK, Op.EXPAND, Op.PERMUTE)
    assert [n.op for n in nodes if n.op not in moves] == [Op.CALL]


def _signatures() -> Iterator[tuple[str, ast.arg]]:
    """The parameters of all composed functions, each with where it is."""
    for path in sorted(Path(weft.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and any(
                "composite" in ast.unparse(d) and "recorded=False" not in ast.unparse(d)
                for d in node.decorator_list
            ):
                for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                    yield f"{path.name}: {node.name}", arg


def test_no_argument_keeps_a_function_from_being_recorded() -> None:
    """A function that is given an op, or another function, is run at each call: name what is meant instead."""
    seen = list(_signatures())
    assert len(seen) > 200
    for name, arg in seen:
        kind = "" if arg.annotation is None else ast.unparse(arg.annotation)
        assert "Callable" not in kind and "Op" not in kind.replace("Optional", ""), (
            f"{name}({arg.arg}: {kind})"
        )


def test_what_depends_on_more_than_the_structure_is_run() -> None:
    inplace = weft.zeros(3, 4).contiguous().realize()
    for _ in range(2):
        F.silu(inplace + 0, inplace=True)
        with pytest.raises(TypeError, match="unexpected keyword"):
            F.softplus(inplace, nothing=1)  # pyright: ignore[reportCallIssue]  (what is tested)
        with pytest.raises(weft.ShapeError, match="do not broadcast"):
            F.mse_loss(inplace, weft.ones(2, 4).contiguous())
    assert F.softplus(inplace).value.node.op is Op.CALL
    assert F.softplus(weft.zeros(3, 4)).value.node.op is not Op.CALL  # constants fold
    assert weft.vmap(F.softplus)(inplace).value.node.op is not Op.CALL
    assert not np.signbit(F.hardshrink(inplace, 0.0).numpy()).any()


def test_gradients_of_gradients_and_batches() -> None:
    x = weft.tensor([[0.3, -1.2, 2.0]], requires_grad=True)
    for function in (
        F.softplus,
        F.gelu,
        lambda t: F.layer_norm(t, (3,)),
        weft.lgamma,
        lambda t: F.softmax(t, -1),
    ):
        results: list[Any] = []
        for f in (function, composite.without_calls(function)):
            (g,) = weft.autograd.grad((f(x) * x).sum(), [x], create_graph=True)
            (gg,) = weft.autograd.grad((g * g).sum(), [x])
            jacobian = weft.func.jacrev(f)(x)
            hessian = weft.func.hessian(lambda t, f=f: f(t).square().sum())(x)
            batched = weft.vmap(weft.func.grad(lambda t, f=f: f(t).square().sum()))(x)
            tangent = weft.func.jvp(f, (x.detach(),), (weft.ones(1, 3),))[1]
            results.append(
                weft.cat([t.detach().reshape(-1) for t in (g, gg, jacobian, hessian, batched, tangent)])
            )
        np.testing.assert_allclose(results[0].numpy(), results[1].numpy(), rtol=2e-4, atol=1e-6)


def test_optimizers_record_their_rule_and_follow_their_options() -> None:
    p = weft.nn.Parameter(weft.ones(4))
    q = weft.nn.Parameter(weft.ones(4))
    ours = weft.optim.AdamW([p], lr=0.1)
    plain = weft.optim.AdamW([q], lr=0.1)
    run = composite.without_calls(plain.step)
    for k in range(6):
        for group in (*ours.param_groups, *plain.param_groups):
            group["lr"] = 0.1 / (k + 1)
            group["betas"] = (0.9 - 0.1 * (k == 3), 0.999)
            group["weight_decay"] = 0.0 if k == 4 else 0.1
        for t, step in ((p, ours.step), (q, run)):
            t.grad = None
            (t * weft.arange(4) * (k + 1.0)).sin().sum().backward()
            step()
    np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())


def doubled(x: Tensor, factor: float = 2.0) -> Tensor:
    return (x * factor).exp().sum(0)


def test_the_least_recently_used_structure_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    entries: dict[Any, Any] = {}
    monkeypatch.setattr(composite, "_entries", entries)
    monkeypatch.setattr(composite, "KEPT", 2)
    function = composite.composite(doubled)
    x = weft.zeros(3, 4).contiguous().realize()
    for factor in (2.0, 3.0, 2.0, 4.0):
        function(x, factor)
    assert [e.args[1] for e in entries.values()] == [2.0, 4.0]


def test_names_of_arguments_are_part_of_the_structure() -> None:
    def less(x: Tensor, y: Tensor) -> Tensor:
        return (x - y).exp()

    function = composite.composite(less)
    x, y = (weft.full((3,), k).contiguous().realize() for k in (1.0, 2.0))
    for _ in range(2):
        results = [function(x, y), function(x, y=y), function(y=y, x=x), function(y=x, x=y)]
        first, second, third, other = (t.numpy().tolist() for t in results)
        assert first == second == third != other


def test_a_function_that_reads_what_is_not_in_its_key_is_found() -> None:
    factor = 2.0

    def impure(x: Tensor) -> Tensor:
        return (x * factor).exp()

    function = composite.composite(impure)
    x = weft.zeros(3).contiguous().realize()
    function(x)
    factor = 3.0
    with pytest.raises(IRError, match="impure builds another graph than when it was recorded"):
        function(x)

    pure = composite.composite(doubled)
    for _ in range(2 * composite.CHECKED_EVERY):
        assert pure(x).value.node.op is Op.CALL


@pytest.mark.parametrize("rounds_once", [False, True])
def test_what_a_composite_declares_holds_in_one_order(rounds_once: bool) -> None:
    seen: list[Any] = []

    def function(x: Tensor) -> Tensor:
        seen.append(x.dtype)
        return x.exp() * 2

    declared = composite.composite(autocast=widens, rounds_once=rounds_once, recorded=False)(function)
    x = weft.zeros(3, dtype=weft.float16)
    assert declared(x).dtype is weft.float16 and seen == [weft.float32 if rounds_once else weft.float16]
    with weft.autocast("cpu", weft.bfloat16):
        assert declared(x).dtype is weft.float32 and seen[1:] == [weft.float32]
    assert declared(x.contiguous()).value.node.op is not Op.CALL


def test_a_gradient_that_is_the_result_s_own_is_no_reason_to_run_the_function_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    again: list[Any] = []
    monkeypatch.setattr(composite._Result, "composed_gradients", lambda *args: again.append(args))
    w, b = (weft.ones(*shape).contiguous().realize().requires_grad_() for shape in ((3, 4), (3,)))
    for k in range(3):
        x = weft.tensor(np.full(4, k, np.float32))
        (F.linear(x, w, b) * weft.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert b.grad is not None and w.grad is not None and not again
    assert b.grad.tolist() == [3.0, 6.0, 9.0]
    assert w.grad.tolist() == [[3.0] * 4, [6.0] * 4, [9.0] * 4]


def test_constants_are_arguments_of_calls() -> None:
    """As biases are before they are trained, and states before the first step. What they simplify is simplified when
    somebody looks inside."""
    x = weft.randn(3, 4).realize()
    w, b = weft.ones(5, 4), weft.zeros(5, requires_grad=True)
    y = F.linear(x, w, b)
    assert y.value.node.op is Op.CALL
    plain = composite.without_calls(F.linear)(x, w, b)
    assert expand_calls([y.value.node])[0] is plain.value.node
    y.sum().backward()
    assert b.grad is not None and b.grad.tolist() == [3.0] * 5
    np.testing.assert_array_equal(y.detach().numpy(), plain.detach().numpy())
    all_constant = F.linear(weft.ones(3, 4), w, b)
    assert all_constant.value.node.device is None
    assert all_constant.tolist() == [[4.0] * 5] * 3
    assert F.linear(x, w, weft.zeros(5)).value.node.device == x.value.node.device


@pytest.mark.parametrize(
    "pick",
    [
        lambda x, i: F.embedding(i, x), lambda x, i: x.index_select(0, i), lambda x, i: x[i],
        lambda x, i: x.gather(0, i.reshape(3, 1)), lambda x, i: F.nll_loss(x, i), lambda x, i: F.cross_entropy(x, i),
    ],
)  # fmt: skip
def test_constants_that_are_wrong_are_refused_after_others(
    pick: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Their values are no part of a call's key."""
    x = weft.randn(3, 4).realize()
    for _ in range(2):
        pick(x, weft.full((3,), 1, dtype=weft.int64))
        with pytest.raises(weft.IndexError):
            pick(x, weft.full((3,), 9, dtype=weft.int64))
