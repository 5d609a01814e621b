"""Random programs over tensors of runtime sizes: one plan, bound to several sizes, against the reference at each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import weft
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
    "stored": lambda a, b, w: a.contiguous() + 1,
    "turned": lambda a, b, w: (a.T + 1).T,
}
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
