"""Every rule against central differences in float64, first and second derivatives, and against torch."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import weft
from weft.autograd import ops
from weft.autograd.reverse import gradients
from weft.autograd.value import Value, apply
from weft.autograd.vjp import VJP
from weft.ir import dtypes as d
from weft.ir import graph as g
from weft.ir.graph import Along, Axes, Box, Padding, ScatterCombine, Target, Window
from weft.ir.ops import CONVERSIONS, ELEMENTWISE, Op
from weft.testing.reference import evaluate


@dataclass(frozen=True)
class Case:
    """One use of an op: the inputs (all float64 and differentiated), weft's and, where it has one, torch's form."""

    op: Op
    name: str
    inputs: tuple[Any, ...]
    weft: Callable[..., Value]
    torch: Callable[..., Any] | None = None
    smooth: bool = True  # differences are meaningful here
    second: bool = True


def leaf(array: Any, needs_grad: bool = True, dtype: d.DType = d.float64) -> Value:
    array = np.array(array, d.to_numpy(dtype))
    return Value(g.buffer(array.shape, dtype, "cpu:0", array), needs_grad)


def fixed(values: Any, dtype: d.DType = d.int64) -> Value:
    return leaf(values, False, dtype)


def case(op: Op, inputs: Sequence[Any], weft: Any, torch: Any = None, name: str = "", **flags: bool) -> Case:
    return Case(op, name, tuple(np.array(x, np.float64) for x in inputs), weft, torch, **flags)


def attributes(op: Op, attrs: g.Attrs = None, shape: g.Shape | None = None) -> Callable[..., Value]:
    return lambda *xs: apply(op, xs, attrs, shape)


ANY = [-1.7, -0.4, 0.3, 1.1, 2.6]
OTHER = [0.6, -1.2, 1.9, -0.7, 0.8]
POSITIVE = [0.2, 0.7, 1.0, 1.8, 3.1]
GRID = np.arange(24.0).reshape(2, 3, 4) / 7 - 1.3


def torch_call(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f(torch, *inputs)`, with torch imported when the test runs."""

    def call(*xs: Any) -> Any:
        import torch

        return f(torch, *xs)

    return call


T = torch_call
W = Window(0, 1, 2, 3)
STRIDED = Box((0, 1, 1), (1, 1, 2))
INDEX = [[0, 2, 2, 1], [1, 1, 1, 0]]
OUTSIDE = [[0, 5, 2, 1], [1, 1, -3, 0]]
X24 = np.array([[0.3, -1.0, 2.0, 0.7], [1.5, 0.2, -0.6, 1.1], [0.9, -0.3, 0.4, 2.2]])
S24 = np.array([[0.5, -0.2, 1.4, 0.6], [1.2, 2.1, -0.9, 0.8]])


def scattered(op: Op | None, index: Any, dtype: d.DType = d.int64) -> Callable[..., Value]:
    return lambda x, s: apply(Op.SCATTER, (x, fixed(index, dtype), s), ScatterCombine(0, op))


def reduced(kind: str) -> Callable[..., Any]:
    return T(lambda t, x, s: x.scatter_reduce(0, t.tensor(INDEX), s, kind))


