"""Reductions over small windows that overlap, with nothing else to reuse: depthwise convolutions, pooling.

    y(c, i, j) = sum r, s: x[c, i + r - 1, j + s - 1] * w[c, r, s]   (0 outside of x), or y(i, j, c)

Neither memory nor arithmetic bounds these, but finding the elements, whose guards are tested at every tap. So what the
windows of a plane reach is copied once, edges and all, and what is done to elements first is done there; and a tile of
results, some rows of lanes, stays in registers while the taps pass. Lanes run along what is stored side by side: the
last axis that windows slide along, or channels. Along channels, elements can be read where they are, too, which takes
less where little is done to an element, or few windows share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.expr import Expr, Load, ScalarCall, Test
from weft.ir.index import Var, ceildiv, coefficient, flatten, high, variables
from weft.ir.kernel.algorithm import ItemValue, Output, reads
from weft.ir.kernel.decisions import pick, with_decisions_of
from weft.ir.kernel.lower import storage_size
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.stage import Stage
from weft.ir.kernel.transforms.window import Window, main
from weft.ir.loops import Scope
from weft.ir.numerics import Tree
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize import parallel
from weft.scheduler.optimize.contraction_form import fill
from weft.scheduler.optimize.rule import Choice, Rule, TileSize, counted
from weft.scheduler.optimize.staging import across_lanes, fits
from weft.scheduler.optimize.steps import divisors, extent, split

MAX_TAPS = 128
"""Elements of a window, at most: longer reductions run in levels."""

MAX_VECTORS = 8
"""Vectors of results in registers: half of AVX2's 16."""

MIN_USES = 5
"""Results that an element of the window is used for, at least: copying it costs as much as a few taps."""

MAX_UNROLLED = 256
"""Operations on vectors that are written out: rows of a window are loaded once for all results in reach."""

MAX_UNROLLED_IN_PARTS = 64
"""The same where loops run apart at edges: code for each part, and no faster if it is longer."""

COPYING = 16
"""Operations that copying a vector of a window takes as long as, and testing where it lies."""

MIN_BLOCK = 8
"""Rows of places for which windows are copied together, at least, where those of all rows are too many."""

WINDOW_SHARE = 4
"""The elements that a task's windows reach may take the second-level cache over this."""


@dataclass(frozen=True, slots=True)
class OneReduction:
    """A kernel's only value, a reduction, and its only output."""

    value: ItemValue
    out: Output


@dataclass(frozen=True, slots=True)
class Windows:
    """The kernel with what its windows reach as a value, and the one that reads it where it is, which lanes can that
    run along another axis than windows slide. Names of the output's loops: those that the windows slide along and, if
    it is another, the one for lanes, the last; and those around. `turned`: the values that lie along the lanes, of what
    is read across them. `ways`: the operations that either way to read takes for a result."""

    kernel: Kernel
    in_place: Kernel | None
    found: OneReduction
    window: ItemValue
    inside: tuple[str, ...]
    around: tuple[str, ...]
    turned: tuple[str, ...]
    ways: Mapping[str, float]

    @property
    def apart(self) -> bool:
        """True where lanes run along another axis than windows slide."""
        return self.in_place is not None


@dataclass(frozen=True)
class Tile(Choice):
    """Rows and vectors of results in registers, of so many lanes; whether what windows reach is `copied`."""

    decision = "windows.tile"

    kernel: Kernel
    vectors: TileSize
    lanes: int
    copied: bool

    def __str__(self) -> str:
        windows = "in local" if self.copied else "where they are"
        return f"tile {self.vectors} vectors of {self.lanes}, its windows {windows}"


