"""Long sums in levels of few additions in sequence each, which makes their error that of pairwise summation.

s = sum i, j: x(i, j)   ->   r(i) = sum j: x(i, j);   l(k) = sum m in 0..64: r(64*k + m);   s = sum k: l(k)

Rules make levels where they help to spread or to vectorize a sum; this one sees to all others, last of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir import numerics
from weft.ir.expr import Expr, ScalarCall
from weft.ir.index import Int, ceildiv, high, variables
from weft.ir.kernel.algorithm import Axis, ItemValue
from weft.ir.kernel.schedule import Kernel, NestLoop, fresh
from weft.ir.kernel.transforms.base import Refusal, run
from weft.ir.kernel.transforms.partial_sums import PartialSums, followers
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.loops import LoopKind
from weft.ir.numerics import CHAIN_TERMS, Tree
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize.rule import Choice, Rule

SUM_CHAIN = 64
"""Additions in sequence before a partial sum is set aside."""

PRODUCT_CHAIN = 768
"""Products added in sequence in the registers of a tile, where two factors are used again and again: a BLAS's sums."""

BLOCK_PRODUCT_CHAIN = 8192
"""The same on devices whose threads have no room for a second tile but where the sum would be much longer."""

_ONCE = frozenset({LoopKind.VECTOR, LoopKind.ACROSS, LoopKind.MATRIX})
"""Loops whose terms are added as a tree, or by one instruction."""


def summed(k: Kernel, name: str) -> tuple[Axis, ...]:
    """The axes that a value reduces over."""
    item = k.algorithm.item(name)
    assert isinstance(item, ItemValue) and item.reduce is not None
    return item.reduce.axes


def long(axes: tuple[Axis, ...], steps: int = 1) -> bool:
    """True where a sum over the axes, `steps` additions for each, is worth levels."""
    return prod(high(a.extent) for a in axes) * steps > 2 * SUM_CHAIN


def in_levels(k: Kernel, name: str) -> tuple[Kernel, tuple[str, ...]]:
    """The sum `name` of partial results in levels; the names of those below it, outermost first."""
    below: tuple[str, ...] = ()
    while long(summed(k, name)):
        *rest, last = summed(k, name)
        level = fresh(k.names(), f"{name}_level")
        others = tuple(a.var.name for a in rest)
        if isinstance(last.extent, int) and last.extent > 2 * SUM_CHAIN:
            step = SplitReduce(name, last.var.name, SUM_CHAIN, level, whole=others)
        elif others:
            step = SplitReduce(name, others[-1], 0, level, whole=others[:-1])
        else:
            break
        if step.check(k) is not None:
            break
        k, below = run(k, step), (level, *below)
    return k, below


def pinned_steps(k: Kernel, name: str) -> tuple[Kernel, str | None]:
    """A pinned chain in its blocks, where it is longer than one; the name of a block's sum.

    The inner axes belong to a block as a whole, as many as there is room for; the next one is cut; those outside of it
    count blocks."""
    lengths = {a.var.name: a.extent for a in summed(k, name)}
    axes = [n for n, extent in lengths.items() if extent != 1]
    inner = 1
    while axes and inner * high(lengths[axes[-1]]) <= CHAIN_TERMS:
        inner *= high(lengths[axes.pop()])
    if not axes:
        return k, None
    cut, part = axes.pop(), fresh(k.names(), f"{name}_chain")
    factor = CHAIN_TERMS // inner
    if factor == 1 and inner > 1:
        factor = 0  # one block for each element
    return run(k, SplitReduce(name, cut, factor, part, whole=tuple(axes))), part


