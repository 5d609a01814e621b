"""Operands that have no effect somewhere: other numbers there change no bit of the result."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft.ir.calls import expand_calls
from weft.ir.graph import toposort
from weft.ir.ops import Op
from weft.ir.regions.boxes import Interval
from weft.ir.regions.reach import Reach
from weft.ir.regions.region import Region
from weft.scheduler.kernelize.uses import find_uses
from weft.testing.reference import evaluate

SIZE, WIDTH = 6, 4
LOWEST = -math.inf
Tensor = weft.Tensor


def below(k: int = 0) -> Tensor:
    return weft.arange(SIZE)[None] <= weft.arange(SIZE)[:, None] + k


def weights(s: Tensor) -> Tensor:
    e = (s - s.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def ones() -> Tensor:
    return weft.ones(SIZE, SIZE)


CAUSAL: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "where": lambda q, k, v: weft.where(below(), q @ k.T, LOWEST).softmax(-1) @ v,
    "where not": lambda q, k, v: weft.where(~below(), LOWEST, q @ k.T).softmax(-1) @ v,
    "masked_fill of tril": lambda q, k, v: (q @ k.T).masked_fill(ones().tril() == 0, LOWEST).softmax(-1) @ v,
    "masked_fill of triu": lambda q, k, v: weights((q @ k.T).masked_fill(ones().triu(1) != 0, LOWEST)) @ v,
    "masked_fill of a bool": lambda q, k, v: (
        (q @ k.T).masked_fill(ones().bool().triu(1), LOWEST).softmax(-1) @ v
    ),
    "an added triu": lambda q, k, v: (q @ k.T + weft.full((SIZE, SIZE), LOWEST).triu(1)).softmax(-1) @ v,
    "an added where": lambda q, k, v: weights(weft.where(below(), 0.0, LOWEST) + q @ k.T) @ v,
    "is_causal": lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0],
    "a bool attn_mask": lambda q, k, v: F.scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=ones().bool().tril()
    )[0],
    "an added attn_mask": lambda q, k, v: F.scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=weft.full((SIZE, SIZE), LOWEST).triu(1)
    )[0],
    "divided at the end": lambda q, k, v: unnormalized(weft.where(below(), q @ k.T, LOWEST), v),
    "zeros": lambda q, k, v: weft.where(below(), q @ k.T, 0.0) @ v,
    "a product with tril": lambda q, k, v: (q @ k.T).tril() @ v,
}


def unnormalized(s: Tensor, v: Tensor) -> Tensor:
    e = (s - s.amax(-1, keepdim=True)).exp()
    return (e @ v) / e.sum(-1, keepdim=True)


def attention(fn: Callable[..., Tensor]) -> tuple[weft.ir.graph.Node, list[weft.ir.graph.Node], Tensor]:
    rng = np.random.default_rng(3)
    given = [weft.tensor(rng.standard_normal((SIZE, WIDTH)).astype(np.float32)) for _ in range(3)]
    y = fn(*given)
    (root,) = expand_calls([y.value.node])
    return root, [t.value.node for t in given], y


@pytest.mark.parametrize("name", CAUSAL)
def test_a_token_has_no_part_in_the_rows_before_it(name: str) -> None:
    """To the bit, in the reference and on the device, of numbers of either sign and 0."""
    root, leaves, _ = attention(CAUSAL[name])
    order = toposort([root])
    reach = Reach(order, find_uses(order, frozenset({root})))
    original = [np.array(n.storage.numpy()) for n in leaves]
    before, on_device = evaluate([root])[0], CAUSAL[name](*map(weft.tensor, original)).numpy()
    for x, node in enumerate(leaves):
        for t in range(SIZE):
            region = Region(((Interval(t, t + 1), Interval(0, WIDTH)),))
            found = reach.dirty({node: region}).at(root, {})
            rows = found.enclosing[0]
            assert (rows.lo, rows.hi) == ((t, t + 1) if x == 0 else (t, SIZE)), name
            for other in (-3.0, 0.0, -0.0, 1e30):
                values = [a.copy() for a in original]
                values[x][t] = other
                after = evaluate([root], given=dict(zip(leaves, values, strict=True)))[0]
                assert before[:t].tobytes() == after[:t].tobytes(), (name, x, t, other)
                now = CAUSAL[name](*map(weft.tensor, values)).numpy()
                assert on_device[:t].tobytes() == now[:t].tobytes(), (name, x, t, other)


def uses_of(y: Tensor, op: Op) -> list[str]:
    """The conditions of the operands of an op of y's graph."""
    order = toposort(expand_calls([y.value.node]))
    uses = find_uses(order, frozenset({order[-1]}))
    return [str(uses(n, k)) for n in order if n.op is op for k in range(len(n.inputs)) if uses(n, k)]


def test_a_product_that_is_more_than_summed_is_used_whole() -> None:
    """0 times a negative number is -0.0, which a sum does not show, but a division by it does."""
    e, v = weft.where(below(), weft.rand(SIZE, SIZE), LOWEST).exp(), weft.rand(SIZE, SIZE)
    assert uses_of((e * v).sum(-1), Op.MUL) == ["(0 <= $0 - $1,)"]
    assert uses_of(e * v, Op.MUL) == []
    assert uses_of(1 / (e * v), Op.MUL) == []
    assert uses_of((e * v).amax(-1), Op.MUL) == []
    assert uses_of((e * v).sum(-1) + (e * v).amax(-1), Op.MUL) == []
    assert uses_of((e * v)[None].sum(0), Op.MUL) == []  # of one element each, which it is
    assert uses_of((e * v)[None].sum((0, 2)), Op.MUL) == ["(0 <= $0 - $1,)"]


def test_a_row_that_is_masked_as_a_whole_is_used() -> None:
    """Its weights are 0 / 0, so it is NaN whatever it is multiplied by, and no condition says that it is 0."""
    v = weft.rand(SIZE, WIDTH)
    strictly = weft.where(below(-1), weft.rand(SIZE, SIZE), LOWEST).softmax(-1)
    assert uses_of(strictly @ v, Op.MUL) == []


def test_what_is_taken_to_be_finite_is_listed() -> None:
    x, v = weft.rand(SIZE, SIZE), weft.rand(SIZE, WIDTH)
    y = (x + weft.where(below(), 0.0, LOWEST)).softmax(-1) @ v
    order = toposort(expand_calls([y.value.node]))
    uses = find_uses(order, frozenset({order[-1]}))
    assert sorted(n.op.name for n, _ in uses.assumed) == ["ADD", "MUL"]
    chosen = weft.where(below(), x, 1.0)
    order = toposort(expand_calls([chosen.value.node]))
    assert not find_uses(order, frozenset()).assumed
