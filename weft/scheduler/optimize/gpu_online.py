"""Two products joined by a softmax (attention) on thread blocks, in one pass over tiles of columns.

    block (rows i):  q[i, :] -> LOCAL
      for jb:        k[jb, :], v[jb, :] -> LOCAL, in a ring where the device copies ahead
                     thread: s = q k^T                     registers, a tile per warp or thread
                             m_lanes = max of its columns  one number per row and lane
                     row:    m, and the factor by which it moved
                     thread: weights = exp(s - m); l_lanes, o *= factor; l_lanes += weights
                             o += weights v                registers
      row:    l = sum of l_lanes
      thread: store o / l

The form is `online`'s: any maximum, sums weighted by exp(x - maximum), a product among them. Both products run on
matrix units where the device has some for their factors; else each thread has a tile of its own. A maximum's part that
a thread finds goes to the others through LOCAL memory. Steps that a condition (a causal mask) keeps out do not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir.errors import IRError
from weft.ir.expr import Expr, Load, walk
from weft.ir.index import ceildiv, high, variables
from weft.ir.kernel.algorithm import Axis, ItemValue, reads
from weft.ir.kernel.decisions import pick
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.compute_first import ComputeFirst
from weft.ir.kernel.transforms.extend import Extend
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.online import OnlineReduce
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.kernel.transforms.stage import PadRows, Stage
from weft.ir.kernel.transforms.tensorize import Tensorize
from weft.ir.kernel.transforms.trim import Trim
from weft.ir.loops import LoopKind
from weft.ir.matrix import LayoutFactor, MatrixUnit, Role
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize.access import axes_of
from weft.scheduler.optimize.contraction_form import factors
from weft.scheduler.optimize.gpu_matrix import operand
from weft.scheduler.optimize.gpu_panels import ACCESS_BYTES, fill, is_near, share_out
from weft.scheduler.optimize.online import ReductionChain, axis_names, find, loop_of, shared_tiles
from weft.scheduler.optimize.rule import Choice, Rule
from weft.scheduler.optimize.steps import merge, split

ROWS = (128, 64, 32, 16)
"""Rows of a block, from the most reuse; the first that gives every multiprocessor a block is taken."""

COLUMNS = (64, 32, 16)
"""Columns of one step."""

MAX_WIDTH = 256
"""The results' own axis, at most: a warp's share of them stays in its registers."""

MAX_KEPT = 160
"""Scores (twice: as sums, and as weights) and results in the registers of one thread, at most."""

LANES = 16
"""Rows and columns of threads where there are no matrix units."""

OWN_RESULTS = 4
"""Neighbouring results of one such thread."""

UNROLLED_TERMS = 8
"""Terms of a product that such a thread has written out."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of a block's threads in `rows` x `columns` scores, and results: tiles of `tall` rows by `wide`
    scores or `own` results, factor by factor; `warp` rows for each warp (or the whole block)."""

    rows: int
    columns: int
    warp: int
    tall: int
    down: tuple[LayoutFactor, ...]
    wide: int
    across: tuple[LayoutFactor, ...]
    own: int
    along: tuple[LayoutFactor, ...]
    unit: MatrixUnit | None = None

    @property
    def lanes(self) -> int:
        """The threads that share one row."""
        return prod(d.extent for d in self.across if d.role is Role.LANE)

    @property
    def threads(self) -> int:
        return self.rows // self.warp * self.lanes * prod(d.extent for d in self.down if d.role is Role.LANE)

    def kept(self, width: int) -> int:
        """Elements that a thread keeps: its scores, its weights, and its share of `width` results."""
        return self.rows * (2 * self.columns + width) // self.threads

    @property
    def neighbours(self) -> int:
        """Scores of one row that are neighbours in one thread."""
        return self.across[-1].extent if self.across[-1].role is Role.ELEMENT else 1

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns} {f'on {self.unit}' if self.unit else 'by threads'}"


def on_units(rows: int, columns: int, unit: MatrixUnit) -> Shares:
    """A warp has all columns of the rows of one instruction."""
    u = unit
    return Shares(rows, columns, u.m, u.m, u.rows, u.n, u.columns, u.n, u.columns, unit)


def by_threads(rows: int, columns: int, width: int) -> Shares:
    """A thread has rows of its own, every so manieth score of them, and neighbouring results."""
    lanes = min(LANES, columns)
    down = min(LANES, rows)
    own = min(OWN_RESULTS, 1 << (max(1, width // lanes)).bit_length() - 1)
    element, lane = Role.ELEMENT, Role.LANE
    return Shares(
        rows, columns, rows, rows, (LayoutFactor(lane, down), LayoutFactor(element, rows // down)),
        lanes, (LayoutFactor(lane, lanes),), lanes * own, (LayoutFactor(lane, lanes), LayoutFactor(element, own)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attention:
    """A chain, by its sizes: rows, the chains beside each other, columns, products of a score, results of a row."""

    kernel: Kernel
    chain: ReductionChain
    height: int
    others: int
    length: int
    deep: int
    width: int


@dataclass(frozen=True)
class Steps(Choice):
    """Tiles that fit into a block, the preferred first."""

    decision = "gpu_online.tile"

    kernel: Kernel
    tiles: tuple[Shares, ...]

    def text(self, made: Kernel) -> str:
        """The first whose transforms apply."""
        return f"one pass, scores in tiles of {self.tiles[0]}, {self.tiles[0].threads} threads"


def recognise(k: Kernel, info: DeviceInfo) -> Attention | Refusal:
    """Such a chain, on a device whose threads share memory."""
    c = find(k)
    if isinstance(c, Refusal):
        return c
    values = (c.scores, c.maximum, c.total, c.product)
    unsized = [a.var.name for v in values for a in v.all_axes if not isinstance(a.extent, int)]
    if unsized:
        return Refusal(f"the size of {unsized[0]} is only known at run time")
    if not info.scratchpad:
        return Refusal("the device's threads share no memory")
    assert c.maximum.reduce is not None and c.scores.reduce is not None and c.product.reduce is not None
    if not c.maximum.axes:
        return Refusal(f"{c.maximum.name} has no rows")
    if len(c.scores.reduce.axes) != 1 or len(c.product.reduce.axes) != 1:
        return Refusal("a product sums over several axes")
    width = high(c.product.axes[-1].extent)
    if width > MAX_WIDTH:
        return Refusal(f"{width:,} results in a row; pays up to {MAX_WIDTH}")
    others = prod(high(a.extent) for a in c.maximum.axes[:-1])
    length, deep = high(c.maximum.reduce.axes[0].extent), high(c.scores.reduce.axes[0].extent)
    return Attention(k, c, high(c.maximum.axes[-1].extent), others, length, deep, width)


def choose(form: Attention, info: DeviceInfo) -> Steps | Refusal:
    """The tiles of the preferred unit that give every multiprocessor a block, then its smallest, then other units'."""
    found: list[Shares] = []
    for unit in (*(u for u in info.matrix_units if not u.row_bytes), None):
        fits = [s for s in _tiles(form, unit) if _has_room(s, form, info)]
        busy = [s for s in fits if ceildiv(form.height, s.rows) * form.others >= info.cores]
        found += sorted(busy, key=lambda s: -s.columns)
        found += sorted(fits, key=lambda s: (s.rows, -s.columns))
    if not found:
        return Refusal(f"no tile fits into {info.local_bytes:,} bytes of local memory")
    tiles = list(dict.fromkeys(found))
    k, first = pick(form.kernel, "gpu_online.tile", tiles)
    return Steps(k, (first, *(t for t in tiles if t != first)))


