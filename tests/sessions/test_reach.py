"""What sessions compute of real models: rows from a token on, the surroundings of a patch, in few plans."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import nn
from weft.ir.regions import boxes as bx
from weft.sessions.form import Form
from weft.sessions.session import Session, session

SIZE, WIDTH, VOCABULARY = 24, 16, 20


class Block(nn.Module):
    """Full attention, masked, and a network, each added to what it reads."""

    def __init__(self, mask: str) -> None:
        super().__init__()
        self.mask = mask
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(self.before(x)).reshape(b, n, 3, 2, d // 2).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(attended(self.mask, q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.between(x))))


def attended(mask: str, q: weft.Tensor, k: weft.Tensor, v: weft.Tensor) -> weft.Tensor:
    n = q.shape[-2]
    if mask == "is_causal":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if mask == "attn_mask":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=weft.ones(n, n).bool().tril())
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask == "added":
        return (scores + weft.full((n, n), -math.inf).triu(1)).softmax(-1) @ v
    return scores.masked_fill(weft.ones(n, n).tril() == 0, -math.inf).softmax(-1) @ v


class GPT(nn.Module):
    """Nothing but full attention: no cache, no positions but those of the table."""

    def __init__(self, mask: str) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SIZE, WIDTH)
        self.blocks = nn.Sequential(Block(mask), Block(mask))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: weft.Tensor) -> weft.Tensor:
        x = self.tokens(ids) + self.positions(weft.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def only_form(s: Session) -> Form:
    """The form of the last call."""
    return list(s._forms.values())[-1]  # pyright: ignore[reportPrivateUsage]


def most_computed(form: Form) -> int:
    """The most elements of a kept node that any step computes."""
    parts = [p for step in form.steps.values() for p in step.graph.parts.values()]
    return max(sum(int(bx.volume(b)) for b in p.computed.boxes) for p in parts)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("mask", ["is_causal", "masked_fill", "attn_mask", "added"])
def test_a_naive_model_decodes_token_by_token_in_two_plans(mask: str) -> None:
    """Of each layer one row is computed, with the bits of a session that starts anew."""
    model = GPT(mask)

    def next_token(ids: weft.Tensor, t: int) -> weft.Tensor:
        return model(ids)[:, t]

    ids = weft.zeros(1, SIZE, dtype=weft.int64)
    example: Any = weft.Variable("t", 0, SIZE - 1)
    s, random = session(next_token, ids, example), np.random.default_rng(1)
    for t in range(SIZE):
        ids[0, t] = int(random.integers(VOCABULARY))
        found = s(ids, t).numpy()
        if t % 5 == 0:
            assert np.array_equal(found, session(next_token, ids, example)(ids, t).numpy()), t
    form = only_form(s)
    assert (form.counts.whole, form.counts.steps) == (1, SIZE - 1)
    assert len(form.steps) == 1  # and the plan of the first run
    assert most_computed(form) == max(3 * WIDTH, 2 * SIZE)  # a row of q, k and v; of the scores of two heads


def test_a_token_in_the_middle_reaches_the_rows_from_it_on() -> None:
    model = GPT("masked_fill").eval()
    ids = weft.tensor(np.random.default_rng(2).integers(0, VOCABULARY, (1, SIZE)))
    s = session(model, ids)
    before = s(ids).numpy().copy()
    for t in (20, 12, 23, 3):
        ids[0, t] = (int(ids[0, t].item()) + 1) % VOCABULARY
        y = s(ids)
        (region,) = y.changed.boxes
        assert region == (bx.Interval(0, 1), bx.Interval(t, SIZE), bx.Interval(0, VOCABULARY))
        now = y.numpy()
        assert np.array_equal(now[:, :t], before[:, :t])
        assert np.array_equal(now, session(model, ids)(ids).numpy())
        before = now.copy()
    assert only_form(s).counts.whole == 1


class Images(nn.Module):
    """Convolutions on two scales, with a way past the smaller one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        x = F.silu(self.first(x))
        small = F.silu(self.inner(F.max_pool2d(x, 2)))
        return self.last(weft.cat([F.interpolate(small, scale_factor=2, mode="nearest"), x], 1))


def test_a_patch_reaches_its_surroundings_wherever_it_is_in_one_plan() -> None:
    """At the edges too, and one that begins at odd places: 4 elements are 12 in the end, of 32."""
    model = Images()
    x = weft.rand(1, 2, 32, 32).realize()
    s = session(model, x)
    s(x)
    for i, j in ((8, 12), (0, 28), (17, 3), (28, 0), (9, 9)):
        x[0, :, i : i + 4, j : j + 4] = weft.rand(2, 4, 4)
        y = s(x)
        ((_, _, rows, columns),) = y.changed.boxes
        assert rows.lo <= i and rows.hi >= i + 4 and columns.lo <= j and columns.hi >= j + 4
        assert rows.hi - rows.lo <= 14 and columns.hi - columns.lo <= 14
        assert np.array_equal(y.numpy(), session(model, x)(x).numpy()), (i, j)
    form = only_form(s)
    assert form.counts.steps == 5 and len(form.steps) == 1
    assert most_computed(form) <= 4 * 14 * 14 + 4 * 8 * 8


def test_steps_keep_to_their_memory_on_a_device_that_checks_every_access() -> None:
    """At both ends of the axes and between, of rows from a token on and of a patch."""
    with weft.device("dummy"):
        x = weft.rand(1, 2, 8, 8).realize()
        patches, rows = session(Images(), x), session(lambda x: attended("added", x, x, x), x[:, :1])
        patches(x), rows(x[:, :1])
        for i, j in ((0, 6), (3, 1), (6, 0)):
            x[0, :, i : i + 2, j : j + 2] = weft.rand(2, 2, 2)
            assert np.array_equal(patches(x).numpy(), session(patches.fn, x)(x).numpy())
            part = x[:, :1]
            assert np.array_equal(rows(part).numpy(), session(rows.fn, part)(part).numpy())
        assert only_form(patches).counts.steps == 3
        rows(part)
        part[0, 0, 5] = weft.rand(8)
        assert rows(part).changed.enclosing[2] == bx.Interval(
            5, 8
        )  # the mask is seen through copies of constants


def test_a_masked_zero_keeps_its_sign_in_a_product_over_one_row() -> None:
    def outer(x: weft.Tensor) -> weft.Tensor:
        y = x.tril()
        return y.transpose(0, 1) @ y

    x = weft.tensor([[1.0, 2.0]])
    s = session(outer)
    s(x)
    x[0, 0] = -1.0
    assert str(s(x).tolist()) == str(session(outer)(x).tolist())