def recognise(k: Kernel, info: DeviceInfo) -> Windows | Refusal:
    """A kernel around one reduction over windows that share most of what they reach."""
    found = only_reduction(k)
    if isinstance(found, Refusal):
        return found
    value = found.value
    assert value.reduce is not None
    taps = prod(high(a.extent) for a in value.reduce.axes)
    if taps > MAX_TAPS:
        return Refusal(f"{taps:,} terms for a result; windows have up to {MAX_TAPS}")
    part = sliding(value, k)
    if isinstance(part, Refusal):
        return part
    slid = slid_axes(part, value)
    still = [a.var.name for a in value.reduce.axes if a.var not in slid]
    if still:
        return Refusal(f"no window slides along the summed {', '.join(still)}")
    of = loops_of(k, found)
    inside = tuple(of[a.var] for a in value.axes if a.var in slid)
    around = tuple(s.var.name for s in k.nests[found.out.name].loops if s.var.name not in inside)
    lane = next((n for n in (inside[-1], *reversed(around)) if _contiguous(k, found.out, n)), None)
    if lane is None:
        return Refusal(f"results are not stored side by side along {inside[-1]}, where lanes would run")
    turned = _turned(k, value) if (apart := lane != inside[-1]) else ()
    k = run(k, *turned)
    copied = run(k, Window(value.name, part, "window"))
    window = copied.algorithm.item("window")
    assert isinstance(window, ItemValue)
    results = prod(high(a.extent) for a in value.axes)
    elements = prod(high(a.extent) for a in window.axes)
    if not apart:
        uses = results * taps / elements
        if uses < MIN_USES:
            return Refusal(
                f"an element of a window is used {uses:.1f} times; copying it pays from {MIN_USES}"
            )
        return Windows(copied, None, found, window, inside, around, (), {"copied": 0.0})
    if not _reads_along(copied, window, value, of, lane):
        return Refusal(f"what windows reach does not lie along {lane}, as the results do")
    others = tuple(n for n in around if n != lane)
    done = _operations(part)
    ways = {"copied": (COPYING + done) * elements / results, "where it is": float(done * taps)}
    names = tuple(step.name for step in turned)
    return Windows(copied, k, found, window, (*inside, lane), others, names, ways)


