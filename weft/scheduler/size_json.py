"""Sizes as JSON: a number, or an operator and its operands.

3 * size0 + size1 - 5        ["+", -5, [["size", 0], 3], [["size", 1], 1]]
"""
# Tests: tests/scheduler/test_recipes.py

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.ir.index import (
    FloorDiv,
    Index,
    Int,
    Max,
    Min,
    Mod,
    Product,
    Sum,
    Var,
    floordiv,
    maximum,
    minimum,
    mod,
)


def encoded(e: Int, variables: Mapping[Var, int]) -> Any:
    """An expression as JSON has it: a number, or an operator and operands."""
    match e:
        case int():
            return e
        case Var():
            return ["size", variables[e]]
        case Sum(terms=terms, const=const):
            return ["+", const, *([encoded(a, variables), c] for a, c in terms)]
        case Product() | FloorDiv() | Mod() | Min() | Max():
            return [_SIGNS[e.__class__], *(encoded(o, variables) for o in e.operands())]
        case _:
            raise AssertionError(f"{e!r} is no size")


_SIGNS: dict[type[Index], str] = {Product: "*", FloorDiv: "//", Mod: "%", Min: "min", Max: "max"}
_OPERATORS = {"//": floordiv, "%": mod, "min": minimum, "max": maximum}


def decoded(e: int | list[Any], variables: Sequence[Var]) -> Int:
    """The expression that was encoded."""
    if isinstance(e, int):
        return e
    sign, *rest = e
    match sign:
        case "size":
            return variables[int(*rest)]
        case "+":
            const, *terms = rest
            out: Int = const
            for a, c in terms:
                out = out + decoded(a, variables) * int(c)
            return out
        case "*":
            product: Int = 1
            for f in rest:
                product = product * decoded(f, variables)
            return product
        case _:
            a, b = rest
            return _OPERATORS[sign](decoded(a, variables), decoded(b, variables))
