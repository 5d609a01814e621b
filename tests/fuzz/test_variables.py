"""Random programs over tensors of runtime sizes: one plan, bound to several sizes, against the reference at each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

import weft
import weft.nn.functional as F
from weft import Tensor
from weft.testing.reference import evaluate
from weft.testing.strategies import choice
from weft.testing.tolerance import allowed, difference

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))
ROWS, WIDTH = 24, 10
N, S = weft.Variable("n", 1, 16), weft.Variable("s", 0, 8)
SIZES = ((1, 0), (16, 8), (7, 3), (8, 1))
"""Values of (n, s)."""

STARTS: dict[str, Callable[[Tensor, Any, Any], Tensor]] = {
    "x[:n]": lambda x, n, s: x[:n],
    "x[s:s+8]": lambda x, n, s: x[s : s + 8],
    "x[s:s+n]": lambda x, n, s: weft.narrow(x, 0, s, n),
    "x[:n].T": lambda x, n, s: x[:, :n] if x.shape[1] >= 16 else x.T[:, :n].T,
}

STEPS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "tanh": lambda a, b, w: a.tanh(),
    "exp": lambda a, b, w: (a * 0.5).clamp(-3, 3).exp(),
    "relu": lambda a, b, w: a.relu(),
    "abs sqrt": lambda a, b, w: (a.abs() + 0.1).sqrt(),
    "add": lambda a, b, w: a + b,
    "mul": lambda a, b, w: a * b,
    "where": lambda a, b, w: weft.where(a > 0, a, b),
    "scalar": lambda a, b, w: a * 0.75 - 1,
    "row": lambda a, b, w: a + w[0],
    "product": lambda a, b, w: a @ w,
    "gram": lambda a, b, w: (a @ b.T * 0.1) @ a,
    "attention": lambda a, b, w: (a @ b.T * 0.3).softmax(-1) @ b,
    "attention and its sums": lambda a, b, w: _with_sums(a @ b.T * 0.3, b),
    "softmax": lambda a, b, w: a.softmax(-1),
    "softmax over rows": lambda a, b, w: a.softmax(0),
    "centred": lambda a, b, w: a - a.mean(0),
    "normal": lambda a, b, w: (
        (a - a.mean(-1, keepdim=True)) / (a.var(-1, keepdim=True, correction=0) + 0.5).sqrt()
    ),
    "largest": lambda a, b, w: a - a.amax(1, keepdim=True),
    "moments": lambda a, b, w: (
        (a.T @ b * 0.1).tanh() @ w + a.sum(0) if a.shape[0] == a.shape[1] else a * a.sum(0)
    ),
    "causal": lambda a, b, w: F.scaled_dot_product_attention(a, b, a, is_causal=True),
    "log softmax": lambda a, b, w: a.log_softmax(-1),
    "layer norm": lambda a, b, w: F.layer_norm(a, (WIDTH,), b[0]),
    "convolved": lambda a, b, w: F.conv1d(a.T, w[:, :, None].expand(WIDTH, WIDTH, 3) * 0.3, padding=1).T,
    "weighed": lambda a, b, w: a @ (a.T @ a * 0.05).tanh(),
    "stored": lambda a, b, w: a.contiguous() + 1,
    "turned": lambda a, b, w: (a.T + 1).T,
}


def _with_sums(scores: Tensor, v: Tensor) -> Tensor:
    """Attention, and functions of its weights' row maximum and sum that itself and another kernel read."""
    top = scores.amax(-1, keepdim=True)
    e = (scores - top).exp()
    total = e.sum(-1, keepdim=True)
    return (e / total) @ v + top.tanh() + (top + total.log()).mean(0, keepdim=True) * 0.1


"""Each makes a (rows, width) tensor of two such and a (width, width) matrix."""

ENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda a: a,
    "sum": lambda a: a.sum(),
    "sum over rows": lambda a: a.sum(0),
    "sum over columns": lambda a: a.sum(1),
    "mean": lambda a: a.mean(),
    "largest": lambda a: a.amax(0),
}


