"""Result dtypes beside torch's: the promotion matrix, and what functions make of each dtype."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import weft
from weft.ir.dtypes import DTYPES

torch = pytest.importorskip("torch")

NAMES = [n for n in DTYPES if n not in ("uint16", "uint32", "uint64")]
"""torch does arithmetic on these only; the wider unsigned types are weft's own rule."""

SCALARS: dict[str, Any] = {"True": True, "2": 2, "1.5": 1.5}
OPERATIONS = {
    "add": lambda m, x, y: m.add(x, y),
    "mul": lambda m, x, y: x * y,
    "sub": lambda m, x, y: x - y,
    "div": lambda m, x, y: x / y,
    "floor_divide": lambda m, x, y: x // y,
    "remainder": lambda m, x, y: x % y,
    "pow": lambda m, x, y: x**y,
    "lt": lambda m, x, y: x < y,
    "eq": lambda m, x, y: x == y,
    "bitwise_and": lambda m, x, y: x & y,
    "shift": lambda m, x, y: x << y,
    "where": lambda m, x, y: m.where(m.ones(2).bool(), x, y),
    "maximum": lambda m, x, y: m.maximum(x, y),
    "logical_or": lambda m, x, y: m.logical_or(x, y),
    "result_type": lambda m, x, y: m.zeros(1, dtype=m.result_type(x, y)),
    "cat": lambda m, x, y: m.cat([x.reshape(-1), y.reshape(-1)]),
}
UNARY = {
    "sum": lambda m, x: x.sum(),
    "sum dim": lambda m, x: x.sum(0),
    "prod": lambda m, x: x.prod(),
    "mean": lambda m, x: x.mean(),
    "var": lambda m, x: x.var(),
    "max": lambda m, x: x.max(),
    "argmax": lambda m, x: x.argmax(),
    "any": lambda m, x: x.any(),
    "cumsum": lambda m, x: x.cumsum(0),
    "logsumexp": lambda m, x: x.logsumexp(0),
    "exp": lambda m, x: x.exp(),
    "sqrt": lambda m, x: x.sqrt(),
    "reciprocal": lambda m, x: x.reciprocal(),
    "sigmoid": lambda m, x: x.sigmoid(),
    "log1p": lambda m, x: x.log1p(),
    "expm1": lambda m, x: x.expm1(),
    "floor": lambda m, x: x.floor(),
    "neg": lambda m, x: -x,
    "abs": lambda m, x: x.abs(),
    "sign": lambda m, x: x.sign(),
    "square": lambda m, x: x.square(),
    "invert": lambda m, x: ~x,
    "logical_not": lambda m, x: x.logical_not(),
    "isnan": lambda m, x: x.isnan(),
    "relu": lambda m, x: x.relu(),
    "x**2": lambda m, x: x**2,
    "x**-1.0": lambda m, x: x**-1.0,
    "2**x": lambda m, x: 2**x,
    "1/x": lambda m, x: 1 / x,
    "clamp": lambda m, x: x.clamp(0, 1),
    "clamp float": lambda m, x: x.clamp(0.5),
    "softmax": lambda m, x: x.float().softmax(0),
    "zeros_like": lambda m, x: m.zeros_like(x),
    "bool": lambda m, x: x.bool(),
    "tolist": lambda m, x: m.tensor(x.tolist()),
}
OURS = {
    "argmax": {"bool": "int64"},  # torch has no kernel for it
    "any": {"uint8": "bool"},  # torch keeps an older rule for this one dtype
}


def outcome(f: Any, m: Any, *args: Any) -> str:
    """The name of the result's dtype, or "error"."""
    try:
        out = f(m, *args)
    except (TypeError, ValueError, RuntimeError, NotImplementedError, ZeroDivisionError):
        return "error"
    return out.dtype.name if m is weft else str(out.dtype).removeprefix("torch.")


def operand(m: Any, name: str, rank: int) -> Any:
    return m.ones((2,) * rank, dtype=getattr(m, name))


@pytest.mark.parametrize("op", OPERATIONS)
def test_pairs(op: str) -> None:
    wrong: list[tuple[Any, ...]] = []
    for a, b, ranks in itertools.product(NAMES, NAMES, ((1, 1), (1, 0), (0, 1), (0, 0))):
        expected = outcome(OPERATIONS[op], torch, operand(torch, a, ranks[0]), operand(torch, b, ranks[1]))
        got = outcome(OPERATIONS[op], weft, operand(weft, a, ranks[0]), operand(weft, b, ranks[1]))
        if got != expected:
            wrong.append((a, b, ranks, got, expected))
    assert not wrong


@pytest.mark.parametrize(
    "op", [op for op in OPERATIONS if op not in ("where", "maximum", "cat", "logical_or")]
)
def test_scalars(op: str) -> None:
    wrong: list[tuple[Any, ...]] = []
    for name, scalar, rank in itertools.product(NAMES, SCALARS.values(), (0, 1)):
        expected = outcome(OPERATIONS[op], torch, operand(torch, name, rank), scalar)
        got = outcome(OPERATIONS[op], weft, operand(weft, name, rank), scalar)
        if (op, name, scalar) == ("pow", "bool", True):  # weft has no powers of bools at all
            expected = "error"
        if got != expected:
            wrong.append((name, scalar, rank, got, expected))
    assert not wrong


@pytest.mark.parametrize("op", UNARY)
def test_functions(op: str) -> None:
    wrong: list[tuple[str, ...]] = []
    for name in NAMES:
        expected = OURS.get(op, {}).get(name) or outcome(UNARY[op], torch, operand(torch, name, 1))
        got = outcome(UNARY[op], weft, operand(weft, name, 1))
        if got != expected:
            wrong.append((name, got, expected))
    assert not wrong