def apart(k: Kernel, name: str, axis: str, steps: int) -> tuple[Kernel, str, str]:
    """The sum over `axis`, which takes `steps` additions, apart from those over further axes; the name of the part that
    sums over `axis` (and as much of the others as makes no long chain), and of the axis there."""
    item = k.algorithm.item(name)
    assert isinstance(item, ItemValue) and item.reduce is not None
    others = tuple(a for a in item.reduce.axes if a.var.name != axis and a.extent != 1)
    if item.reduce.op is not Op.ADD or not others or not long(others, steps):
        return k, name, axis
    *rest, last = others
    room = max(1, SUM_CHAIN // steps)
    factor = 0
    if high(last.extent) <= room and rest:
        last = rest.pop()
    elif isinstance(last.extent, int):
        factor = next((f for f in range(min(room, last.extent), 1, -1) if last.extent % f == 0), 0)
    part = fresh(k.names(), f"{name}_row")
    step = SplitReduce(name, last.var.name, factor, part, whole=tuple(a.var.name for a in rest))
    if step.check(k) is not None:
        return k, name, axis
    kept = [a.var.name for a in item.reduce.axes if a is not last and a not in rest]
    k = run(k, step)
    return k, part, summed(k, part)[(1 if factor else 0) + kept.index(axis)].var.name


@dataclass(frozen=True, slots=True)
class LongSums:
    """Loops that add more terms in sequence than `most`, each with the levels that its sum is set aside in."""

    kernel: Kernel
    steps: tuple[PartialSums, ...]


@dataclass(frozen=True)
class InLevels(Choice):
    """The partial sums that are set aside, each after how many iterations."""

    steps: tuple[PartialSums, ...]

    def __str__(self) -> str:
        return ", ".join(f"{s.value} set aside after {' and '.join(map(str, s.levels))}" for s in self.steps)


def recognise(k: Kernel, info: DeviceInfo) -> LongSums | Refusal:
    """A schedule that adds many terms one after the other."""
    steps: list[PartialSums] = []
    for item in k.algorithm.items:
        if isinstance(item, ItemValue) and item.reduce is not None:
            if item.reduce.op is Op.ADD and item.dtype.is_float and k.nests[item.name].online is None:
                steps += _set_aside(k, item, info)
            elif item.reduce.op is Op.MAX and info.task_kind is not LoopKind.BLOCK:
                steps += _online(k, item)
    steps = [s for s in steps if s.check(k) is None]
    limit = f"{2 * SUM_CHAIN} terms, or {PRODUCT_CHAIN} products,"
    return LongSums(k, tuple(steps)) if steps else Refusal(f"no sum adds more than {limit} in sequence")


def choose(form: LongSums, info: DeviceInfo) -> InLevels:
    """The only way: the levels follow from the lengths."""
    return InLevels(form.steps)


def apply(form: LongSums, choice: InLevels, info: DeviceInfo) -> Kernel:
    """The sums set aside."""
    return run(form.kernel, *choice.steps)


RULE = Rule("levels", recognise, choose, apply)


def most(item: ItemValue, info: DeviceInfo) -> tuple[int, int]:
    """The most additions in sequence that are left as they are, and those of a partial sum of a longer sum."""
    if not reused(item):
        return 2 * SUM_CHAIN, SUM_CHAIN
    return (BLOCK_PRODUCT_CHAIN if info.task_kind is LoopKind.BLOCK else PRODUCT_CHAIN), PRODUCT_CHAIN // 2


def reused(item: ItemValue) -> bool:
    """The item sums products of two factors, each of which several of its elements share."""
    assert item.reduce is not None
    e = item.expr
    while isinstance(e, ScalarCall) and e.op is Op.WHERE:
        e = e.args[1]
    if not isinstance(e, ScalarCall) or e.op is not Op.MUL:
        return False
    a, b = (_axes_of(x) & {a.var for a in item.axes if a.extent != 1} for x in e.args)
    return bool(a - b) and bool(b - a)


def _axes_of(e: Expr) -> set[object]:
    return {v for x in ex.walk([e]) for i in ex.indices(x) for v in variables(i)}


def _set_aside(k: Kernel, item: ItemValue, info: DeviceInfo) -> Iterator[PartialSums]:
    """The loops of a sum to be cut, the innermost first."""
    loops = k.nests[item.name].loops
    if any(s.kind is LoopKind.MATRIX for s in loops):
        return  # a unit's accumulators are all that registers have room for
    limit, chunk = most(item, info)
    length = 1
    for spec in reversed(loops):
        n = high(spec.extent)
        if not spec.reduce or spec.kind in _ONCE or n <= 1:
            continue
        if length * n <= limit or spec.kind is not LoopKind.SERIAL:
            length *= n
            continue
        levels = levels_of(spec.extent, length, limit, chunk)
        if item.reduce is not None and item.reduce.tree is not Tree.FREE:
            levels = numerics.levels(n)
        yield PartialSums(item.name, spec.var.name, levels)
        length = int(ceildiv(n, prod(levels)))
        limit, chunk = 2 * SUM_CHAIN, SUM_CHAIN


def levels_of(extent: Int, inner: int, limit: int, chunk: int) -> tuple[int, ...]:
    """Iterations of `inner` additions that share a partial sum, then how many of those sums share one, and so on."""
    found: list[int] = []
    left, limit, chunk = extent, max(limit // inner, 1), max(chunk // inner, 1)
    while high(left) > limit:
        count = _near(left, chunk)
        found.append(count)
        left, limit, chunk = ceildiv(left, count), 2 * SUM_CHAIN, SUM_CHAIN
    return tuple(found)


def _near(extent: Int, wish: int) -> int:
    """A divisor of the extent about as large as wished, if there is one."""
    if not isinstance(extent, int) or wish == 1:
        return wish
    near = [f for f in range(max(2, wish // 2), 2 * wish + 1) if extent % f == 0]
    return min(near, key=lambda f: abs(f - wish), default=wish)


def _online(k: Kernel, leader: ItemValue) -> Iterator[PartialSums]:
    """Loops of a maximum in which sums run beside it, set aside relative to it."""
    for spec in k.nests[leader.name].loops:
        beside = followers(k, spec.var.name)
        if not spec.reduce or spec.kind is not LoopKind.SERIAL or not beside:
            continue
        inner = max(prod(_repeats(s) for s in k.nests[x.name].loops) for x in beside)
        if high(spec.extent) * inner > 2 * SUM_CHAIN and inner < SUM_CHAIN:
            yield PartialSums(
                leader.name, spec.var.name, levels_of(spec.extent, inner, 2 * SUM_CHAIN, SUM_CHAIN)
            )


def _repeats(s: NestLoop) -> int:
    return high(s.extent) if s.reduce and s.kind not in _ONCE else 1