def build(
    start: str, steps: Sequence[tuple[str, int]], end: str, x: Tensor, w: Tensor, n: Any, s: Any
) -> Tensor:
    values = [STARTS[start](x, n, s)]
    for name, other in steps:
        values.append(STEPS[name](values[-1], values[other % len(values)], w))
    return ENDS[end](values[-1])


@pytest.mark.parametrize(("device", "examples"), [("cpu:0", 25), ("dummy:0", 10)])
def test_one_plan_for_all_sizes(device: str, examples: int) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((ROWS, WIDTH), (WIDTH, WIDTH))]

    @settings(
        max_examples=EXAMPLES or examples, derandomize=not EXAMPLES, deadline=None, print_blob=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(
        choice(list(STARTS)), st.lists(st.tuples(choice(list(STEPS)), st.integers(0, 9)), max_size=5),
        choice(list(ENDS)),
    )  # fmt: skip
    def compare(start: str, steps: list[tuple[str, int]], end: str) -> None:
        note(f"{start} {steps} {end}")
        x, w = (weft.tensor(a) for a in arrays)
        symbolic = build(start, steps, end, x, w, N, S)
        for n, s in SIZES:
            plain = [build(start, steps, end, x, w, n, s).value.node]
            want, bounds = evaluate(plain), allowed(plain)
            got = weft.bind(symbolic, n=n, s=s)
            assert isinstance(got, Tensor)
            wrong = difference(got.numpy(), want[0], bounds[0])
            assert wrong is None, f"n={n}, s={s}: {wrong}"

    with weft.device(device):
        compare()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("start", STARTS)
def test_parts_of_runtime_sizes_are_reduced(start: str, end: str) -> None:
    """Without a step between: what a rule reads then has the variables in its indices."""
    rng = np.random.default_rng(5)
    x, w = (weft.tensor(rng.standard_normal(s).astype(np.float32)) for s in ((ROWS, WIDTH), (WIDTH, WIDTH)))
    symbolic = build(start, [], end, x, w, N, S)
    for n, s in SIZES:
        want = build(start, [], end, x, w, n, s).numpy()
        np.testing.assert_allclose(weft.bind(symbolic, n=n, s=s).numpy(), want, rtol=1e-5, atol=1e-5)


def heads(x: Tensor, n: Any) -> Tensor:
    """The first n columns of an (8, size) tensor, as n rows for one head."""
    return x[None, :, :n].mT


def attention(x: Tensor, y: Tensor, n: Any, is_causal: bool = False) -> Tensor:
    return F.scaled_dot_product_attention(heads(x, n), heads(y, n), heads(x, n) * 0.5, is_causal=is_causal)


def convolved(x: Tensor, w: Tensor, n: Any) -> Tensor:
    """Six channels of four, three taps."""
    return F.conv1d(x[None, :4, :n], weft.cat((w, w))[:9].reshape(6, 4, 3), padding=1)


def image(x: Tensor, y: Tensor, w: Tensor, n: Any) -> Tensor:
    """A convolution of two channels of n x n elements."""
    return F.conv2d((x[:2, :n, None] * y[:2, None, :n])[None], w[:4].reshape(4, 2, 2, 2), padding=1)


KERNELS: dict[str, Callable[[Tensor, Tensor, Tensor, Any], Tensor]] = {
    "softmax": lambda x, y, w, n: x[:, :n].softmax(-1),
    "its gradient": lambda x, y, w, n: (x[:, :n] - (x[:, :n] * y[:, :n]).sum(-1, keepdim=True)) * y[:, :n],
    "softmax over rows": lambda x, y, w, n: x.T[:n].softmax(0),
    "log softmax": lambda x, y, w, n: x[:, :n].log_softmax(-1),
    "layer norm": lambda x, y, w, n: F.layer_norm(x[:, :n], (n,)),
    "sum over columns": lambda x, y, w, n: x[:, :n].sum(-1),
    "sum of all": lambda x, y, w, n: x[:, :n].contiguous().sum(),
    "elementwise": lambda x, y, w, n: x[:, :n].tanh() * y[0, :n],
    "attention": lambda x, y, w, n: attention(x, y, n),
    "causal attention": lambda x, y, w, n: attention(x, y, n, is_causal=True),
    "decoding": lambda x, y, w, n: F.scaled_dot_product_attention(w[None, :1], heads(x, n), heads(y, n)),
    "weights of rows": lambda x, y, w, n: x[:, :n] @ y[:, :n].T,
    "weights of many rows": lambda x, y, w, n: (x.T[:n] @ w).tanh().T @ y.T[:n],
    "all pairs": lambda x, y, w, n: x[:, :n].T @ y[:, :n],
    "convolution": lambda x, y, w, n: convolved(x, w, n),
    "image": lambda x, y, w, n: image(x, y, w, n),
}
"""Kernels of columns up to n of two (8, size) tensors, and an (8, 8) matrix."""

GRADIENTS = ("softmax", "attention", "causal attention", "layer norm", "convolution", "image")


def gradient(name: str, x: Tensor, y: Tensor, w: Tensor, n: Any) -> Tensor:
    """The gradients with respect to x and w, in one tensor."""
    total = KERNELS[name](x, y, w, n).square().sum()
    found = [g for g in weft.autograd.grad(total, [x, w], allow_unused=True) if g is not None]
    return weft.cat([g.reshape(-1) for g in found])


@pytest.mark.parametrize("name", [*KERNELS, *(f"gradient of {name}" for name in GRADIENTS)])
@pytest.mark.parametrize(
    ("device", "largest", "sizes"),
    [("cpu:0", 200, (2, 15, 16, 17, 47, 48, 49, 63, 64, 65, 200)), ("dummy:0", 40, (2, 7, 8, 9, 16, 17, 40))],
)
def test_kernels_are_right_at_both_bounds_and_around_whole_vectors(
    device: str, largest: int, sizes: tuple[int, ...], name: str
) -> None:
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((8, largest), (8, largest), (8, 8))]
    kind = name.removeprefix("gradient of ")

    def build(x: Tensor, y: Tensor, w: Tensor, n: Any) -> Tensor:
        return KERNELS[name](x, y, w, n) if kind == name else gradient(kind, x, y, w, n)

    with weft.device(device):
        x, y, w = (weft.tensor(a, requires_grad=True) for a in arrays)
        symbolic = build(x, y, w, weft.Variable("n", 2, largest))
        for n in sizes:
            plain = [build(x, y, w, n).value.node]
            want, bounds = evaluate(plain), allowed(plain)
            got = weft.bind(symbolic, n=n)
            assert isinstance(got, Tensor)
            wrong = difference(got.numpy(), want[0], bounds[0])
            assert wrong is None, f"n={n}: {wrong}"


