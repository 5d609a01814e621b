"""Random compositions of core's functions: the compiled path against the reference, values and gradients."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import weft
from weft import Tensor
from weft.testing.reference import evaluate
from weft.testing.strategies import choice

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))
SHAPES = ((3,), (1,), (2, 3), (4, 1, 5), (0, 3), (33,), (2, 40), ())

# each keeps any shape; values stay moderate, so that a difference is a mistake and not a matter of rounding
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "asin": lambda x: (x.tanh() * 0.9).asin(),
    "acos": lambda x: (x.tanh() * 0.9).acos(),
    "atan": weft.atan,
    "asinh": weft.asinh,
    "acosh": lambda x: (x.abs() + 1.5).acosh(),
    "atanh": lambda x: (x.tanh() * 0.9).atanh(),
    "erfc": weft.erfc,
    "erfinv": lambda x: (x.tanh() * 0.9).erfinv(),
    "lgamma": lambda x: (x.abs() + 0.5).lgamma(),
    "digamma": lambda x: (x.abs() + 0.5).digamma(),
    "sinc": weft.sinc,
    "logsumexp": lambda x: x - x.logsumexp(-1, keepdim=True) if x.ndim and x.shape[-1] else x,
    "cumsum": lambda x: x.cumsum(-1) * 0.1,
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "sort": lambda x: x.sort(-1).values,
    "flip": lambda x: x.flip(0) if x.ndim else x,
    "roll": lambda x: x.roll(1, 0) if x.ndim else x,
    "i0e": weft.special.i0e,
    "entr": lambda x: weft.special.entr(x.abs() + 0.1),
    "unsqueeze": lambda x: x.unsqueeze(0).squeeze(0),
    "clamp": lambda x: x.clamp(-1.03, 1.03),
}  # fmt: skip
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "hypot": lambda x, y: weft.hypot(x + 3, y),
    "atan2": lambda x, y: weft.atan2(x + 3, y),
    "logaddexp": weft.logaddexp,
    "xlogy": lambda x, y: weft.xlogy(x, y.abs() + 0.5),
    "lerp": lambda x, y: x.lerp(y, 0.3),
    "copysign": lambda x, y: weft.copysign(x, y + 0.01),
    "fmax": weft.fmax,
    "addcmul": lambda x, y: x.addcmul(y, y, value=0.5),
}


@st.composite
def programs(draw: Any) -> tuple[Tensor, list[Tensor], list[str]]:
    """Up to five functions of one or two leaves."""
    shape = draw(choice(SHAPES))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    dtype = draw(choice([weft.float32, weft.float64]))
    leaves = [weft.tensor(rng.uniform(-1.5, 1.5, shape), dtype=dtype, requires_grad=True) for _ in range(2)]
    names: list[str] = []
    x: Tensor = leaves[0] * 1
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.integers(0, 2)):
            name = draw(choice(list(UNARY)))
            x = UNARY[name](x)
        else:
            name = draw(choice(list(BINARY)))
            x = BINARY[name](x, leaves[1])
        names.append(name)
    return x, leaves, names


def check(program: tuple[Tensor, list[Tensor], list[str]]) -> None:
    x, leaves, names = program
    note(f"{names} of {tuple(x.shape)} {x.dtype}")
    grads = [g for g in weft.gradients(x.sum(), leaves, allow_unused=True) if g is not None]
    values = [x, *grads]
    expected = evaluate([v.value.node for v in values])
    weft.realize(*values)
    limit = 3e-3 if x.dtype is weft.float32 else 1e-8
    for got, want in zip(values, expected, strict=True):
        np.testing.assert_allclose(got.detach().numpy(), want, rtol=limit, atol=limit)


@settings(max_examples=EXAMPLES or 8, suppress_health_check=list(HealthCheck))
@given(programs())
def test_functions(program: tuple[Tensor, list[Tensor], list[str]]) -> None:
    check(program)