def apply(form: Attention, choice: Steps, info: DeviceInfo) -> Kernel | Refusal:
    """The first of the tiles whose transforms all apply: later ones may be plainer."""
    why = Refusal("no tile")
    for shares in choice.tiles:
        try:
            made = _Blocks(choice.kernel, form.chain, shares).schedule()
        except IRError as error:
            made = Refusal(str(error))
        if isinstance(made, Kernel):
            return made
        why = made
    return why


RULE = Rule("gpu_online", recognise, choose, apply)


def _tiles(form: Attention, unit: MatrixUnit | None) -> Iterator[Shares]:
    """Tiles of whole instructions, or of a thread's own results, that are not far larger than the chain."""
    if unit is not None and (form.deep % unit.k or not _multiplies(form.chain, unit)):
        return
    for columns in COLUMNS:
        if unit is not None and (columns % (2 * unit.n) or columns % unit.k):
            continue
        if columns >= 2 * form.length and columns > LANES:
            continue
        for rows in ROWS:
            if (rows >= 2 * form.height and rows > LANES) or (unit is None and rows > ROWS[1]):
                continue
            yield on_units(rows, columns, unit) if unit else by_threads(rows, columns, form.width)


def _has_room(s: Shares, form: Attention, info: DeviceInfo) -> bool:
    """Local memory holds the panels, a block the threads, and a thread's registers its share."""
    size = local_bytes(s, form.deep, form.width, form.chain.scores.dtype.itemsize)
    return size <= info.local_bytes and s.threads <= info.bounds.threads and s.kept(form.width) <= MAX_KEPT