CASES = [
    case(Op.NEG, [ANY], ops.neg, T(lambda t, x: -x)),
    case(Op.ABS, [ANY], attributes(Op.ABS), T(lambda t, x: x.abs())),
    case(Op.ABS, [[0.0, 1.0]], attributes(Op.ABS), T(lambda t, x: x.abs()), "at zero", smooth=False),
    case(Op.RECIP, [ANY], attributes(Op.RECIP), T(lambda t, x: x.reciprocal())),
    case(Op.SQRT, [POSITIVE], attributes(Op.SQRT), T(lambda t, x: x.sqrt())),
    case(Op.EXP, [ANY], ops.exp, T(lambda t, x: x.exp())),
    case(Op.EXP2, [ANY], attributes(Op.EXP2), T(lambda t, x: x.exp2())),
    case(Op.EXPM1, [ANY], attributes(Op.EXPM1), T(lambda t, x: x.expm1())),
    case(Op.LOG, [POSITIVE], ops.log, T(lambda t, x: x.log())),
    case(Op.LOG2, [POSITIVE], attributes(Op.LOG2), T(lambda t, x: x.log2())),
    case(Op.SIN, [ANY], ops.sin, T(lambda t, x: x.sin())),
    case(Op.COS, [ANY], ops.cos, T(lambda t, x: x.cos())),
    case(Op.TANH, [ANY], attributes(Op.TANH), T(lambda t, x: x.tanh())),
    case(Op.ERF, [ANY], attributes(Op.ERF), T(lambda t, x: x.erf())),
    case(Op.FLOOR, [ANY], attributes(Op.FLOOR), T(lambda t, x: x.floor())),
    case(Op.CEIL, [ANY], attributes(Op.CEIL), T(lambda t, x: x.ceil())),
    case(Op.TRUNC, [ANY], ops.trunc, T(lambda t, x: x.trunc())),
    case(Op.ROUND, [ANY], attributes(Op.ROUND), T(lambda t, x: x.round())),
    case(Op.CAST, [ANY], lambda x: ops.cast(ops.cast(x, d.float32), d.float64), smooth=False),
    case(Op.ADD, [ANY, OTHER], ops.add, T(lambda t, x, y: x + y)),
    case(Op.ADD, [ANY], lambda x: ops.add(x, x), T(lambda t, x: x + x), "to itself"),
    case(Op.SUB, [ANY, OTHER], ops.sub, T(lambda t, x, y: x - y)),
    case(Op.MUL, [ANY, OTHER], ops.mul, T(lambda t, x, y: x * y)),
    case(Op.MUL, [ANY], lambda x: ops.mul(x, x), T(lambda t, x: x * x), "by itself"),
    case(Op.DIV, [ANY, OTHER], ops.div, T(lambda t, x, y: x / y)),
    case(Op.MOD, [ANY, OTHER], attributes(Op.MOD), T(lambda t, x, y: t.fmod(x, y))),
    case(Op.MAX, [ANY, OTHER], attributes(Op.MAX), T(lambda t, x, y: t.maximum(x, y))),
    case(Op.MAX, [ANY, ANY], attributes(Op.MAX), T(lambda t, x, y: t.maximum(x, y)), "ties", smooth=False),
    case(Op.MIN, [ANY, OTHER], attributes(Op.MIN), T(lambda t, x, y: t.minimum(x, y))),
    case(Op.MIN, [ANY, ANY], attributes(Op.MIN), T(lambda t, x, y: t.minimum(x, y)), "ties", smooth=False),
    case(Op.POW, [POSITIVE, OTHER], ops.pow_, T(lambda t, x, y: x**y)),
    case(
        Op.POW,
        [[0.0, 0.0, -1.5, 0.0]],
        lambda x: ops.pow_(x, fixed([2.0, 1.0, 3.0, 0.0], d.float64)),
        T(lambda t, x: x ** t.tensor([2.0, 1.0, 3.0, 0.0], dtype=t.float64)),
        "at zero",
    ),
    case(Op.POW, [[0.0, 0.0], [0.0, 2.0]], ops.pow_, T(lambda t, x, y: x**y), "zero to", smooth=False, second=False),
    case(
        Op.WHERE,
        [ANY, OTHER],
        lambda x, y: ops.where(fixed([1, 0, 1, 1, 0], d.bool_), x, y),
        T(lambda t, x, y: t.where(t.tensor([1, 0, 1, 1, 0]) > 0, x, y)),
    ),
    case(Op.SUM, [GRID], attributes(Op.SUM, Axes((0, 2))), T(lambda t, x: x.sum((0, 2)))),
    case(Op.PROD, [GRID], attributes(Op.PROD, Axes((1,))), T(lambda t, x: x.prod(1))),
    case(Op.PROD, [GRID], attributes(Op.PROD, Axes((0, 2))), None, "of two axes"),
    case(Op.PROD, [[[0.0, 2.0, 3.0], [0.0, 0.0, 1.5], [1.0, 2.0, 3.0]]], attributes(Op.PROD, Axes((1,))),
         T(lambda t, x: x.prod(1)), "with zeros"),
    case(Op.PROD, [np.zeros((2, 0))], attributes(Op.PROD, Axes((1,))), None, "of nothing"),
    case(Op.REDUCE_MAX, [GRID], attributes(Op.REDUCE_MAX, Axes((0, 1))), T(lambda t, x: x.amax((0, 1)))),
    case(Op.REDUCE_MAX, [[[1.0, 3.0, 3.0]]], attributes(Op.REDUCE_MAX, Axes((1,))), T(lambda t, x: x.amax(1)), "ties",
         smooth=False),
    case(Op.REDUCE_MIN, [GRID], attributes(Op.REDUCE_MIN, Axes((2,))), T(lambda t, x: x.amin(2))),
    case(Op.RESHAPE, [GRID], attributes(Op.RESHAPE, None, (4, 6)), T(lambda t, x: x.reshape(4, 6))),
    case(Op.PERMUTE, [GRID], attributes(Op.PERMUTE, Axes((2, 0, 1))), T(lambda t, x: x.permute(2, 0, 1))),
    case(Op.EXPAND, [GRID[:, :1]], attributes(Op.EXPAND, None, (2, 5, 4)), T(lambda t, x: x.expand(2, 5, 4))),
    case(Op.PAD, [GRID], attributes(Op.PAD, Padding((1, 0, 2), (0, 2, 1), (2, 0, 1), 7.0))),
    case(Op.PAD, [np.zeros((0, 2))], attributes(Op.PAD, Padding((1, 1), (2, 0), (2, 0))), None, "of nothing"),
    case(Op.SHRINK, [GRID], attributes(Op.SHRINK, STRIDED, (2, 2, 2)), T(lambda t, x: x[:, 1:3, 1::2])),
    case(Op.SHRINK, [GRID], attributes(Op.SHRINK, Box((0, 3, 1), (1, 2, 1)), (2, 0, 2)), None, "to nothing"),
    case(Op.FLIP, [GRID], attributes(Op.FLIP, Axes((0, 2))), T(lambda t, x: x.flip(0, 2))),
    case(Op.SHEAR, [np.linspace(-1, 1, 30).reshape(10, 3)], attributes(Op.SHEAR, W, (2, 3))),
    case(Op.UNSHEAR, [np.linspace(-1, 1, 6).reshape(2, 3)], attributes(Op.UNSHEAR, W, (10, 3))),
    case(Op.GATHER, [X24], lambda x: ops.gather(x, fixed(INDEX), 0), T(lambda t, x: x.gather(0, t.tensor(INDEX)))),
    case(Op.GATHER, [X24], lambda x: ops.gather(x, fixed(OUTSIDE), 0), None, "clamped"),
    case(Op.GATHER, [X24], lambda x: ops.gather(x, fixed(INDEX, d.uint8), 0), None, "by bytes"),
    case(Op.SCATTER, [X24, S24], scattered(None, INDEX), None, "last"),
    case(Op.SCATTER, [X24, S24], scattered(None, OUTSIDE), None, "last, clipped"),
    case(Op.SCATTER, [X24, S24], scattered(Op.ADD, INDEX), reduced("sum"), "add"),
    case(Op.SCATTER, [X24, S24], scattered(Op.ADD, OUTSIDE), None, "add, clipped"),
    case(Op.SCATTER, [X24, S24], scattered(Op.MUL, INDEX), reduced("prod"), "mul"),
    case(Op.SCATTER, [X24, [[0.5, 0.0, 0.0, 0.0], [0.0, 2.1, -0.9, 0.8]]],
         scattered(Op.MUL, INDEX), None, "mul, zeros"),
    case(Op.SCATTER, [np.linspace(1, 2, 3), [0.5, 0.0, 0.0, 0.0, 2.0, 0.0, 0.7, 0.9]],
         scattered(Op.MUL, [0, 0, 0, 1, 1, 2, 1, 0]), None, "mul, two zeros"),
    case(Op.SCATTER, [np.linspace(1, 2, 2), [0.0, 0.5, 0.0, 0.0, 2.0, 0.0]],
         scattered(Op.MUL, [0, 0, 0, 0, 1, 1]), None, "mul, three zeros"),
    case(Op.SCATTER, [X24, S24], scattered(Op.MAX, INDEX), reduced("amax"), "max"),
    case(Op.SCATTER, [X24, X24[[0, 1]]], scattered(Op.MAX, [[0] * 4, [1] * 4]),
         T(lambda t, x, s: x.scatter_reduce(0, t.tensor([[0] * 4, [1] * 4]), s, "amax")), "max, ties", smooth=False),
    case(Op.SCATTER, [X24, S24], scattered(Op.MIN, OUTSIDE), None, "min"),
    case(Op.SCATTER, [X24, np.zeros((0, 4))], scattered(Op.ADD, np.zeros((0, 4))), None, "nothing"),
    case(Op.CONCAT, [X24, S24, np.zeros((0, 4))], attributes(Op.CONCAT, Along(0)), T(lambda t, *xs: t.cat(xs))),
    case(Op.UPDATE, [GRID, np.ones((2, 2, 2))], attributes(Op.UPDATE, STRIDED),
         T(lambda t, x, s: t.slice_scatter(x, t.slice_scatter(x[:, 1:3], s, 2, 1, 4, 2), 1, 1, 3))),
    case(Op.CONTIGUOUS, [ANY], attributes(Op.CONTIGUOUS)),
    case(Op.COPY, [ANY], lambda x: apply(Op.COPY, (x,), Target("cpu:1"))),
]  # fmt: skip

