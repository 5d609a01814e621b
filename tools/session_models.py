"""Random functions as users write them, for campaigns against sessions: layers over several arguments, with weights
that they have from outside.

    m = random_model(Random(7), "cpu:0")
    m(*m.tensors(m.arrays(m.rows[0])))        # a tuple of results; each layer does for all of `m.rows`

A layer is made from a random number generator and the values so far, picks what suits it, and is left out where it does
not fit. What reads its shape reads it at the call, so a model takes arguments of two numbers of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

import numpy as np

import weft
import weft.nn.functional as F
from weft.errors import WeftError

Array: TypeAlias = np.ndarray[Any, Any]
Values: TypeAlias = list[Any]
Layer: TypeAlias = Callable[[Values], Any]

ROWS = (1, 2, 3, 4, 6, 8, 9, 13, 16, 17, 24)
WIDTHS = (1, 2, 3, 4, 6, 8, 16)
LONG_ROWS, LONG_WIDTHS = (65, 100, 130, 300), (33, 64, 100)
"""Sizes whose sums are added in several levels, and products in tiles, of one model in eight."""
KINDS = ("floats", "ids", "ids", "mask", "scalar", "row", "image", "image", "half", "ints", "count")
"""Kinds of arguments besides the first, which is of floats."""
MAX_ELEMENTS, MAX_LONG_ELEMENTS = 1 << 13, 1 << 17
TOKENS = 7


@dataclass(slots=True)
class Model:
    """A function of tensors of these `kinds`, and of a number where there is a `variable`: the results that are picked
    by it are among `picked`."""

    random: Random
    device: str
    rows: list[int]
    width: int
    kinds: list[str]
    variable: Any
    rng: np.random.Generator
    weights: list[weft.Tensor] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    picked: list[bool] = field(default_factory=list)

    def __call__(self, *xs: Any) -> tuple[Any, ...]:
        values = list(xs[: len(self.kinds)])
        for layer in self.layers:
            values.append(layer(values))
        found: list[Any] = []
        for k, is_picked in zip(self.outputs, self.picked, strict=True):
            y = values[k]
            has_row = is_picked and len(y.shape) > 0 and y.shape[0] >= min(self.rows)
            found.append(y[xs[-1]] if has_row else y)
        return tuple(found)

    def arrays(self, rows: int) -> list[Array]:
        """Arguments of so many rows."""
        return [self.array(kind, self.shape(kind, rows)) for kind in self.kinds]

    def array(self, kind: str, shape: tuple[int, ...]) -> Array:
        """An array of a kind of argument."""
        rng = self.rng
        if kind == "mask":
            return np.asarray(rng.random(shape) < 0.5)
        if kind == "ids":
            return np.asarray(rng.integers(0, TOKENS, shape), np.int64)
        if kind in ("ints", "count"):
            return np.asarray(rng.integers(-3, 9, shape), np.int32)
        return np.asarray(rng.standard_normal(shape), np.float16 if kind == "half" else np.float32)

    def shape(self, kind: str, rows: int) -> tuple[int, ...]:
        """The shape of a kind of argument."""
        flat: dict[str, tuple[int, ...]] = {
            "ids": (rows,), "scalar": (), "count": (), "row": (self.width,), "image": (2, rows, 9)
        }  # fmt: skip
        return flat.get(kind, (rows, self.width))

    def tensor(self, a: Array) -> weft.Tensor:
        """A tensor of its own with these elements."""
        return weft.tensor(a, device=self.device)

    def tensors(self, arrays: list[Array]) -> list[weft.Tensor]:
        """Tensors of their own with these elements."""
        return [self.tensor(a) for a in arrays]

    def weight(self, *shape: int) -> weft.Tensor:
        """A weight that a layer captures."""
        scale = max(shape[0], 1) ** -0.5
        self.weights.append(self.tensor((self.rng.standard_normal(shape) * scale).astype(np.float32)))
        return self.weights[-1]

    def __repr__(self) -> str:
        shown = (self.rows, self.width, self.kinds, self.names, self.outputs, self.picked, self.variable)
        return f"Model{shown}"


def random_model(random: Random, device: str) -> Model:
    """A model of up to seven layers."""
    is_long = random.random() < 0.125
    rows = random.sample(LONG_ROWS if is_long else ROWS, 2)
    width = random.choice(LONG_WIDTHS if is_long else WIDTHS)
    kinds = ["floats", *random.sample(KINDS, random.randint(0, 3))]
    variable = weft.Variable("t", 0, min(rows) - 1) if random.random() < 0.5 else None
    rng = np.random.default_rng(random.getrandbits(32))
    m = Model(random, device, rows, width, kinds, variable, rng)
    examples: list[Values] = [list[Any](m.tensors(m.arrays(n))) for n in rows]
    with weft.no_grad():
        for _ in range(random.randint(1, 7)):
            name = random.choice(sorted(LAYERS))
            if (layer := _fitting(m, name, Random(random.getrandbits(32)), examples)) is not None:
                m.layers.append(layer)
                m.names.append(name)
    count = len(examples[0])
    m.outputs = [count - 1, *(random.randrange(count) for _ in range(random.randint(0, 2)))]
    m.picked = [variable is not None and random.random() < 0.6 for _ in m.outputs]
    return m


def _fitting(m: Model, name: str, random: Random, examples: list[Values]) -> Layer | None:
    """A layer to whose examples its values are added; None where it does not fit."""
    before = len(m.weights)
    try:
        layer = LAYERS[name](m, random, examples[0])
        found = [layer(e) for e in examples]
    except (_NoneSuitsError, WeftError):
        found = []
    most = MAX_ELEMENTS if max(m.rows) <= max(ROWS) else MAX_LONG_ELEMENTS
    if not found or any(math.prod(y.shape) > most for y in found):
        del m.weights[before:]
        return None
    for e, y in zip(examples, found, strict=True):
        e.append(y)
    return layer


class _NoneSuitsError(Exception):
    """There is no value for a layer."""


LAYERS: dict[str, Callable[[Model, Random, Values], Layer]] = {}
"""Layers by name: each is made of the values of one example."""


def _layer(make: Callable[[Model, Random, Values], Layer]) -> Callable[[Model, Random, Values], Layer]:
    LAYERS[make.__name__.strip("_")] = make
    return make


def _pick(r: Random, values: Values, suits: Callable[[Any], bool] = lambda x: True) -> int:
    """The number of a value that suits, most often one of the last three."""
    found = [k for k, x in enumerate(values) if suits(x)]
    if not found:
        raise _NoneSuitsError
    return r.choice(found[-3:] if r.random() < 0.7 else found)


def _floats(rank: int, exactly: bool = False) -> Callable[[Any], bool]:
    return lambda x: x.is_floating_point() and (len(x.shape) == rank if exactly else len(x.shape) >= rank)


def _rows(x: Any) -> Any:
    """The places along the first axis, in the shape of a column."""
    return weft.arange(x.shape[0]).reshape(-1, *[1] * (len(x.shape) - 1))


@_layer
def _linear(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, _floats(1))
    w = m.weight(int(v[k].shape[-1]), r.choice((1, 2, 4, 8, m.width, 16)))
    b = m.weight(int(w.shape[1])) if r.random() < 0.5 else None
    return lambda v: v[k].float() @ w if b is None else v[k].float() @ w + b


@_layer
def _unary(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, _floats(0))
    f = r.choice((
        F.relu, F.gelu, F.silu, weft.tanh, weft.exp, weft.sin, weft.abs, weft.sigmoid, weft.floor,
        lambda x: x * x, lambda x: 1 / x, lambda x: x.sqrt(),
    ))  # fmt: skip
    return lambda v: f(v[k])


@_layer
def _norm(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, _floats(1))
    g = m.weight(int(v[k].shape[-1]))
    f = r.choice((
        lambda x: F.layer_norm(x.float(), (g.shape[0],), g, g),
        lambda x: x * (x * x).mean(-1, keepdim=True).add(1e-5).rsqrt(),
        lambda x: x / x.abs().sum(0, keepdim=True),
        lambda x: x.softmax(0), lambda x: x.softmax(-1), lambda x: x.log_softmax(-1),
    ))  # fmt: skip
    return lambda v: f(v[k])


@_layer
def _binary(m: Model, r: Random, v: Values) -> Layer:
    k, j = _pick(r, v), _pick(r, v)
    f = r.choice((
        lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a - b, weft.maximum,
        lambda a, b: weft.where(a > b, a, b),
    ))  # fmt: skip
    return lambda v: f(v[k] * 1, v[j] * 1)


@_layer
def _attention(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, _floats(2, exactly=True))
    d = int(v[k].shape[1])
    q, w = m.weight(d, d), m.weight(d, d)
    kind = r.choice(("tril", "sdpa", "arange", "full", "window", "bias", "multiply"))

    def f(v: Values) -> Any:
        x = v[k].float()
        n = x.shape[0]
        a, b = x @ q, x @ w
        if kind == "sdpa":
            return F.scaled_dot_product_attention(a[None], b[None], x[None], is_causal=True)[0]
        s = a @ b.transpose(0, 1)
        i, j = weft.arange(n)[:, None], weft.arange(n)[None]
        if kind == "multiply":
            return (s.exp() * (j <= i)) @ x
        masks: dict[str, Callable[[], Any]] = {
            "tril": lambda: s.masked_fill(weft.ones(n, n).tril() == 0, -math.inf),
            "arange": lambda: weft.where(j <= i, s, -1e30),
            "window": lambda: weft.where((j <= i) & (j > i - 3), s, -math.inf),
            "bias": lambda: s + weft.full((n, n), -math.inf).triu(1),
            "full": lambda: s,
        }
        return masks[kind]().softmax(-1) @ x

    return f


@_layer
def _embedding(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, lambda x: x.dtype is weft.int64)
    w = m.weight(TOKENS, r.choice((1, 3, 4, 8)))
    f = r.choice((lambda i: F.embedding(i, w), lambda i: w[i]))
    return lambda v: f(v[k].clamp(0, TOKENS - 1))


@_layer
def _gathered(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, lambda x: len(x.shape) >= 1)
    i = _pick(r, v, lambda x: x.dtype is weft.int64 and len(x.shape) == 1)
    f = r.choice((
        lambda x, at: x[at], lambda x, at: x.index_select(0, at),
        lambda x, at: x.index_add(0, at, x[at] + 1), lambda x, at: x.index_copy(0, at, x[at] + 1),
    ))  # fmt: skip
    return lambda v: f(v[k] * 1, v[i].clamp(0, v[k].shape[0] - 1))


@_layer
def _running(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, _floats(1))
    axis = r.randrange(len(v[k].shape))
    f = r.choice((
        lambda x: x.cumsum(axis), lambda x: x.cumprod(axis), lambda x: x.cummax(axis)[0],
        lambda x: x.logcumsumexp(axis),
    ))  # fmt: skip
    return lambda v: f(v[k])


@_layer
def _reduced(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, lambda x: len(x.shape) >= 1)
    axis, keep = r.randrange(len(v[k].shape)), r.random() < 0.5
    name = r.choice(
        ("sum", "prod", "amax", "amin", "argmax", "argmin", "any", "all", "mean", "var", "logsumexp")
    )
    if name in ("any", "all"):
        return lambda v: getattr(v[k] > 0, name)(axis, keepdim=keep)
    if name in ("mean", "var", "logsumexp"):
        return lambda v: getattr(v[k].float(), name)(axis, keepdim=keep)
    return lambda v: getattr(v[k] * 1, name)(axis, keepdim=keep)


@_layer
def _conv1(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, _floats(2, exactly=True))
    size = r.choice((1, 2, 3))
    w = m.weight(r.choice((1, 2, 5)), int(v[k].shape[1]), size)
    stride, dilation, causal = r.choice((1, 1, 2)), r.choice((1, 2)), r.random() < 0.5

    def f(v: Values) -> Any:
        p = (size - 1) * dilation
        x = F.pad(v[k].float().transpose(0, 1)[None], (p, 0) if causal else (p // 2, p - p // 2))
        return F.conv1d(x, w, stride=stride, dilation=dilation)[0].transpose(0, 1)

    return f


@_layer
def _image(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, _floats(3, exactly=True))
    c, size = int(v[k].shape[0]), r.choice((1, 3))
    w, g = m.weight(r.choice((1, 2, 3)), c, size, size), m.weight(c)
    f = r.choice((
        lambda x: F.conv2d(x, w, padding=size // 2), lambda x: F.conv2d(x, w, padding=size // 2, stride=2),
        lambda x: F.group_norm(x, 1), lambda x: F.batch_norm(x, g, g * g, g, g),
        lambda x: F.avg_pool2d(x, 2, ceil_mode=True), lambda x: F.max_pool2d(x, 3, stride=1, padding=1),
        lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    ))  # fmt: skip
    return lambda v: f(v[k].float()[None])[0]


@_layer
def _moved(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, lambda x: len(x.shape) >= 1)
    a, b = (r.randrange(len(v[k].shape)) for _ in range(2))
    by, before = r.choice((-1, 1, 2)), (slice(None),) * a
    f = r.choice((
        lambda x: x.transpose(a, b), lambda x: x.flatten(), lambda x: x.flip(a), lambda x: x.roll(by, a),
        lambda x: weft.cat((x, x * 1), a), lambda x: weft.stack((x, x.flip(a))), lambda x: F.pad(x * 1, (1, 2)),
        lambda x: x[(*before, slice(None, None, 2))], lambda x: x[(*before, slice(x.shape[a] > 1, None))],
        lambda x: weft.cat(tuple(reversed(x.split(2, a))), a), lambda x: x.repeat_interleave(2, a),
        lambda x: x.diagonal(0, a, b), lambda x: x.unfold(a, 2, 1),
        lambda x: x.reshape(-1, x.shape[-1]).transpose(0, 1).reshape(-1),
    ))  # fmt: skip
    return lambda v: f(v[k])


@_layer
def _sorted(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, lambda x: len(x.shape) >= 1 and x.dtype is not weft.bool)
    axis = r.randrange(len(v[k].shape))
    f = r.choice((
        lambda x: x.sort(axis)[0], lambda x: x.argsort(axis), lambda x: x.topk(1, axis)[0]
    ))  # fmt: skip
    return lambda v: f(v[k])


@_layer
def _masked(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, lambda x: len(x.shape) >= 1)
    f = r.choice((
        lambda x: (x * 1).tril(), lambda x: (x * 1).triu(), lambda x: x > 0,
        lambda x: weft.where(_rows(x) % 2 == 0, x * 1, x * 3),
    ))  # fmt: skip
    return lambda v: f(v[k])


@_layer
def _chosen(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, _floats(1))
    c = _pick(r, v, lambda x: x.dtype is weft.bool and x.shape == v[k].shape)
    return lambda v: weft.where(v[c], v[k], v[k] * 2)


@_layer
def _drawn(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, _floats(1))
    f = r.choice((
        lambda x: x * (weft.rand(*x.shape) > 0.5), lambda x: F.dropout(x, 0.3, training=True),
        lambda x: x + weft.randn(*x.shape),
    ))  # fmt: skip
    return lambda v: f(v[k])


@_layer
def _cast(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v)
    to = r.choice((
        weft.float16, weft.bfloat16, weft.float64, weft.int8, weft.uint8, weft.int32, weft.int64, weft.bool
    ))  # fmt: skip
    return lambda v: v[k].to(to)


@_layer
def _positions(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, _floats(1))
    table = m.weight(max(m.rows) * 4, 1)

    def rotary(x: Any) -> Any:
        h = x.shape[-1] // 2
        at = _rows(x) * 0.3
        y = weft.cat((-x[..., h:], x[..., :h]), -1)
        return x * at.cos() + y * at.sin()

    f = r.choice((
        rotary, lambda x: x * _rows(x),
        lambda x: x + table[: x.shape[0]].reshape(-1, *[1] * (len(x.shape) - 1)),
    ))  # fmt: skip
    return lambda v: f(v[k])


@_layer
def _recurrent(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, _floats(2, exactly=True))
    w = m.weight(*[int(v[k].shape[1])] * 2)

    def f(v: Values) -> Any:
        x = v[k].float()
        h, found = x[0] * 0, list[Any]()
        for i in range(min(x.shape[0], 6)):
            h = (h @ w + x[i]).tanh()
            found.append(h)
        return weft.stack(found)

    return f


@_layer
def _written(m: Model, r: Random, v: Values) -> Layer:
    """Writes to what the function made itself."""
    k = _pick(r, v, _floats(1))
    kind = r.choice(("fill", "add", "view", "row"))

    def f(v: Values) -> Any:
        y = v[k] * 1
        if kind == "fill":
            y[: y.shape[0] // 2] = 0.5
        elif kind == "add":
            y += 1
        elif kind == "view":
            y[-1:].mul_(2)
        else:
            y[0] = y[-1]
        return y

    return f


@_layer
def _outer(m: Model, r: Random, v: Values) -> Layer:
    k = _pick(r, v, _floats(2, exactly=True))
    f = r.choice((
        lambda x: x.transpose(0, 1) @ x, lambda x: weft.einsum("ij,kj->ik", x, x), lambda x: weft.cdist(x, x)
    ))  # fmt: skip
    return lambda v: f(v[k].float())


@_layer
def _number(m: Model, r: Random, v: Values) -> Layer:
    """A tensor without dimensions decides something."""
    k, s = _pick(r, v, _floats(1)), _pick(r, v, lambda x: len(x.shape) == 0)
    f = r.choice((
        lambda x, n: x * n, lambda x, n: x + n * x.flip(0), lambda x, n: weft.where(_rows(x) < n, x, 0.0),
        lambda x, n: x[n.long().clamp(0, x.shape[0] - 1)],
    ))  # fmt: skip
    return lambda v: f(v[k], v[s])


@_layer
def _called(m: Model, r: Random, v: Values) -> Layer:
    """Functions of functions."""
    k = _pick(r, v, _floats(2))
    f = r.choice((
        weft.compile(lambda x: (x + 1).relu() * x), weft.func.grad(lambda x: (x * x).tanh().sum()),
        weft.vmap(lambda row: row.softmax(-1) * row.sum()),
    ))  # fmt: skip
    return lambda v: f(v[k])