def choose(form: Windows, info: DeviceInfo) -> Tile:
    """The way to read that takes the fewest operations; the tallest tile, and the widest of these."""
    k, (*rest, lane) = form.kernel, form.inside
    k, way = pick(k, "windows.reads", list(form.ways), list(form.ways.values()), "operations")
    if way != "copied":
        assert form.in_place is not None
        k = with_decisions_of(form.in_place, k)
    width, height = extent(k, lane), extent(k, rest[-1]) if rest else 1
    lanes = min(info.lanes(form.found.value.dtype), 1 << (width - 1).bit_length())
    vectors = ceildiv(width, lanes)
    tiles = [
        TileSize(down, across)
        for down in range(MAX_VECTORS, 0, -1)
        if height % down == 0
        for across in range(min(vectors, MAX_VECTORS // down), 0, -1)
        if vectors % across == 0
    ]
    k, tile = pick(k, "windows.tile", tiles)
    return Tile(k, tile, lanes, way == "copied")


def apply(form: Windows, tile: Tile, info: DeviceInfo) -> Kernel | Refusal:
    """Tiles of results in registers, in the loops around them the windows copied where they fit."""
    k, out, around = tile.kernel, form.found.out.name, form.around
    big = parallel.pays(k, info)
    k, outer, inner = _in_tiles(k, form, tile)
    tasks, loops = around, (*around[-1:], *outer)
    if not tile.copied:
        tasks = (*around, outer[0])
    elif form.apart:
        k, blocks, outer = _in_blocks(k, form, tile, outer, inner, info)
        tasks, loops = (*around, *blocks, outer[0]), tuple(outer)
    k = _in_registers(k, form, tile, outer[-1], inner)
    if tile.copied:
        k = _window_placed(k, form, loops, info)
    if isinstance(k, Refusal):
        return k
    unfit = fits(k, (), form.turned, info)
    if unfit is not None:
        return unfit
    for name in ("window", *form.turned) if tile.copied else form.turned:
        k = fill(k, name, info)
    return parallel.spread(k, out, list(tasks), info) if big and tasks else k


RULE = Rule("windows", recognise, choose, apply)


def _in_tiles(k: Kernel, form: Windows, tile: Tile) -> tuple[Kernel, list[str], list[str]]:
    """The output's loops as loops over tiles and loops over a tile's results; their names."""
    *rest, lane = form.inside
    down, width = tile.vectors.rows, tile.lanes * tile.vectors.columns
    k = run(k, Pad(lane, width))
    k, lane_o, lane_i = split(k, lane, width, f"{lane}_o", f"{lane}_l")
    outer, inner = [*rest, lane_o], [lane_i]
    if rest and down > 1:
        k, row_o, row_i = split(k, rest[-1], down, f"{rest[-1]}_o", f"{rest[-1]}_i")
        outer, inner = [*rest[:-1], row_o, lane_o], [row_i, lane_i]
    if form.apart and tile.copied:  # channels outside: what their windows reach is copied once for all places
        outer = [outer[-1], *outer[:-1]]
    k = run(k, Permute(form.found.out.name, (*form.around, *outer, *inner)))
    return run(k, *(Unroll(n) for n in inner[:-1]), Vectorize(lane_i)), outer, inner


def _in_registers(k: Kernel, form: Windows, tile: Tile, at: str, inner: list[str]) -> Kernel:
    """The sums of a tile in registers, in the output's loop `at`: taps outside, written out as far as is short."""
    value = form.found.value.name
    k = run(k, ComputeAt(value, form.found.out.name, at, Scope.REGISTER))
    nest = k.nests[value]
    reduced = [s.var.name for s in nest.loops if s.reduce]
    own = [s.var.name for s in nest.loops if not s.reduce]
    k = run(k, Permute(value, (*reduced, *own)), *(Unroll(n) for n in own[:-1]), Vectorize(own[-1]))
    taps, most = 1, MAX_UNROLLED if tile.copied else MAX_UNROLLED_IN_PARTS
    for n in reversed(reduced):
        taps *= extent(k, n)
        if taps * prod(tile.vectors) <= most:
            k = attempt(k, Unroll(n))
    return k


def _window_placed(k: Kernel, form: Windows, loops: tuple[str, ...], info: DeviceInfo) -> Kernel | Refusal:
    """Compute what windows reach in the outermost of the output's loops in which it is small."""
    room, size = info.l2_bytes // WINDOW_SHARE, 0
    for loop in loops:
        placed = run(k, ComputeAt("window", form.found.out.name, loop, Scope.LOCAL))
        size = _window_bytes(placed, form)
        if size <= room:
            return placed
    return Refusal(f"the windows of one tile reach {size:,} bytes; {room:,} may stay in the cache")


def _in_blocks(
    k: Kernel, form: Windows, tile: Tile, outer: list[str], inner: list[str], info: DeviceInfo
) -> tuple[Kernel, tuple[str, ...], list[str]]:
    """The rows of places in blocks whose windows are small, outside of the blocks of channels, where those of all rows
    are not; the loop over them, if there is one, and the loops over tiles inside."""
    out, (lane, first, *rest) = form.found.out.name, outer
    tall, room = extent(k, first), info.l2_bytes // WINDOW_SHARE

    def fit(k: Kernel, at: str) -> bool:
        made = run(_in_registers(k, form, tile, at, inner), ComputeAt("window", out, lane, Scope.LOCAL))
        return _window_bytes(made, form) <= room

    if not fit(k, outer[-1]):
        for block in [b for b in reversed(divisors(tall)) if MIN_BLOCK <= b < tall]:
            cut, o, i = split(k, first, block, f"{first}_b", f"{first}_r")
            own = [lane, i, *rest]
            cut = run(cut, Permute(out, (*form.around, o, *own, *inner)))
            if fit(cut, own[-1]):
                return cut, (o,), own
    return k, (), outer


def _window_bytes(k: Kernel, form: Windows) -> int:
    """The memory of the copy."""
    return storage_size(k.nests["window"]) * form.window.dtype.itemsize


def only_reduction(k: Kernel, unsized: bool = False) -> OneReduction | Refusal:
    """The kernel's only value, a reduction over axes of known sizes, and its only output, which reads it at its own
    axes. `unsized`: sizes may be known only at run time."""
    match k.algorithm.items:
        case (ItemValue() as value, Output() as out):
            pass
        case items:
            values = sum(isinstance(i, ItemValue) for i in items)
            return Refusal(
                f"{counted(values, 'value')} and {counted(len(items) - values, 'output')}; it is for one of each"
            )
    return reduction_of(value, out, unsized)


def reduction_of(value: ItemValue, out: Output, unsized: bool = False) -> OneReduction | Refusal:
    """A value as a reduction over axes of known sizes, which the output reads at its own axes."""
    if value.reduce is None:
        return Refusal(f"{value.name} is no reduction")
    if value.reduce.tree is Tree.LANES:
        return Refusal(f"the lanes in which {value.name} is summed are pinned")
    if any(s.combine is not None for s in out.stores):
        return Refusal(f"{out.name} combines with what is there")
    names = [] if unsized else [a.var.name for a in value.all_axes if not isinstance(a.extent, int)]
    if names:
        return Refusal(f"the size of {', '.join(names)} is only known at run time")
    at = {r.index for r in reads(out) if r.source == value.name}
    if len(at) != 1:
        return Refusal(f"{out.name} reads {value.name} at {len(at)} places")
    (index,) = at
    named = [i for i in index if i != 0]
    plain = all(isinstance(i, Var) for i in named) and len(set(named)) == len(named)
    if (
        not named
        or not plain
        or any(a.extent != 1 and i == 0 for a, i in zip(value.axes, index, strict=True))
    ):
        return Refusal(f"{out.name} reads {value.name} at other places than its own axes")
    return OneReduction(value, out)


def sliding(value: ItemValue, k: Kernel) -> Expr | Refusal:
    """The largest part of the value that windows slide over: each of the axes that some axis of the results is added to
    is in an index of its own."""
    assert value.reduce is not None
    loads = [x for x in ex.walk([value.expr]) if isinstance(x, Load)]
    axes = {a.var for a in value.all_axes}  # what else indices have is a runtime variable
    if not any(len(variables(i) & axes) > 1 for x in loads for i in x.index):
        return Refusal(f"no windows: {value.name} reads nothing at the sum of two axes")
    found: list[Expr] = []
    stack, seen = [value.expr], {value.expr}
    summed = {a.var for a in value.reduce.axes}
    while stack:
        e = stack.pop()
        if (
            isinstance(e, Load | ScalarCall)
            and Window(value.name, e, "window").check(k) is None
            and _slides(e, summed, axes)
        ):
            found.append(e)
        elif isinstance(e, ScalarCall):
            new = [a for a in dict.fromkeys(e.args) if not isinstance(a, Test) and a not in seen]
            seen.update(new)
            stack.extend(new)
    if len(found) != 1:
        return Refusal(
            f"windows slide over {counted(len(found), 'part')} of {value.name}; they are copied of one"
        )
    return found[0]


def _operations(part: Expr) -> int:
    """The operations that are done to an element, but for those that depend on where it lies."""
    calls = [e for e in ex.walk([part], into_indices=False) if isinstance(e, ScalarCall)]
    return sum(e.op.info.cost for e in calls if not any(isinstance(a, Test) for a in e.args))


def slid_axes(part: Expr, value: ItemValue) -> set[Var]:
    """The axes of the value that share an index of the part with another one."""
    axes = {a.var for a in value.all_axes}
    return {v for i in main(part).index if len(on := variables(i) & axes) > 1 for v in on}


def _slides(e: Expr, summed: set[Var], axes: set[Var]) -> bool:
    pairs = [on for i in main(e).index if len((on := variables(i)) & axes) > 1]
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


def _turned(k: Kernel, value: ItemValue) -> tuple[Stage, ...]:
    """Copies along the lanes, where these are channels, of what is read across them, such as taps."""
    found: list[Stage] = []
    for load, order in across_lanes(k.algorithm, value):
        step = Stage(value.name, load, f"turned{len(found) or ''}", order)
        if step.check(k) is None:
            found.append(step)
    return tuple(found)


def _reads_along(k: Kernel, window: ItemValue, value: ItemValue, of: dict[Var, str], lane: str) -> bool:
    """True where what windows reach is read side by side along the axis of the results' lanes."""
    axis = next((v for v, name in of.items() if name == lane), None)
    if axis is None:  # the results are spread along it
        return False
    at = next(r for r in reads(k.algorithm.item(value.name)) if r.source == window.name).index
    along = [a.var for a, i in zip(window.axes, at, strict=True) if coefficient(i, axis) == 1]
    load = main(window.expr)
    p = k.algorithm.param(load.source)
    return p is not None and len(along) == 1 and coefficient(flatten(load.index, p.shape), along[0]) == 1


def loops_of(k: Kernel, found: OneReduction) -> dict[Var, str]:
    """The output's loop along each of the value's axes."""
    value, out = found.value, found.out
    load = next(r for r in reads(out) if r.source == value.name)
    bind = k.nests[out.name].bind
    at = {a.var: bind[i] for a, i in zip(value.axes, load.index, strict=True) if isinstance(i, Var)}
    return {v: loop.name for v, loop in at.items() if isinstance(loop, Var)}