P, Q = weft.Variable("p", 0, 9), weft.Variable("q", 1, 7)
NUMBERS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda p, q: p,
    lambda p, q: q,
    lambda p, q: p + 1,
    lambda p, q: p + q,
    lambda p, q: p // 2,
    lambda p, q: (p * 3) % 5,
    lambda p, q: 7 - q,
    lambda p, q: 3,
    lambda p, q: 12,
)
"""Where something is, by two numbers; never below 0."""
SHAPE = (5, 8, 6)
BEYOND = [(9, 7), (0, 5), (9, 1), (7, 2)]
"""Numbers whose sum, and whose first one plus 2, leads out of most axes; which numbers are drawn depends on the modules
that are loaded, these are always tried."""


def key(parts: Sequence[tuple[str, int, int]], p: Any, q: Any) -> tuple[Any, ...]:
    """A key of indices and slices by two numbers, with a list at the end of some."""
    found: list[Any] = []
    for kind, a, b in parts:
        first, last = NUMBERS[a](p, q), NUMBERS[b](p, q)
        found.append({"index": first, "slice": slice(first, last), "part": slice(first, first + 2),
                      "whole": slice(None), "list": [0, 2]}[kind])  # fmt: skip
    return tuple(found)


def fits(parts: Sequence[tuple[str, int, int]], p: int, q: int) -> bool:
    """True where nothing leads out of the tensor, and no slice with a runtime bound would be cut off."""
    for k, symbolic, n in zip(key(parts, p, q), key(parts, P, Q), SHAPE, strict=False):
        is_cut = isinstance(k, slice) and k.start is not None and (k.stop < k.start or n < k.stop > k.start)
        if is_cut and not all(isinstance(b, int) for b in (symbolic.start, symbolic.stop)):
            return False
        if isinstance(k, int) and k >= n:
            return False
    return True


