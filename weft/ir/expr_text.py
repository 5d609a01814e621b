"""Scalar expressions as text."""
# Tests: tests/ir/test_loops_text.py, tests/ir/test_loops_verify.py

from __future__ import annotations

from weft.ir.expr import Const, Expr, FromIndex, Load, ScalarCall, Temp, Test, walk
from weft.ir.index import Guard
from weft.ir.ops import Op


def show_guard(g: Guard) -> str:
    """A guard as text; "true" when empty."""
    return " and ".join(map(repr, g)) if g else "true"


def show(e: Expr) -> str:
    """One expression as text, shared parts repeated; in parentheses where an operand needs them."""
    text = bare(e)
    grouped = (isinstance(e, ScalarCall) and e.op.info.infix is not None) or (
        isinstance(e, Load | Test) and e.guard
    )
    return f"({text})" if grouped else text


def brief(e: Expr, parts: int = 48, length: int = 400) -> str:
    """`show`, or a short stand-in for an expression of more than `parts` parts or `length` characters."""
    stack, seen = [e], 0
    while stack and seen <= parts:
        seen += 1
        stack.extend(stack.pop().operands())
    text = show(e) if not stack else f"{e.dtype.short} of {sum(1 for _ in walk([e]))} parts"
    return text if len(text) <= length else f"{text[: length // 2]} ... {len(text)} characters"


def bare(e: Expr) -> str:
    """One expression as text, without parentheses around it."""
    match e:
        case Const():
            return f"{e.value!r}" if not isinstance(e.value, bool) else str(e.value).lower()
        case FromIndex():
            return f"{e.dtype.short}({e.index!r})"
        case Test():
            return show_guard(e.guard)
        case Temp():
            return e.name
        case Load():
            at = ", ".join(map(repr, e.index))
            return f"{e.source}[{at}]" + (f" if {show_guard(e.guard)} else 0" if e.guard else "")
        case ScalarCall(op=Op.CAST):
            return f"{e.dtype.short}({bare(e.args[0])})"
        case ScalarCall(op=Op.BITCAST):
            return f"bitcast_{e.dtype.short}({bare(e.args[0])})"
        case ScalarCall() if e.op.info.infix is not None:
            return f"{show(e.args[0])} {e.op.info.infix} {show(e.args[1])}"
        case ScalarCall():
            return f"{e.op.symbol}({', '.join(bare(a) for a in e.args)})"
        case _:
            raise TypeError(f"not a scalar expression: {type(e).__name__}")
