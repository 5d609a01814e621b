"""Random programs run at one size after the other, with other numbers each time: the first has a plan of its own, later
ones share one, and each is as the reference says."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import weft
import weft.nn.functional as F
from weft import Tensor
from weft.ir.template import GraphTemplate
from weft.nn.utils import rnn
from weft.scheduler import families, realize
from weft.scheduler.basic import beside, tiers
from weft.scheduler.signature import signature
from weft.testing.reference import evaluate
from weft.testing.strategies import choice
from weft.testing.tolerance import allowed, difference

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))
WIDTH = 8
RUNS = (
    (9, 3, 0.75),
    (21, 5, -1.25),
    (16, 4, 3.5),
    (33, 2, 0.3),
    (33, 2, -0.45),
    (47, 6, 0.7),
    (33, 2, 1.75),
    (2, 1, 1.5),
    (300, 7, -0.2),
    (300, 7, 0.6),
    (33, 2, 1.0),
)
"""Rows, a start and a number of each run; some come back with another number, and one outgrows what the plan has room
for."""

Step = Callable[[Tensor, Tensor, int, float], Tensor]

STEPS: dict[str, Step] = {
    "scaled": lambda a, w, s, c: a * c,
    "shifted": lambda a, w, s, c: (a + c).tanh(),
    "clamped": lambda a, w, s, c: a.clamp(-abs(c), abs(c)),
    "power": lambda a, w, s, c: (a.abs() + 0.5) ** c,
    "masked": lambda a, w, s, c: weft.where(a > c, a, -a),
    "filled": lambda a, w, s, c: a + weft.full(a.shape, c),
    "from a row on": lambda a, w, s, c: weft.cat([a[s:], a[:s]]),
    "rest": lambda a, w, s, c: a[s:],
    "in blocks": lambda a, w, s, c: F.pad(a, (0, 0, 0, -a.shape[0] % 8)).reshape(-1, 8, WIDTH).sum(1) * 0.2,
    "filled up": lambda a, w, s, c: F.pad(a, (0, 0, 0, max(64 - a.shape[0], 0))),
    "rolled": lambda a, w, s, c: a.roll(s, 0),
    "padded": lambda a, w, s, c: F.pad(a, (0, 0, s, s + 1))[s:-1],
    "written": lambda a, w, s, c: _written(a, s, c),
    "product": lambda a, w, s, c: a @ w,
    "gram": lambda a, w, s, c: (a.T @ a * 0.1) @ w if a.shape[0] < 2 else a @ (a.T @ a * 0.01),
    "attention": lambda a, w, s, c: (a @ a.T * 0.3).softmax(-1) @ a,
    "attention and its sums": lambda a, w, s, c: _with_sums(a @ a.T * 0.3, a),
    "causal": lambda a, w, s, c: F.scaled_dot_product_attention(a[None], a[None], a[None], is_causal=True)[0],
    "softmax": lambda a, w, s, c: a.softmax(-1),
    "softmax over rows": lambda a, w, s, c: a.softmax(0),
    "normal": lambda a, w, s, c: F.layer_norm(a, (WIDTH,)),
    "centred": lambda a, w, s, c: a - a.mean(0),
    "running sum": lambda a, w, s, c: a.cumsum(0) * 0.1,
    "sorted": lambda a, w, s, c: a.sort(0)[0],
    "convolved": lambda a, w, s, c: F.conv1d(a.T[None], w[:, :, None].expand(WIDTH, WIDTH, 3), padding=1)[0].T,
    "pooled": lambda a, w, s, c: F.avg_pool1d(a.T[None], 2, ceil_mode=True)[0].T.repeat(2, 1)[: a.shape[0]],
    "picked": lambda a, w, s, c: a[weft.arange(a.shape[0]).flip(0)],
    "positions": lambda a, w, s, c: a + weft.arange(a.shape[0])[:, None] * 0.01,
    "halves": lambda a, w, s, c: a.reshape(-1, 2, WIDTH // 2).permute(1, 0, 2).reshape(-1, WIDTH),
    "gradient": lambda a, w, s, c: _gradient(a, w, c),
    "half": lambda a, w, s, c: (a.half() * c).float(),
    "cut at places": lambda a, w, s, c: weft.cat([a[:s], a[s // 2 :], a[s::2], a[::3]])[: a.shape[0]],
    "filled to the longest": lambda a, w, s, c: rnn.pad_sequence([a[: s + 1], a[s:], a[:: s + 1]]).sum(1),
    "gradient of parts": lambda a, w, s, c: _gradient_of_parts(a, w, s),
    "resized": lambda a, w, s, c: F.interpolate(a[s:].T[None], size=a.shape[0], mode="linear")[0].T,
    "counted": lambda a, w, s, c: a * (a.long() + s).float(),
}  # fmt: skip
"""Each makes a (rows, WIDTH) tensor of one, a (WIDTH, WIDTH) matrix, a start and a number."""


def _with_sums(scores: Tensor, v: Tensor) -> Tensor:
    """Attention, and functions of its weights' row maximum and sum that itself and another kernel read."""
    top = scores.amax(-1, keepdim=True)
    e = (scores - top).exp()
    total = e.sum(-1, keepdim=True)
    return (e / total) @ v + top.tanh() + (top + total.log()).mean(0, keepdim=True) * 0.1


