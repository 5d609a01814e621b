"""Sums of products with a factor that changes once per block of the summed axis: weights of few bits, times a vector.

    y(i) = sum r: x[r] * (q[i, r] * s[i, r // 32])

    per row i, block b:  part(l) = sum u: x[32*b + 16*u + l] * q[i, 32*b + 16*u + l]     lanes l, in registers
                         acc(l) += s[i, b] * part(l)

The factor is applied to a block's sum, and each vector knows in which block, and in which half of a byte, its elements
lie: unpacking, which is what these products wait for, does the least that it can.
"""

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.expr import Expr, Load
from weft.ir.index import FloorDiv, atoms, coefficient, flatten, high
from weft.ir.kernel.algorithm import Value, reads
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.factor import Factor
from weft.ir.kernel.transforms.mark import Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.kernel.transforms.stage import Arrange, Stage
from weft.ir.loops import Scope
from weft.ir.ops import Op
from weft.scheduler.optimize import parallel, rows
from weft.scheduler.optimize.access import lane_step
from weft.scheduler.optimize.contraction_form import CHAIN
from weft.scheduler.optimize.prefetch import prefetch_streams
from weft.scheduler.optimize.steps import merge, split
from weft.scheduler.optimize.windows import only_reduction

UNROLLED = 8
"""Vectors of a block that are written out."""

AHEAD = 8192
"""Bytes from what is read to what is asked for: more than elsewhere, as the arithmetic between leaves memory idle."""

BLOCKS = 2, 3
"""Blocks side by side, with an accumulator each: an addition waits for the one before it."""


def schedule(k: Kernel, info: DeviceInfo) -> Kernel | None:
    """The schedule of a kernel around one such sum; None for others."""
    found = only_reduction(k)
    if found is None:
        return None
    value, out = found
    width = info.lanes(value.dtype)
    block = _block(k, value, width)
    if block is None:
        return None
    assert value.reduce is not None
    (axis,) = value.reduce.axes
    count = high(axis.extent) // block
    several = next((n for n in BLOCKS if count % n == 0), 0)
    if not several or count // several > CHAIN:
        return None
    name = value.name
    lanes, parts, sums = f"{name}_lanes", f"{name}_blocks", f"{name}_several"
    k = run(k, SplitReduce(name, axis.var.name, width, lanes, True))
    k = run(k, SplitReduce(lanes, f"{axis.var.name}o", block // width, parts))
    if Factor(parts, Op.MUL).check(k) is not None:
        return None
    k = run(k, Factor(parts, Op.MUL))
    item = k.algorithm.item(lanes)
    assert isinstance(item, Value) and item.reduce is not None
    factors = [e for e in item.expr.operands() if all(r.source != parts for r in loads_in(e))]
    staged = [Stage(lanes, e, "factors") for e in factors if not isinstance(e, Load)]
    for step in staged:
        k = run(k, step)
    item = k.algorithm.item(lanes)
    assert isinstance(item, Value) and item.reduce is not None
    k = run(k, SplitReduce(lanes, item.reduce.axes[0].var.name, several, sums, True))
    big = parallel.work_ns(rows.total_flops(k), rows.total_bytes(k), info) > parallel.WORTH_NS
    loops = [s.var.name for s in k.nests[out.name].loops]
    lane = loops[-1]
    k = run(k, Pad(lane, width))
    k, task, inner = split(k, lane, width, f"{lane}_o", f"{lane}_l")
    for outer in reversed(loops[:-1]):
        k, task = merge(k, outer, task)
    k = run(k, Vectorize(inner))
    k = run(k, ComputeAt(name, out.name, task, Scope.REGISTER))
    row = next(s.var.name for s in k.nests[name].loops if not s.reduce)
    k = run(k, ComputeAt(lanes, name, row, Scope.REGISTER), ComputeAt(sums, name, row, Scope.REGISTER))
    k = attempt(k, Vectorize(k.nests[name].loops[-1].var.name))
    k, _ = _written_out(k, lanes, width)
    k, steps = _written_out(k, sums, width)
    k = run(k, ComputeAt(parts, sums, steps, Scope.REGISTER))
    k, _ = _written_out(k, parts, width)
    if staged:
        k = run(k, ComputeAt("factors", name, row, Scope.LOCAL))
        loop = k.nests["factors"].loops[-1].var.name
        k = rows.lanes(k, loop, min(width, high(k.nests["factors"].loops[-1].extent)))
    k = prefetch_streams(k, info, AHEAD)
    return parallel.spread(k, out.name, [task], info) if big else k


def loads_in(e: Expr) -> list[Load]:
    """What an expression reads."""
    return [x for x in ex.walk([e]) if isinstance(x, Load)]


def _block(k: Kernel, value: Value, width: int) -> int | None:
    """How many neighbours along the only summed axis share a factor: whole vectors of them, of which all else that is
    read is in order."""
    if value.reduce is None or len(value.reduce.axes) != 1 or value.reduce.op is not Op.ADD:
        return None
    (axis,) = value.reduce.axes
    loads = [r for r in reads(value) if k.algorithm.param(r.source) is not None]
    sizes = {
        a.den
        for r in loads
        for i in r.index
        if not isinstance(i, int)
        for a in atoms(i)
        if isinstance(a, FloorDiv) and a.num == axis.var and isinstance(a.den, int)
    }
    extent = high(axis.extent)
    block = min(sizes, default=0)
    if len(loads) < 2 or len(sizes) != 1 or block % width or block < 2 * width or extent % block:
        return None
    for r in loads:
        p = k.algorithm.param(r.source)
        if p is None or r.guard or lane_step(flatten(r.index, p.shape), axis.var, width) not in (0, 1):
            return None
    return block


def _written_out(k: Kernel, name: str, width: int) -> tuple[Kernel, str]:
    """The loops of vectors outside, all but the longest that reduces written out, the lanes inside; its name."""
    loops = k.nests[name].loops
    lanes = next(s.var for s in loops if not s.reduce and s.extent == width)
    others = [s for s in loops if s.var != lanes]
    long = max(others, key=lambda s: (s.reduce, high(s.extent)))
    short = [s.var.name for s in others if s is not long]
    item, bind = k.algorithm.item(name), k.nests[name].bind
    assert isinstance(item, Value)
    order = sorted(range(len(item.axes)), key=lambda a: coefficient(bind[item.axes[a].var], lanes) == 1)
    k = run(k, Arrange(name, Scope.REGISTER, tuple(order), (1,) * len(order)))
    k = run(k, Permute(name, (long.var.name, *short, lanes.name)))
    k = run(k, *(Unroll(n) for n in short), Vectorize(lanes.name))
    return k if high(long.extent) > UNROLLED else attempt(k, Unroll(long.var.name)), long.var.name
