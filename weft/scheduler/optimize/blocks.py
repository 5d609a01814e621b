"""Sums of products with a factor that changes once per block of the summed axis: weights of few bits, times a vector.

    y(i) = sum r: x[r] * (q[i, r] * s[i, r // 32])

    per row i, block b:  part(l) = sum u: x[32*b + 16*u + l] * q[i, 32*b + 16*u + l]     lanes l, in registers
                         acc(l) += s[i, b] * part(l)

Where numbers have an offset for each block, x[r] * (q[i, r] * s[i, r // 32] + m[i, r // 32]), this is two sums.
The factor is applied to a block's sum, and each vector knows in which block, and in which half of a byte, its elements
lie: unpacking, which is what these products wait for, does the least that it can. What all results need, such as a norm
of x and x by it, is computed before them.
"""
# Tests: tests/scheduler/optimize/test_rules.py

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.expr import Expr, Load
from weft.ir.graph import elements
from weft.ir.index import FloorDiv, Var, atoms, coefficient, flatten, high, variables
from weft.ir.kernel.algorithm import ItemValue, Output, reads
from weft.ir.kernel.decisions import pick
from weft.ir.kernel.schedule import Kernel, fresh
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.distribute import Distribute, distributed
from weft.ir.kernel.transforms.factor import Factor
from weft.ir.kernel.transforms.mark import Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.kernel.transforms.stage import Arrange, Stage
from weft.ir.loops import Scope
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize import parallel, rows
from weft.scheduler.optimize.access import lane_step
from weft.scheduler.optimize.levels import PRODUCT_CHAIN, summed
from weft.scheduler.optimize.prefetch import prefetch_streams
from weft.scheduler.optimize.rule import Choice, Rule
from weft.scheduler.optimize.staging import MIN_READERS, fits, stage_repeated
from weft.scheduler.optimize.steps import merge, split
from weft.scheduler.optimize.windows import OneReduction, only_reduction, reduction_of

MAX_UNROLLED = 8
"""Vectors of a block that are written out."""

AHEAD_BYTES = 8192
"""From what is read to what is asked for: more than elsewhere, as the arithmetic between leaves memory idle."""

BLOCKS = 2, 3
"""Blocks side by side, with an accumulator each: an addition waits for the one before it."""


@dataclass(frozen=True, slots=True)
class ScaledBlocks:
    """Sums whose terms share a factor in blocks of so many, and the numbers of blocks that divide their count; with
    the values that are `kept`, which are computed before them."""

    kernel: Kernel
    sums: tuple[OneReduction, ...]
    block: int
    several: tuple[int, ...]
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class SideBySide(Choice):
    """So many blocks at a time, of so many elements each."""

    decision = "blocks.at_once"

    kernel: Kernel
    blocks: int
    block: int

    def __str__(self) -> str:
        return f"{self.blocks} blocks of {self.block} at a time, scaled once each"


