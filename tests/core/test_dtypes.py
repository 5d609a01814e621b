"""Result dtypes beside torch's: the promotion matrix, and what functions make of each dtype.

Where torch is not installed, beside what it gave when `tests/data/record_torch.py` was last run.
"""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.ir.dtypes import DTYPES, convert_array, packer

RECORD = Path(__file__).parents[1] / "data" / "torch.npz"

NAMES = [n for n, d in DTYPES.items() if n not in ("uint16", "uint32", "uint64") and not d.is_float8]
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
OURS: dict[str, list[tuple[int, str, str]]] = {
    "functions argmax": [(0, "int64", "error")],  # torch has no kernel for bools
}
"""Where weft differs on purpose: (number of the entry, weft's outcome, torch's)."""


def outcome(f: Any, m: Any, *args: Any) -> str:
    """The name of the result's dtype, or "error"."""
    try:
        out = f(m, *args)
    except (TypeError, ValueError, RuntimeError, NotImplementedError, ZeroDivisionError):
        return "error"
    return out.dtype.name if m is weft else str(out.dtype).removeprefix("torch.")


def operand(m: Any, name: str, rank: int) -> Any:
    return m.ones((2,) * rank, dtype=getattr(m, name))


WITHOUT_SCALARS = ("where", "maximum", "cat", "logical_or")


def pairs(op: str, m: Any) -> list[str]:
    """The outcome for every pair of dtypes and ranks."""
    return [
        outcome(OPERATIONS[op], m, operand(m, a, i), operand(m, b, j))
        for a, b, i, j in itertools.product(NAMES, NAMES, (0, 1), (0, 1))
    ]


def scalars(op: str, m: Any) -> list[str]:
    """The outcome for every dtype, rank and Python number."""
    return [
        outcome(OPERATIONS[op], m, operand(m, name, rank), number)
        for name, number, rank in itertools.product(NAMES, SCALARS.values(), (0, 1))
    ]


def functions(op: str, m: Any) -> list[str]:
    """The outcome for every dtype."""
    return [outcome(UNARY[op], m, operand(m, name, 1)) for name in NAMES]


TABLES: dict[str, Any] = {
    **{f"pairs {op}": (pairs, op) for op in OPERATIONS},
    **{f"scalars {op}": (scalars, op) for op in OPERATIONS if op not in WITHOUT_SCALARS},
    **{f"functions {op}": (functions, op) for op in UNARY},
}


def by_torch(table: str) -> list[str]:
    """What torch gives now."""
    import torch

    f, op = TABLES[table]
    return f(op, torch)


def by_record(table: str) -> list[str]:
    """What torch gave."""
    with np.load(RECORD) as file:
        return file[f"dtypes {table}"].tolist()


@pytest.mark.parametrize("table", TABLES)
def test_dtypes(table: str) -> None:
    expected = (by_torch if importlib.util.find_spec("torch") else by_record)(table)
    f, op = TABLES[table]
    got = f(op, weft)
    wrong = [(k, g, e) for k, (g, e) in enumerate(zip(got, expected, strict=True)) if g != e]
    assert wrong == OURS.get(table, [])


def test_sums_of_integers_are_int64() -> None:
    """As torch: also where a sum has another name, and where there is nothing to add up."""
    for dtype in (weft.bool, weft.uint8, weft.int32):
        x = weft.ones(2, 3, dtype=dtype)
        results = (
            x.sum(),
            weft.einsum("ij->", x),
            weft.einsum("ij->j", x),
            x.sum_to_size(3),
            x.sum_to_size(()),
        )
        assert [r.dtype for r in results] == [weft.int64] * 5
        assert results[1].item() == 6
        assert weft.ones((), dtype=dtype).sum_to_size(()).dtype is weft.int64
        assert x.sum_to_size(2, 3).dtype is dtype


@pytest.mark.parametrize("name", [n for n in DTYPES if n != "bool"])
def test_a_number_has_the_bytes_that_it_has_in_an_array(name: str) -> None:
    dtype = DTYPES[name]
    for number in (
        (3, 0, 7) if not dtype.is_signed else (3, -5, 0) if dtype.is_int else (1.5, -0.25, 0.0, -3.0)
    ):
        array = convert_array(np.asarray(number), dtype)
        assert packer(dtype)(number) == array.tobytes()
