"""Algorithms and kernels as text, one item a line (more where an expression is long).

algorithm max_sum_div(p0: f32[12, 5], y0: f32[12, 5] out)
  max(i1 in 12) = max r1 in 5: p0[i1, r1]
  sum(i2 in 12) = sum r2 in 5: exp(p0[i2, r2] - max[i2])
  out(i in 12, j in 5):
    y0[i, j] = exp(p0[i, j] - max[i]) / sum[i]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.ir.expr import Expr, ScalarCall, Temp, walk
from weft.ir.expr_text import bare, show_guard
from weft.ir.index import Int, Var
from weft.ir.kernel.algorithm import Algorithm, Axis, Item, ItemValue, Output, Param, Reduce, StoreTo
from weft.ir.kernel.schedule import Kernel, Nest, NestLoop
from weft.ir.loops import LoopKind
from weft.ir.numerics import Tree
from weft.ir.ops import Op

_REDUCE = {Op.ADD: "sum", Op.MUL: "prod", Op.MAX: "max", Op.MIN: "min"}
_COMBINE = {Op.ADD: "+=", Op.MUL: "*=", Op.MAX: "max=", Op.MIN: "min=", None: "="}
_LONGEST = 40
"""Operations in an expression printed as one line."""


def show_algorithm(a: Algorithm) -> str:
    """The whole algorithm as text, without a final newline."""
    variables = ", ".join(f"{v.name} in {v.lo}..{v.hi}" for v in a.variables)
    head = f"algorithm {a.name}({', '.join(map(_param, a.params))}{'; ' if variables else ''}{variables})"
    return "\n".join([head, *(line for item in a.items for line in _item(item))])


def show_kernel(k: Kernel) -> str:
    """The algorithm, then where each item is computed, and by which transforms that came about."""
    steps = [f"  {step}" for step in k.history]
    return "\n".join(
        [show_algorithm(k.algorithm), "schedule", show_nests(k), *(["by", *steps] if steps else [])]
    )


def show_nests(k: Kernel, binds: bool = True) -> str:
    """A line for each nest: its loops, and where what is computed; `binds`: with the axes as they follow from loops."""
    return "\n".join(f"  {name}: {_nest(nest, binds)}" for name, nest in k.nests.items())


def _param(p: Param) -> str:
    fill = f" {p.fill.value:g} unless {show_guard(p.fill.outside)}" if p.fill is not None else ""
    where = f"{' out' if p.written else ''}{' far' if p.far else ''}"
    return f"{p.name}: {p.dtype.short}[{', '.join(map(repr, p.shape))}]{where}{fill}"


def _axes(axes: Sequence[Axis]) -> str:
    return ", ".join(f"{a.var.name} in {a.extent!r}" for a in axes)


def _tree(reduce: Reduce) -> str:
    return "" if reduce.tree is Tree.FREE else f"[{reduce.tree.name.lower()}]"


def _item(item: Item) -> Iterator[str]:
    head = f"  {item.name}({_axes(item.axes)})"
    match item:
        case ItemValue():
            lines, e = parts(item.expr)
            over = (
                f"{_REDUCE[item.reduce.op]}{_tree(item.reduce)} {_axes(item.reduce.axes)}: "
                if item.reduce
                else ""
            )
            if lines:
                yield f"{head} = {over}"
                yield from (f"    {line}" for line in lines)
                yield f"    {bare(e)}"
            else:
                yield f"{head} = {over}{bare(e)}"
        case Output():
            yield f"{head}:"
            for s in item.stores:
                yield from _store(s)
            if item.carries:
                yield f"    carries {', '.join(map(repr, item.carries))}"


def _store(s: StoreTo) -> Iterator[str]:
    lines, e = parts(s.expr)
    yield from (f"    {line}" for line in lines)
    guard = f" if {show_guard(s.guard)}" if s.guard else ""
    yield f"    {s.param}[{', '.join(map(repr, s.index))}] {_COMBINE[s.combine]} {bare(e)}{guard}"


def parts(e: Expr) -> tuple[list[str], Expr]:
    """`e` cut where its text would be long: lines that name shared and deep parts %1, %2 ..., and what is left."""
    calls = [x for x in walk([e], into_indices=False) if isinstance(x, ScalarCall)]
    size: dict[Expr, int] = {}
    uses: dict[Expr, int] = {}
    for x in calls:
        size[x] = 1 + sum(size.get(a, 0) for a in x.args)
        for a in x.args:
            uses[a] = uses.get(a, 0) + 1
    if size.get(e, 0) <= _LONGEST:
        return [], e
    lines: list[str] = []
    new: dict[Expr, Expr] = {}
    for x in calls:
        short: Expr = ScalarCall(x.dtype, x.op, tuple(new.get(a, a) for a in x.args))
        size[x] = 1 + sum(0 if isinstance(new.get(a), Temp) else size.get(a, 0) for a in x.args)
        if x is not e and (uses[x] > 1 or 2 * size[x] >= _LONGEST):
            lines.append(f"%{len(lines) + 1} = {bare(short)}")
            short = Temp(x.dtype, f"%{len(lines)}")
        new[x] = short
    return lines, new[e]


def _nest(nest: Nest, binds: bool) -> str:
    loops = " ".join(map(_loop, nest.loops))
    place = f" at {nest.at.item}.{nest.at.loop}" if nest.at else ""
    online = f" online with {nest.online.leader}" if nest.online else ""
    region = f" {list(nest.size)} in {nest.scope.value}" if nest.size else ""
    return f"[{loops}]{_bind(nest.bind) if binds else ''}{place}{region}{online}"


def _loop(s: NestLoop) -> str:
    kind = "" if s.kind is LoopKind.SERIAL else f"{s.kind.value} "
    return f"{kind}{s.var.name}<{s.extent!r}{'+' if s.reduce else ''}{''.join(f'/{n}' for n in s.levels)}"


def _bind(bind: Mapping[Var, Int]) -> str:
    shown = [f"{axis!r}={e!r}" for axis, e in bind.items() if axis != e and e != 0]
    return f" with {', '.join(shown)}" if shown else ""
