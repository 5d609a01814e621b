"""Reductions over small windows that overlap, with nothing else to reuse: depthwise convolutions, pooling.

    y(c, i, j) = sum r, s: x[c, i + r - 1, j + s - 1] * w[c, r, s]   (0 outside of x)

Neither memory nor arithmetic bounds these, but finding the elements, whose guards are tested at every tap. So what the
windows of a plane reach is copied once, edges and all, and what is done to elements first is done there; and a tile of
results, some rows of lanes, stays in registers while the taps pass.
"""

from __future__ import annotations

from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.expr import Call, Expr, Load, Test
from weft.ir.index import Var, ceildiv, coefficient, flatten, high, variables
from weft.ir.kernel.algorithm import Output, Value, reads
from weft.ir.kernel.lower import storage_size
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.window import Window, main
from weft.ir.loops import Scope
from weft.scheduler.optimize import parallel, rows
from weft.scheduler.optimize.contraction_form import fill
from weft.scheduler.optimize.steps import split

TAPS = 128
"""Elements of a window, at most: longer reductions run in levels."""

TILE = 8
"""Vectors of results in registers."""

USES = 5
"""Results that an element of the window is used for, at least: copying it costs as much as a few taps."""

UNROLLED = 256
"""Operations on vectors that are written out: rows of a window are loaded once for all results in reach."""

WINDOW_SHARE = 4
"""What a task's windows reach may take the second-level cache over this."""