def _multiplies(c: ReductionChain, unit: MatrixUnit) -> bool:
    """All factors of both products are what the unit multiplies."""
    pairs = (factors(c.scores), factors(c.product))
    return all(
        not isinstance(pair, Refusal)
        and v.dtype is unit.accumulator
        and not any(isinstance(operand(f, unit), Refusal) for f in pair)
        for v, pair in zip((c.scores, c.product), pairs, strict=True)
    )


def local_bytes(s: Shares, deep: int, width: int, itemsize: int) -> int:
    """The bytes that a block keeps in LOCAL memory."""
    size = s.unit.operand.itemsize if s.unit is not None else itemsize
    pad = ACCESS_BYTES // size
    panels = (s.rows + s.columns) * (deep + pad) + s.columns * (width + pad) + s.rows * (s.columns + pad)
    return panels * size + s.rows * (3 + 2 * s.lanes) * 4 + 9 * 64  # each rounded up


class _Blocks:
    def __init__(self, k: Kernel, chain: ReductionChain, shares: Shares) -> None:
        self.k, self.chain, self.shares = k, chain, shares
        self.m, self.total, self.product = chain.maximum.name, chain.total.name, chain.product.name
        self.scores, self.out = chain.scores.name, chain.out.name
        self.unit = shares.unit
        self.itemsize = self.unit.operand.itemsize if self.unit is not None else chain.scores.dtype.itemsize

    def schedule(self) -> Kernel | Refusal:
        prepared = shared_tiles(self.k, self.chain)
        if isinstance(prepared, Refusal):
            return prepared
        self.k = prepared
        extended = self.extend() if self.unit is not None else None
        if extended is not None:
            return extended
        panels = self.stage()
        if isinstance(panels, Refusal):
            return panels
        block = self.output()
        if isinstance(block, Refusal):
            return block
        queries, columns = panels
        for item in self.chain.beside:
            self.k = run(self.k, ComputeAt(item.name, self.out, block))
            self.k = run(self.k, *(Bind(n, LoopKind.THREAD) for n in self.loops(item.name, False)))
        self.split_reductions()
        names = [i.name for i in self.k.algorithm.items if isinstance(i, ItemValue)]
        inner = [n for n in names if n not in queries and n not in columns and n != self.scores]
        for name in reversed(inner):  # readers before what they read
            self.k = run(self.k, ComputeAt(name, self.out, block))
        at = self.online() if self.steps > 1 else (self.out, block)
        follow = {self.m, self.total, f"{self.total}_lanes", self.product}
        for name in reversed([n for n in inner if n not in follow]):
            self.k = run(self.k, ComputeAt(name, *at))
        self.k = run(self.k, ComputeAt(self.scores, *at))
        for name in columns:
            self.k = run(self.k, ComputeAt(name, *at))
        for name in queries:
            self.k = run(self.k, ComputeAt(name, self.out, block))
        self.tiles()
        for name in (*columns, *queries):
            self.k = run(self.k, PadRows(name, ACCESS_BYTES // self.itemsize))
            self.k = fill(self.k, name, self.shares.threads, self.itemsize)
        for name in columns:
            self.k = attempt(self.k, ComputeFirst(name))
        return attempt(self.k, Trim(self.m, at[1])) if self.steps > 1 else self.k

    def extend(self) -> Refusal | None:
        """Whole steps over the columns: an instruction has no conditions on its terms."""
        reduce = self.value(self.m).reduce
        assert reduce is not None
        length = high(reduce.axes[0].extent)
        whole = self.steps * self.shares.columns
        if whole == length:
            return None
        staged = self.value("scores")
        (load,) = [r for r in reads(staged) if r.source == self.scores][:1]
        column = self.axis_read(load, staged.axes[-1])
        if isinstance(column, Refusal):
            return column
        axes = [(self.scores, column.var.name), ("scores", staged.axes[-1].var.name)]
        axes.append(("weights", self.value("weights").axes[-1].var.name))
        axes += [(n, self.summed(n)) for n in (self.m, self.total, self.product)]
        self.k = run(self.k, Extend("scores", tuple(axes), whole))
        return None

    @property
    def steps(self) -> int:
        assert self.chain.maximum.reduce is not None
        return ceildiv(high(self.chain.maximum.reduce.axes[0].extent), self.shares.columns)

    def value(self, name: str) -> ItemValue:
        item = self.k.algorithm.item(name)
        assert isinstance(item, ItemValue)
        return item

    # values

    def stage(self) -> tuple[list[str], list[str]] | Refusal:
        """Panels of the factors, and the weights as the second product takes them: the names of those that depend on
        rows, and of those that depend on columns."""
        pair, second = factors(self.value(self.scores)), factors(self.value(self.product))
        staged = self.value("scores")
        loads = [r for r in reads(staged) if r.source == self.scores]
        assert not isinstance(pair, Refusal)
        if isinstance(second, Refusal):
            return second
        if len(loads) != 1:
            return Refusal(f"scores read {self.scores} {len(loads)} times")
        row, column = (self.axis_read(loads[0], staged.axes[k]) for k in (-2, -1))
        if isinstance(row, Refusal):
            return row
        if isinstance(column, Refusal):
            return column
        sides = [next((n for n in (0, 1) if a.var in axes_of(pair[n])), None) for a in (row, column)]
        if sorted(n for n in sides if n is not None) != [0, 1]:
            return Refusal(f"rows and columns of {self.scores} are not those of one factor each")
        names: list[str] = []
        for n, axis, name in zip(sides, (row, column), ("rows_panel", "columns_panel"), strict=True):
            assert n is not None
            self.panel(self.scores, self.part(pair[n]), axis, name)
            names.append(name)
        weights = [n for n in (0, 1) if self.reads_weights(second[n])]
        if len(weights) != 1:
            return Refusal(f"{len(weights)} factors of {self.product} are weights; it is for one")
        (weight,) = weights
        part = self.part(second[weight])
        if not isinstance(part, Load):
            self.k = run(self.k, Stage(self.product, part, "factor", self.axes(self.product)))
        self.panel(
            self.product, self.part(second[1 - weight]), self.value(self.product).axes[-1], "values_panel"
        )
        return names[:1], [names[1], "values_panel"]

    def part(self, factor: Expr) -> Expr:
        found = operand(factor, self.unit) if self.unit is not None else factor
        assert not isinstance(found, Refusal)
        return found

    def axes(self, name: str) -> tuple[str, ...]:
        return axis_names(self.chain, self.value(name))

    def axis_read(self, load: Load, axis: Axis) -> Axis | Refusal:
        """The axis of the loaded value that is read at the plain number of `axis`."""
        at = [k for k, i in enumerate(load.index) if not isinstance(i, int) and axis.var in variables(i)]
        if len(at) == 1 and load.index[at[0]] == axis.var:
            return self.value(load.source).axes[at[0]]
        return Refusal(f"{load.source} is not read at the plain number of {axis.var.name}")

    def reads_weights(self, e: Expr) -> bool:
        return any(isinstance(x, Load) and x.source == "weights" for x in walk([e]))

    def panel(self, item: str, part: Expr, tiled: Axis, name: str) -> None:
        """A factor as a panel, the axis innermost that its memory is contiguous along, else the summed one."""
        value = self.value(item)
        assert value.reduce is not None
        deep = value.reduce.axes[0]
        names = [a.var.name for a in value.all_axes if a.var in axes_of(part)]
        near = is_near(self.k, part, tiled.var) and not is_near(self.k, part, deep.var)
        inner = tiled if near or deep.var.name not in names else deep
        last = [n for n in (tiled.var.name, deep.var.name) if n in names and n != inner.var.name]
        order = (*(n for n in names if n not in (*last, inner.var.name)), *last, inner.var.name)
        self.k = run(self.k, Stage(item, part, name, order))

    def split_reductions(self) -> None:
        """The maximum and the sum in steps, and each step by lanes."""
        s = self.shares
        per_lane = s.columns // (s.lanes * s.neighbours)
        step = self.m
        if self.steps > 1:
            step = f"{self.m}_block"
            self.k = run(self.k, SplitReduce(self.m, self.summed(self.m), s.columns, step))
        self.by_lanes(step, self.m)
        self.by_lanes(self.total, self.total)
        if self.steps > 1 and per_lane > 1:
            lanes = f"{self.total}_lanes"
            self.k = run(self.k, SplitReduce(lanes, self.summed(lanes), per_lane, f"{self.total}_step"))

    def by_lanes(self, name: str, stem: str) -> None:
        s = self.shares
        if s.neighbours > 1:
            self.k = run(self.k, SplitReduce(name, self.summed(name), s.neighbours, f"{stem}_pairs"))
        self.k = run(self.k, SplitReduce(name, self.summed(name), s.lanes, f"{stem}_lanes", True))

    def summed(self, name: str) -> str:
        reduce = self.value(name).reduce
        assert reduce is not None
        return reduce.axes[-1].var.name

    # loops

    def loops(self, name: str, reduce: bool) -> list[str]:
        return [x.var.name for x in self.k.nests[name].loops if x.reduce is reduce]

    def output(self) -> str | Refusal:
        """Blocks of rows, and the threads' shares of the results; the blocks' loop."""
        c, s = self.chain, self.shares
        rows, inner = c.product.axes[len(c.maximum.axes) - 1], c.product.axes[-1]
        i, d = loop_of(self.k, c, rows), loop_of(self.k, c, inner)
        if isinstance(i, Refusal):
            return i
        if isinstance(d, Refusal):
            return d
        others = [x.var.name for x in self.k.nests[self.out].loops if x.var.name not in (i, d)]
        self.k = run(self.k, Pad(i, s.rows), Pad(d, s.own))
        self.k, ib, i = split(self.k, i, s.rows, "ib", "ir")
        threads, own = self.share(i, d, s.own, s.along)
        self.k = run(self.k, Permute(self.out, (*others, ib, *threads, *own)))
        block = ib
        for n in reversed(others):
            self.k, block = merge(self.k, n, block)
        self.k = run(self.k, Bind(block, LoopKind.BLOCK))
        self.mark(threads, own[:-1])
        self.k = attempt(self.k, Vectorize(own[-1]))
        return block

    def share(
        self, i: str, j: str, wide: int, across: tuple[LayoutFactor, ...]
    ) -> tuple[list[str], list[str]]:
        """Rows and columns as threads, and what each has."""
        s = self.shares
        self.k, warps, rows, row_lanes = share_out(self.k, i, s.warp, s.tall, s.down)
        self.k, tiles, rest = split(self.k, j, wide, f"{j}m", f"{j}u")
        columns, lanes = [tiles], list[str]()
        size = wide
        for at, d in enumerate(across):
            name = rest
            size //= d.extent
            if at + 1 < len(across):
                self.k, name, rest = split(self.k, rest, size, f"{j}d", f"{j}q")
            (lanes if d.role is Role.LANE else columns).append(name)
        return [warps, *row_lanes, *lanes], [*rows, *columns]

    def mark(self, threads: list[str], own: list[str]) -> None:
        self.k = run(self.k, *(Bind(n, LoopKind.THREAD) for n in threads), *(Unroll(n) for n in own))

    def online(self) -> tuple[str, str]:
        """The maximum's loop over steps, with the sums running beside it: where steps are computed."""
        s = self.shares
        (steps,) = self.loops(self.m, True)
        self.k = run(self.k, Permute(self.m, (steps, *self.loops(self.m, False))))
        lanes = f"{self.total}_lanes"
        self.k = run(self.k, OnlineReduce(self.m, lanes, steps, self.loops(lanes, True)[0]))
        (deep,) = self.loops(self.product, True)
        self.k = run(self.k, Pad(deep, s.columns))
        self.k, own, _ = split(self.k, deep, s.columns, "jb", "jj")
        self.k = run(self.k, OnlineReduce(self.m, self.product, steps, own))
        return self.m, steps

    def tiles(self) -> None:
        """The threads' shares of each value."""
        s = self.shares
        for name in (self.m, f"{self.m}_block", self.total):  # a thread per row
            if name in self.k.nests:
                for n in self.loops(name, False):
                    self.k = run(self.k, Bind(n, LoopKind.THREAD))
                for n in self.loops(name, True):
                    if name != self.m or self.steps == 1:
                        self.k = attempt(self.k, Unroll(n))
        for stem in (self.m, self.total):
            for kind in ("lanes", "step"):
                if f"{stem}_{kind}" in self.k.nests:
                    self.lane_values(f"{stem}_{kind}")
            if f"{stem}_pairs" in self.k.nests:
                self.elements(f"{stem}_pairs", s.wide // s.neighbours, s.across[:-1])
        shared = "factor" if "factor" in self.k.nests else "weights"
        for name in ("scores", "weights", "factor"):
            if name in self.k.nests:  # neighbours are rounded together, and go to shared memory as one word
                self.elements(name, s.wide, s.across, name in ("scores", shared) and s.neighbours > 1)
        self.k = run(self.k, PadRows(shared, ACCESS_BYTES // self.itemsize))
        self.multiply(self.scores, s.wide, s.across)
        self.multiply(self.product, s.own, s.along)

    def lane_values(self, name: str) -> None:
        """One number per row and lane."""
        s = self.shares
        *_, i, t = self.loops(name, False)
        self.k, warps, rows, lanes = share_out(self.k, i, s.warp, s.tall, s.down)
        reduced = self.loops(name, True)
        self.k = run(self.k, Permute(name, (warps, *lanes, t, *rows, *reduced)))
        self.mark([warps, *lanes, t], [*rows, *reduced])

    def elements(self, name: str, wide: int, across: tuple[LayoutFactor, ...], vector: bool = False) -> None:
        """A number per score, or per few; a thread's neighbours as a vector if asked."""
        *_, i, j = self.loops(name, False)
        threads, own = self.share(i, j, wide, across)
        reduced = self.loops(name, True)
        self.k = run(self.k, Permute(name, (*threads, *own, *reduced)))
        if vector:
            self.k = attempt(self.k, Vectorize(own.pop()))
        self.mark(threads, [*own, *reduced])

    def multiply(self, name: str, wide: int, across: tuple[LayoutFactor, ...]) -> None:
        """A product: on matrix units, or by each thread for its own tile."""
        *_, i, j = self.loops(name, False)
        (deep,) = self.loops(name, True)
        if self.unit is None:
            spec = self.k.nests[name].loop(deep)
            assert spec is not None
            self.k, outer, term = split(
                self.k, deep, UNROLLED_TERMS if high(spec.extent) % UNROLLED_TERMS == 0 else 1, "ks", "kt"
            )
            threads, own = self.share(i, j, wide, across)
            self.k = run(self.k, Permute(name, (*threads, outer, term, *own)))
            self.mark(threads, [term, *own])
            return
        self.k, tiles, term = split(self.k, deep, self.unit.k, "km", "kk")
        threads, own = self.share(i, j, wide, across)
        self.k = run(self.k, Permute(name, (*threads, tiles, *own, term)))
        self.mark(threads, [tiles, *own])
        self.k = run(self.k, Tensorize(term, self.unit))