def written(x: Tensor, where: Any, way: str) -> Tensor:
    """A copy of x in which elements are written over."""
    y = x.clone()
    if way == "set":
        y[where] = -1.0
    elif way == "through a view":
        y[where].mul_(0.0).sub_(1.0)
    else:
        y[where] += 1.0
    return y


@pytest.mark.parametrize(("device", "examples"), [("cpu:0", 60), ("dummy:0", 20)])
@pytest.mark.parametrize("way", ["get", "set", "through a view", "add"])
def test_places_are_right_or_refused(device: str, examples: int, way: str) -> None:
    a = np.random.default_rng(4).standard_normal(SHAPE).astype(np.float32)
    refused = 0
    if way == "through a view":  # keys with lists are left out
        examples *= 3

    @settings(
        max_examples=EXAMPLES or examples, derandomize=not EXAMPLES, deadline=None, print_blob=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(
        st.lists(
            st.tuples(choice(["index", "slice", "part", "whole", "list"]), *[st.integers(0, len(NUMBERS) - 1)] * 2),
            min_size=1, max_size=3,
        ),
        st.lists(st.tuples(st.integers(0, 9), st.integers(1, 7)), min_size=4, max_size=4),
    )  # fmt: skip
    @example([("index", 3, 0)], BEYOND)
    @example([("whole", 0, 0), ("part", 2, 0)], BEYOND)
    def compare(parts: list[tuple[str, int, int]], numbers: list[tuple[int, int]]) -> None:
        nonlocal refused
        is_view = not any(kind == "list" for kind, *_ in parts)
        if sum(kind == "list" for kind, *_ in parts) > 1 or (way == "through a view" and not is_view):
            return
        ends = [(k.start, k.stop) for k in key(parts, P, Q) if isinstance(k, slice)]
        if any(a is b is not None or (a, b) in ((12, 3), (12, 14)) for a, b in ends):
            return  # nothing is picked, and nothing asked for
        x = weft.tensor(a)
        try:
            y = x[key(parts, P, Q)] if way == "get" else written(x, key(parts, P, Q), way)
        except weft.IndexError as e:
            every = [(p, q) for p in range(10) for q in range(1, 8)]
            sizes = [
                k.stop - k.start for w in every for k in key(parts, *w) if isinstance(k, slice) and k.stop
            ]
            assert min(sizes) < 0 if "negative" in str(e) else not any(fits(parts, *w) for w in every)
            return
        for p, q in numbers:
            where = key(parts, p, q)
            if not fits(parts, p, q):
                refused += 1
                with pytest.raises(weft.IndexError, match=r"out of range|do not fit"):
                    weft.bind(y, p=p, q=q)
                continue
            want = x[where] if way == "get" else written(x, where, way)
            got = weft.bind(y, p=p, q=q)
            assert isinstance(got, Tensor)
            np.testing.assert_array_equal(got.numpy(), want.numpy())

    with weft.device(device):
        compare()
    assert refused > 3