def schedule(k: Kernel, info: DeviceInfo) -> Kernel | None:
    """The schedule of a kernel around one reduction over windows; None for others."""
    found = only_reduction(k)
    if found is None:
        return None
    value, out = found
    part = sliding(value, k)
    assert value.reduce is not None
    summed = {a.var for a in value.reduce.axes}
    few = prod(high(a.extent) for a in value.reduce.axes) <= TAPS
    if part is None or not few or not summed <= slid_axes(part):
        return None
    k = run(k, Window(value.name, part, "window"))
    window = k.algorithm.item("window")
    assert isinstance(window, Value)
    points = prod(high(a.extent) for a in value.all_axes)
    if points < USES * prod(high(a.extent) for a in window.axes):
        return None
    of = loops_of(k, value, out)
    inside = [of[a.var] for a in value.axes if a.var in slid_axes(part)]
    around = [s.var.name for s in k.nests[out.name].loops if s.var.name not in inside]
    *rest, lane = inside
    if not _contiguous(k, out, lane):
        return None
    width, tall = _extent(k, lane), _extent(k, rest[-1]) if rest else 1
    lanes = min(info.lanes(value.dtype), 1 << (width - 1).bit_length())
    vectors = ceildiv(width, lanes)
    down = max(d for d in range(1, TILE + 1) if tall % d == 0)
    across = next(v for v in range(min(vectors, TILE // down), 0, -1) if vectors % v == 0)
    big = parallel.work_ns(rows.total_flops(k), rows.total_bytes(k), info) > parallel.WORTH_NS
    k = run(k, Pad(lane, lanes * across))
    k, lane_o, lane_i = split(k, lane, lanes * across, f"{lane}_o", f"{lane}_l")
    inner = [lane_i]
    outer = [*rest, lane_o]
    if rest and down > 1:
        k, row_o, row_i = split(k, rest[-1], down, f"{rest[-1]}_o", f"{rest[-1]}_i")
        outer, inner = [*rest[:-1], row_o, lane_o], [row_i, lane_i]
    k = run(k, Permute(out.name, (*around, *outer, *inner)))
    k = run(k, *(Unroll(n) for n in inner[:-1]), Vectorize(lane_i))
    k = run(k, ComputeAt(value.name, out.name, lane_o, Scope.REGISTER))
    nest = k.nests[value.name]
    reduced = [s.var.name for s in nest.loops if s.reduce]
    tile = [s.var.name for s in nest.loops if not s.reduce]
    k = run(k, Permute(value.name, (*reduced, *tile)), *(Unroll(n) for n in tile[:-1]), Vectorize(tile[-1]))
    taps = 1
    for n in reversed(reduced):
        taps *= _extent(k, n)
        if taps * across * down <= UNROLLED:
            k = attempt(k, Unroll(n))
    for loop in (*around[-1:], *outer):
        placed = run(k, ComputeAt("window", out.name, loop, Scope.LOCAL))
        if storage_size(placed.nests["window"]) * window.dtype.itemsize * WINDOW_SHARE <= info.l2_bytes:
            break
    else:
        return None
    k = fill(placed, "window", info)
    return parallel.spread(k, out.name, around, info) if big and around else k


def only_reduction(k: Kernel) -> tuple[Value, Output] | None:
    """The kernel's only value, a reduction over axes of known sizes, and its only output, which reads it at its own
    axes."""
    match k.algorithm.items:
        case (Value() as value, Output() as out):
            pass
        case _:
            return None
    at = {r.index for r in reads(out) if r.source == value.name}
    if value.reduce is None or len(at) != 1 or any(s.combine is not None for s in out.stores):
        return None
    if not all(isinstance(a.extent, int) for a in value.all_axes):
        return None
    (index,) = at
    named = [i for i in index if i != 0]
    if not named or len(set(named)) != len(named) or not all(isinstance(i, Var) for i in named):
        return None
    if any(a.extent != 1 and i == 0 for a, i in zip(value.axes, index, strict=True)):
        return None
    return value, out


def sliding(value: Value, k: Kernel) -> Expr | None:
    """The largest part of the value that windows slide over: each of the axes that some axis of the results is added to
    is in an index of its own. None where there are several."""
    assert value.reduce is not None
    loads = [x for x in ex.walk([value.expr]) if isinstance(x, Load)]
    if not any(len(variables(i)) > 1 for x in loads for i in x.index):
        return None
    found: list[Expr] = []
    stack, seen = [value.expr], {value.expr}
    summed = {a.var for a in value.reduce.axes}
    while stack:
        e = stack.pop()
        if (
            isinstance(e, Load | Call)
            and Window(value.name, e, "window").check(k) is None
            and _slides(e, summed)
        ):
            found.append(e)
        elif isinstance(e, Call):
            new = [a for a in dict.fromkeys(e.args) if not isinstance(a, Test) and a not in seen]
            seen.update(new)
            stack.extend(new)
    return found[0] if len(found) == 1 else None


def slid_axes(part: Expr) -> set[Var]:
    """The axes that share an index of the part with another one."""
    return {v for i in main(part).index if len(on := variables(i)) > 1 for v in on}


def _slides(e: Expr, summed: set[Var]) -> bool:
    pairs = [on for i in main(e).index if len(on := variables(i)) > 1]
    apart = all(coefficient(i, v) is not None for i in main(e).index for v in variables(i))
    return bool(pairs) and apart and all(len(on) == 2 and len(on & summed) == 1 for on in pairs)


def _contiguous(k: Kernel, out: Output, loop: str) -> bool:
    """The output is stored in order along its loop."""
    for s in out.stores:
        p = k.algorithm.param(s.param)
        axis = next(v for v, e in k.nests[out.name].bind.items() if isinstance(e, Var) and e.name == loop)
        if p is None or coefficient(flatten(s.index, p.shape), axis) != 1:
            return False
    return True


def loops_of(k: Kernel, value: Value, out: Output) -> dict[Var, str]:
    """The output's loop along each of the value's axes."""
    load = next(r for r in reads(out) if r.source == value.name)
    bind = k.nests[out.name].bind
    at = {a.var: bind[i] for a, i in zip(value.axes, load.index, strict=True) if isinstance(i, Var)}
    return {v: loop.name for v, loop in at.items() if isinstance(loop, Var)}


def _extent(k: Kernel, loop: str) -> int:
    owner = k.owner(loop)
    assert owner is not None
    spec = k.nests[owner].loop(loop)
    assert spec is not None
    return high(spec.extent)