def _written(a: Tensor, s: int, c: float) -> Tensor:
    out = a.clone()
    out[s : s + 1] = c
    out[0, s] += c
    return out


def _gradient(a: Tensor, w: Tensor, c: float) -> Tensor:
    w = w.detach().requires_grad_()
    ((a.detach() @ w).tanh() * c).mean().backward()
    assert w.grad is not None
    return a @ w.grad.detach()


def _gradient_of_parts(a: Tensor, w: Tensor, s: int) -> Tensor:
    """Of rows that are cut out, some apart, each put back among all of them."""
    x = a.detach().requires_grad_()
    y = x @ w
    parts = [y[:s], y[s:].tanh(), y[s::2].square(), y[s // 2 : a.shape[0] - s // 2]]
    weft.cat(parts).mean().backward()
    assert x.grad is not None
    return a * (1 + x.grad.detach())


ENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda a: a,
    "sum": lambda a: a.sum(),
    "sum over rows": lambda a: a.sum(0),
    "mean": lambda a: a.mean(),
    "largest": lambda a: a.amax(1),
}


def build(steps: Sequence[str], end: str, x: Tensor, w: Tensor, s: int, c: float) -> Tensor:
    a = x
    for name in steps:
        a = STEPS[name](a, w, s % max(a.shape[0] - 1, 1), c)
    return ENDS[end](a)


@pytest.fixture
def on_basic_plans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Graphs run on basic plans, whatever these lack, for one size and for all."""
    monkeypatch.setenv("WEFT_TIERS", "1")
    monkeypatch.setenv("WEFT_VERIFY", "0")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiers, "MISSING_SHARE", 1e-6)
    monkeypatch.setattr(beside, "ask", lambda task, done: True)
    monkeypatch.setattr(tiers, "PATIENCE", 1e9)
    for table in (realize._plans, families._families, families._met):
        table.clear()


@pytest.mark.parametrize(("device", "examples"), [("cpu:0", 10), ("cpu:0", 30), ("dummy:0", 5)])
def test_every_size_and_number_is_right(device: str, examples: int) -> None:
    check(device, examples)


@pytest.mark.usefixtures("on_basic_plans")
def test_every_size_and_number_is_right_on_basic_plans() -> None:
    check("cpu:0", 30)


def check(device: str, examples: int) -> None:
    rng = np.random.default_rng(5)
    matrix = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) * 0.4
    arrays = [rng.standard_normal((n, WIDTH)).astype(np.float32) for n, _, _ in RUNS]

    @settings(
        max_examples=EXAMPLES or examples, derandomize=not EXAMPLES, deadline=None, print_blob=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(choice(list(STEPS)), min_size=1, max_size=4), choice(list(ENDS)))
    def compare(steps: list[str], end: str) -> None:
        note(f"{steps} {end}")
        runs = [r for r in zip(RUNS, arrays, strict=True) if r[0][0] % 2 == 0 or "halves" not in steps]
        for (n, s, c), array in runs:
            got = build(steps, end, weft.tensor(array), weft.tensor(matrix), s, c)
            node = got.value.node
            want, bounds = evaluate([node]), allowed([node])
            wrong = difference(got.numpy(), want[0], bounds[0])
            assert wrong is None, f"n={n}, s={s}, c={c}: {wrong}"

    with weft.device(device):
        compare()


def test_graphs_have_a_name_each_and_equal_ones_the_same() -> None:
    """By which their plans are found on disk, whether calls were recorded at their sizes or made for these."""
    names: dict[tuple[Any, ...], str] = {}
    rng = np.random.default_rng(5)
    w = weft.tensor(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32))
    xs = [weft.tensor(rng.standard_normal((n, WIDTH)).astype(np.float32)) for n, _, _ in RUNS]

    @settings(
        max_examples=EXAMPLES or 60, derandomize=not EXAMPLES, deadline=None, print_blob=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(choice(list(STEPS)), min_size=1, max_size=3), choice(list(ENDS)))
    def collect(steps: list[str], end: str) -> None:
        for (n, s, c), x in zip(RUNS, xs, strict=True):
            if n % 2 and "halves" in steps:
                continue
            sig = signature([build(steps, end, x, w, s, c).value.node])
            rows = *map(_whole, sig.key.rows[:-1]), sig.key.rows[-1]
            assert names.setdefault(rows, sig.digest()) == sig.digest()

    collect()
    assert len(names) > 100 and len(set(names.values())) == len(names)


def _whole(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row whose call is the same object as those with equal graphs."""
    return (row[0], row[1].whole, *row[2:]) if isinstance(row[1], GraphTemplate) else row