ids = [f"{c.op.symbol} {c.name}".strip() for c in CASES]


def rng(c: Case) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(f"{c.op.symbol} {c.name}".encode()))


def differences(f: Value, x: Value) -> Any:
    """The gradient of the scalar `f` with respect to the leaf `x`, by central differences."""
    at, out = x.node.storage, np.zeros(x.node.storage.shape)
    for i in np.ndindex(*at.shape):
        step = 1e-5 * max(1.0, abs(at[i]))
        ends: list[float] = []
        for sign in (1, -1):
            x.node.storage = at.copy()
            x.node.storage[i] += sign * step
            ends.append(float(evaluate([f.node])[0]))
        out[i] = (ends[0] - ends[1]) / (2 * step)
    x.node.storage = at
    return out


def contracted(c: Case) -> tuple[list[Value], Value, Any]:
    """Leaves, the sum of the op's result times fixed random weights, and these weights."""
    xs = [leaf(x) for x in c.inputs]
    out = c.weft(*xs)
    weights = rng(c).standard_normal(out.shape)
    return xs, total(out, weights), weights


def total(x: Value, weights: Any) -> Value:
    return ops.sum_(ops.mul(x, leaf(weights, False)), tuple(range(len(x.shape))))


def gradient(f: Value, xs: Sequence[Value], create_graph: bool = False) -> list[Value]:
    found = gradients([f], [ops.full(1, (), d.float64)], xs, create_graph)
    return [found.get(x) or ops.zeros(x) for x in xs]


