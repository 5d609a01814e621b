"""Index expressions as a Python function, for those that are evaluated at each step of a program.

    of n, m:  n, 8*n, m//2        lambda v: (v[0], v[0]*8, v[1]//2,)

To evaluate an expression by walking through it takes some 2 us; the function takes 0.1 us for each, and 20 us once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from weft.ir.index import FloorDiv, Index, Int, Max, Min, Mod, Product, Sum

_NAMES: Mapping[str, Any] = {"__builtins__": {}, "min": min, "max": max}


def compiled(expressions: Sequence[Int], by: Sequence[Index]) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """The function that gives the values of `expressions` by those of `by`: variables, or whole expressions.
    ValueError where others are needed, or too many."""
    place = {e: f"v[{k}]" for k, e in enumerate(by)}
    try:
        values = "".join([f"{_text(e, place)}," for e in expressions])
        made: Any = eval(f"lambda v: ({values})", dict(_NAMES))  # numbers and operators, whatever names are
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("an expression of too many parts") from error
    return made


def picker(places: Sequence[int]) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """The function that takes the numbers at these places, any number of them, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return (lambda v: (v[places[0]],)) if places else (lambda v: ())


def _text(x: Int, place: Mapping[Index, str]) -> str:
    """The expression in Python's words; in parentheses, where it is more than one word."""
    if isinstance(x, int):
        return f"({int(x)})" if x < 0 else str(int(x))
    found = place.get(x)
    if found is not None:
        return found
    match x:
        case Sum():
            terms = [_text(a, place) + (f"*{c}" if c != 1 else "") for a, c in x.terms]
            return f"({'+'.join(terms)}+{x.const})"
        case Product():
            return f"({'*'.join([_text(f, place) for f in x.factors])})"
        case FloorDiv():
            return f"({_text(x.num, place)}//{_text(x.den, place)})"
        case Mod():
            return f"({_text(x.num, place)}%{_text(x.den, place)})"
        case Min():
            return f"min({_text(x.a, place)},{_text(x.b, place)})"
        case Max():
            return f"max({_text(x.a, place)},{_text(x.b, place)})"
        case _:
            raise ValueError(f"{x!r} does not follow from {', '.join(map(repr, place))}")
