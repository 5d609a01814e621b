"""Contraction: a product that is only added to something becomes one fused multiply-add, rounded once.

    y[0] = a * b + c              y[0] = fma(a, b, c)
    y[1] = a * b - c       ->     y[1] = fma(a, b, -c)
    y[2] = c - a * b              y[2] = fma(-a, b, c)

For f32 and f64, where the product has no other use. It is the one pass that changes a rounding. An Accumulate that
adds a product stays as it is: backends contract it.
"""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.expr import Expr, ScalarCall, Temp, call, transform, walk
from weft.ir.loops import Let, Program
from weft.ir.loops_names import every, roots
from weft.ir.ops import Op
from weft.ir.passes.rewrite import index_map, map_block, with_body

_SUMS = (Op.ADD, Op.SUB)
_FUSED = (dtypes.float32, dtypes.float64)


def contract(p: Program) -> Program:
    """`p` with fused multiply-adds."""
    uses: dict[Expr, int] = {}
    lets: dict[str, Expr] = {}
    tops: list[Expr] = []
    for s in every(p.body):
        tops += roots(s)
        if isinstance(s, Let):
            lets[s.name] = s.value
    for r in tops:
        uses[r] = uses.get(r, 0) + 1
    sums: list[ScalarCall] = []
    for e in walk(tops):
        if isinstance(e, ScalarCall):
            for a in e.args:
                uses[a] = uses.get(a, 0) + 1
            if e.op in _SUMS and e.dtype in _FUSED:
                sums.append(e)

    def product(e: Expr) -> ScalarCall | None:
        single = isinstance(e, ScalarCall) and e.op is Op.MUL and uses.get(e, 0) == 1
        return e if single and isinstance(e, ScalarCall) and not any(map(scales, e.args)) else None

    def scales(e: Expr) -> bool:
        """True for a power of two made from its bits, as exp ends with: that product rounds only where it overflows,
        and then the sum must see infinity, so that exp(x) - inf is NaN for x = inf."""
        e = lets.get(e.name, e) if isinstance(e, Temp) else e
        return isinstance(e, ScalarCall) and e.op is Op.BITCAST

    def fused(e: ScalarCall, new: ScalarCall) -> Expr | None:
        """`new` is `e` over operands that were already rewritten; products are recognized in `e`."""
        for k in (0, 1):
            if product(e.args[k]) is None or not isinstance(new.args[k], ScalarCall):
                continue
            a, b = new.args[k].operands()
            c = new.args[1 - k]
            if e.op is Op.SUB:
                a, c = (a, call(Op.NEG, c)) if k == 0 else (call(Op.NEG, a), c)
            return ScalarCall(e.dtype, Op.FMA, (a, b, c))
        return None

    if not any(product(a) for e in sums for a in e.args):
        return p
    memo: dict[Expr, Expr] = {}

    def expr(root: Expr) -> Expr:
        stack = [root]
        while stack:
            e = stack[-1]
            if e in memo:
                stack.pop()
                continue
            missing = [b for b in e.parts if b not in memo]
            if missing:
                stack += missing
                continue
            stack.pop()
            if not isinstance(e, ScalarCall):
                memo[e] = transform(e, _unchanged, None, memo)
                continue
            new = e
            args = tuple([memo[a] for a in e.args])
            for a, b in zip(args, e.args, strict=True):
                if a is not b:
                    new = ScalarCall(e.dtype, e.op, args)
                    break
            summed = e.op in _SUMS and e.dtype in _FUSED
            memo[e] = (fused(e, new) if summed else None) or new
        return memo[root]

    return with_body(p, map_block(p.body, expr, index_map(expr)))


def _unchanged(_: Expr) -> None:
    return None