def test_every_op_has_a_rule_or_states_that_it_has_none() -> None:
    assert set(VJP) == set(Op)


@pytest.mark.parametrize("op", sorted(ELEMENTWISE - CONVERSIONS - {Op.WHERE}, key=str), ids=str)
@pytest.mark.parametrize("dtype", [d.float16, d.bfloat16], ids=str)
def test_sixteen_bits_are_rounded_once(op: Op, dtype: d.DType) -> None:
    """What a rule gives for 16-bit floats is what it gives for the same numbers in float32, rounded at the end."""
    rule = VJP[op]
    if rule is None:
        return
    random = np.random.default_rng(0)
    g, *xs = (random.uniform(0.2, 3, 1000).astype(d.to_numpy(dtype)) for _ in range(1 + (op.info.arity or 0)))
    (out,) = evaluate([apply(op, tuple(leaf(x, dtype=dtype) for x in xs)).node])
    narrow, wide = (
        [v.node for v in rule(*(leaf(x, dtype=to) for x in (g, out, *xs))) if v is not None]
        for to in (dtype, d.float32)
    )
    assert narrow and all(n.dtype is dtype for n in narrow)
    with np.errstate(all="ignore"):
        for got, want in zip(evaluate(narrow), evaluate(wide), strict=True):
            np.testing.assert_array_equal(got, want.astype(got.dtype))