def recognise(k: Kernel, info: DeviceInfo) -> ScaledBlocks | Refusal:
    """A kernel around sums with a factor for each block of their terms, behind what all of their results need."""
    k, two = _distributed(k)
    found, kept = only_reduction(k), tuple[str, ...]()
    sums = found if isinstance(found, Refusal) else (found,)
    if isinstance(sums, Refusal) and two:
        sums = _last_reductions(k, sums)
    if isinstance(sums, Refusal) and len(k.algorithm.items) > 2:
        k, _ = stage_repeated(k)
        sums = _last_reductions(k, sums)
        if not isinstance(sums, Refusal):
            own = {s.value.name for s in sums}
            kept = tuple([i.name for i in k.algorithm.items[:-1] if i.name not in own])
    if isinstance(sums, Refusal):
        return sums
    counts: set[tuple[int, int]] = set()
    for found in sums:
        if len(found.value.axes) < len(found.out.axes):
            return Refusal("results have more axes than the sum: their lanes are not its own")
        size = _block(k, found.value, info.lanes(found.value.dtype))
        if isinstance(size, Refusal):
            return size
        assert found.value.reduce is not None
        counts.add((size, high(found.value.reduce.axes[0].extent) // size))
    if len(counts) > 1:
        return Refusal("its sums have blocks of several sizes")
    ((block, count),) = counts
    several = tuple(n for n in BLOCKS if count % n == 0)
    if not several:
        return Refusal(f"neither 2 nor 3 divides {count} blocks")
    if count // several[0] > PRODUCT_CHAIN:
        return Refusal(
            f"{count // several[0]:,} additions in sequence; at most {PRODUCT_CHAIN} are as accurate"
        )
    return ScaledBlocks(k, sums, block, several, kept)


def choose(form: ScaledBlocks, info: DeviceInfo) -> SideBySide:
    """As few blocks as divide their number."""
    k, blocks = pick(form.kernel, "blocks.at_once", form.several)
    return SideBySide(k, blocks, form.block)


def apply(form: ScaledBlocks, choice: SideBySide, info: DeviceInfo) -> Kernel | Refusal:
    """The factor taken out of a block's sum; tasks of a vector of results, whose sums are in registers."""
    out, width = form.sums[0].out.name, info.lanes(form.sums[0].value.dtype)
    k, factors = choice.kernel, dict[str, list[str]]()
    for found in form.sums:
        k, factors[found.value.name] = _factored(k, found.value.name, form.block, choice.blocks, width)
    big = parallel.pays(k, info)
    loops = [s.var.name for s in k.nests[out].loops]
    lane = loops[-1]
    k = run(k, Pad(lane, width))
    k, task, inner = split(k, lane, width, f"{lane}_o", f"{lane}_l")
    for outer in reversed(loops[:-1]):
        k, task = merge(k, outer, task)
    k = run(k, Vectorize(inner))
    for name, own in factors.items():
        k = _placed(k, name, own, out, task, width)
    for kept in reversed(form.kept):
        k = rows.whole(k, kept, info)
    unfit = fits(k, (), form.kept, info)
    if unfit is not None:
        return unfit
    k = prefetch_streams(k, info, AHEAD_BYTES, AHEAD_BYTES)
    return parallel.spread(k, out, [task], info) if big else k


RULE = Rule("blocks", recognise, choose, apply)


def _placed(k: Kernel, name: str, factors: list[str], out: str, task: str, width: int) -> Kernel:
    """A sum, in the parts that `_factored` made of it, in registers at a task of the output."""
    lanes, parts, sums = f"{name}_lanes", f"{name}_blocks", f"{name}_several"
    k = run(k, ComputeAt(name, out, task, Scope.REGISTER))
    row = next(s.var.name for s in k.nests[name].loops if not s.reduce)
    k = run(k, ComputeAt(lanes, name, row, Scope.REGISTER), ComputeAt(sums, name, row, Scope.REGISTER))
    k = attempt(k, Vectorize(k.nests[name].loops[-1].var.name))
    k, _ = _written_out(k, lanes, width)
    k, steps = _written_out(k, sums, width)
    k = run(k, ComputeAt(parts, sums, steps, Scope.REGISTER))
    k, _ = _written_out(k, parts, width)
    for own in factors:
        k = run(k, ComputeAt(own, name, row, Scope.LOCAL))
        loop = k.nests[own].loops[-1].var.name
        k = rows.lanes(k, loop, min(width, high(k.nests[own].loops[-1].extent)))
    return k


def _factored(k: Kernel, name: str, block: int, several: int, width: int) -> tuple[Kernel, list[str]]:
    """The sum as sums of blocks by lanes, the factor outside of a block's, `several` blocks side by side; and the
    names of factors that are computed beside it."""
    axis = _summed(k, name)
    lanes, parts, sums = f"{name}_lanes", f"{name}_blocks", f"{name}_several"
    k = run(k, SplitReduce(name, axis, width, lanes, True))
    k = run(k, SplitReduce(lanes, f"{axis}o", block // width, parts))
    k = run(k, Factor(parts, Op.MUL))
    factors: list[str] = []
    for e in k.algorithm.item(lanes).exprs()[0].operands():
        if all(r.source != parts for r in loads_in(e)) and not isinstance(e, Load):
            factors.append(fresh(k.names(), "factors"))
            k = run(k, Stage(lanes, e, factors[-1]))
    return run(k, SplitReduce(lanes, _summed(k, lanes), several, sums, True)), factors


def _distributed(k: Kernel) -> tuple[Kernel, bool]:
    """The kernel with each sum of x * (a + b) as two, and whether there was one."""
    found = [i.name for i in k.algorithm.items if isinstance(i, ItemValue) and distributed(i) is not None]
    for name in found:
        k = attempt(k, Distribute(name, fresh(k.names(), f"{name}_rest")))
    return k, bool(found)


def _last_reductions(k: Kernel, why: Refusal) -> tuple[OneReduction, ...] | Refusal:
    """The reductions that the only output reads, of a kernel whose other values are little beside these, and do not
    depend on the axes of their results; `why` where it is none."""
    *values, out = k.algorithm.items
    if not isinstance(out, Output):
        return why
    sources = {r.source for r in reads(out)}
    sums: list[OneReduction] = []
    before: dict[str, int] = {}
    for item in values:
        if not isinstance(item, ItemValue):
            return why
        own = {a.var for a in item.axes if a.extent != 1} if item.name in sources else set[Var]()
        for r in reads(item):
            is_other = k.algorithm.param(r.source) is None
            if is_other and (r.source not in before or any(v in own for i in r.index for v in variables(i))):
                return why
        if item.name not in sources:
            before[item.name] = _terms(item)
            continue
        found = reduction_of(item, out)
        if isinstance(found, Refusal):
            return found
        sums.append(found)
    least = min((_terms(s.value) for s in sums), default=0)
    for name, count in before.items():
        if count * MIN_READERS > least:
            return Refusal(
                f"{name} has {count:,} terms before sums of {least:,}; pays up to an eighth of these"
            )
    return tuple(sums) or why


def _terms(item: ItemValue) -> int:
    """The points of an item's axes."""
    return high(elements(tuple(a.extent for a in item.all_axes)))


def _summed(k: Kernel, name: str) -> str:
    """The first axis that a value reduces over."""
    return summed(k, name)[0].var.name


def loads_in(e: Expr) -> list[Load]:
    """The loads of an expression."""
    return [x for x in ex.walk([e]) if isinstance(x, Load)]


def _block(k: Kernel, value: ItemValue, width: int) -> int | Refusal:
    """The number of neighbours along the only summed axis that share a factor: whole vectors of them, of which all
    else that is read is in order."""
    assert value.reduce is not None
    if len(value.reduce.axes) != 1 or value.reduce.op is not Op.ADD:
        return Refusal(f"{value.name} is no sum over one axis")
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
    if len(loads) < 2 or not sizes:
        return Refusal(f"no factor that blocks of {axis.var.name} share")
    extent, block = high(axis.extent), min([n for n in sizes if n >= 2 * width], default=max(sizes))
    if block % width or block < 2 * width or extent % block:
        return Refusal(
            f"blocks of {block} of {extent:,}; they are to be two vectors of {width} or more, and whole"
        )
    for r in reads(value):
        p = k.algorithm.param(r.source)
        if p is None and not {*r.index} <= {0, axis.var}:
            return Refusal(f"{r.source} is not read in order along {axis.var.name}")
    for r in loads:
        p = k.algorithm.param(r.source)
        if p is None or r.guard or lane_step(flatten(r.index, p.shape), axis.var, width) not in (0, 1):
            return Refusal(f"{r.source} is not read in order along {axis.var.name}")
    return block


def _written_out(k: Kernel, name: str, width: int) -> tuple[Kernel, str]:
    """The loops of vectors outside, all but the longest that reduces written out, the lanes inside; its name."""
    loops = k.nests[name].loops
    lanes = next(s.var for s in loops if not s.reduce and s.extent == width)
    others = [s for s in loops if s.var != lanes]
    long = max(others, key=lambda s: (s.reduce, high(s.extent)))
    short = [s.var.name for s in others if s is not long]
    item, bind = k.algorithm.item(name), k.nests[name].bind
    assert isinstance(item, ItemValue)
    order = sorted(range(len(item.axes)), key=lambda a: coefficient(bind[item.axes[a].var], lanes) == 1)
    k = run(k, Arrange(name, Scope.REGISTER, tuple(order), (1,) * len(order)))
    k = run(k, Permute(name, (long.var.name, *short, lanes.name)))
    k = run(k, *(Unroll(n) for n in short), Vectorize(lanes.name))
    return k if high(long.extent) > MAX_UNROLLED else attempt(k, Unroll(long.var.name)), long.var.name