def test_every_rule_is_tested() -> None:
    assert {c.op for c in CASES} == {op for op, rule in VJP.items() if rule is not None}


@pytest.mark.parametrize("c", CASES, ids=ids)
def test_shapes_and_dtypes(c: Case) -> None:
    xs, f, _ = contracted(c)
    for x, dx in zip(xs, gradient(f, xs), strict=True):
        assert (dx.shape, dx.dtype) == (x.shape, x.dtype)
        assert not dx.needs_grad


@pytest.mark.parametrize("c", [c for c in CASES if c.smooth], ids=[i for c, i in zip(CASES, ids) if c.smooth])
def test_against_differences(c: Case) -> None:
    xs, f, _ = contracted(c)
    for x, dx in zip(xs, gradient(f, xs), strict=True):
        np.testing.assert_allclose(evaluate([dx.node])[0], differences(f, x), rtol=1e-6, atol=1e-7)


SECOND = [(c, i) for c, i in zip(CASES, ids) if c.smooth and c.second]


@pytest.mark.parametrize("c", [c for c, _ in SECOND], ids=[i for _, i in SECOND])
def test_second_derivatives_against_differences(c: Case) -> None:
    xs, f, _ = contracted(c)
    random = rng(c)
    first = gradient(f, xs, create_graph=True)
    parts = [total(dx, random.standard_normal(dx.shape)) for dx in first]
    both = parts[0]
    for p in parts[1:]:
        both = ops.add(both, p)
    for x, dx in zip(xs, gradient(both, xs), strict=True):
        np.testing.assert_allclose(evaluate([dx.node])[0], differences(both, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("c", [c for c in CASES if c.torch], ids=[i for c, i in zip(CASES, ids) if c.torch])
def test_against_torch(c: Case) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    xs, f, weights = contracted(c)
    theirs = [torch.tensor(x, requires_grad=True) for x in c.inputs]
    assert c.torch is not None
    (c.torch(*theirs) * torch.tensor(weights)).sum().backward()
    for dx, t in zip(gradient(f, xs), theirs, strict=True):
        np.testing.assert_allclose(evaluate([dx.node])[0], t.grad.numpy(), rtol=1e-12, atol=1e-14)


def test_products_that_scatter_know_higher_derivatives() -> None:
    """Of three and more zeros in one product, too: derivatives of the fourth order beside the product's formula."""
    index = np.array([0, 0, 0, 0, 1, 1, 0])
    values = np.array([0.0, 0.0, 0.0, 2.0, 0.0, 3.0, 1.5])
    weights = np.random.default_rng(0).standard_normal((4, 7))

    def derivatives(f: Callable[[weft.Tensor], weft.Tensor]) -> list[weft.Tensor]:
        src = weft.tensor(values, requires_grad=True)
        out, found = f(src), list[weft.Tensor]()
        for w in weights:
            (g,) = weft.gradients(out, src, create_graph=True)
            assert g is not None
            found.append(g)
            out = (g * weft.tensor(w)).sum()
        return found

    def scattered_product(src: weft.Tensor) -> weft.Tensor:
        y = weft.tensor([2.0, 3.0], dtype=weft.float64).scatter_reduce(0, weft.tensor(index), src, "prod")
        return y[0] - 2 * y[1]

    def written_out(src: weft.Tensor) -> weft.Tensor:
        return 2 * src[0] * src[1] * src[2] * src[3] * src[6] - 6 * src[4] * src[5]

    pairs = list(zip(derivatives(scattered_product), derivatives(written_out), strict=True))
    weft.realize(*(t for pair in pairs for t in pair))
    for got, wanted in pairs:
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), atol=1e-12)
    assert pairs[-1][1].numpy().any()
