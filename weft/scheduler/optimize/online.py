"""Chains of reductions over one axis that join two contractions, in one pass over tiles (attention).

    s(i, j) = sum d: q[i, d] * k[j, d]          per block of rows i, for each block of columns j:
    m(i) = max j: f(s(i, j))                        scores = f(q k^T), a tile
    l(i) = sum j: exp(f(s) - m)               ->    m, and the factor by which it moved
    o(i, d) = sum j: exp(f(s) - m) / l * v[j, d]    weights = exp(scores - m), a tile
                                                    l, o rescaled, and the tile's part added

No row of scores is ever whole in memory (Dao et al. 2022, "FlashAttention", arXiv:2205.14135). The rule asks for the
form of the algorithm, not for attention: any maximum, sums weighted by exp(x - maximum), and a product among them.
"""

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.expr import Expr, ScalarCall
from weft.ir.graph import elements
from weft.ir.index import Var, ceildiv, high, substitute, variables
from weft.ir.kernel.algorithm import Axis, ItemValue, Output, readers, reads
from weft.ir.kernel.decisions import pick
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.clip import Clip
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.factor import Factor
from weft.ir.kernel.transforms.hint import PrefetchNext
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.merge import Merge
from weft.ir.kernel.transforms.online import OnlineReduce, running
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.share import Share
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.kernel.transforms.stage import Arrange, Stage
from weft.ir.kernel.transforms.trim import Trim
from weft.ir.loops import Scope
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize import rows
from weft.scheduler.optimize.access import axes_of
from weft.scheduler.optimize.contraction_form import factors, fill
from weft.scheduler.optimize.rule import Choice, Rule, counted
from weft.scheduler.optimize.steps import extent, merge, split

BLOCK_VECTORS = 4
"""Columns of a tile of scores, in SIMD registers."""

GUARD_FACTOR = 1.1
"""The time factor of a tile whose rows may lie outside."""

BLOCK_TILES = 16
"""Register tiles per block of rows."""

MAX_TILE_ROWS = 8
"""Rows of a register tile."""

MAX_WIDTH_VECTORS = 16
"""Vectors of a row of results, at most: it is rescaled whenever the maximum moves."""


@dataclass(frozen=True, slots=True)
class ReductionChain:
    """The maximum, the plain sum, the weighted product, what the scores are computed by, and who reads the results.
    `beside`: outputs of the rows' maximum and sum, computed in the loops of `out`."""

    maximum: ItemValue
    total: ItemValue
    product: ItemValue
    scores: ItemValue
    out: Output
    beside: tuple[Output, ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """A chain with the axis of its rows, and the kernel whose items share scores and weights."""

    kernel: Kernel
    chain: ReductionChain
    row: Axis


@dataclass(frozen=True)
class OnePass(Choice):
    """Tiles of `tall` rows in registers, by blocks of `vectors` vectors of columns, or `across` results."""

    decision = "online.rows"

    kernel: Kernel
    tall: int
    vectors: int
    columns: int
    across: int

    def __str__(self) -> str:
        return f"one pass over blocks of {self.columns} columns, tile {self.tall}x{self.vectors} vectors"


def find(k: Kernel) -> ReductionChain | Refusal:
    """The chain that the kernel is."""
    values = [i for i in k.algorithm.items if isinstance(i, ItemValue)]
    outputs = [i for i in k.algorithm.items if isinstance(i, Output)]
    carried = {c.source for o in outputs for c in o.carries}
    mains = [o for o in outputs if o.name not in carried]
    if len(values) != 4 or len(mains) != 1 or any(v.reduce is None for v in values):
        reductions = sum(v.reduce is not None for v in values)
        return Refusal(
            f"{counted(reductions, 'reduction')} and {counted(len(mains), 'output')}; a chain has 4 and 1"
        )
    top = [v for v in values if v.reduce is not None and v.reduce.op is Op.MAX]
    if len(top) != 1 or top[0].reduce is None or len(top[0].reduce.axes) != 1:
        return Refusal(f"{len(top)} of 4 reductions take a maximum over one axis; in a chain one does")
    m = top[0]
    sources = {r.source for r in reads(m) if k.algorithm.param(r.source) is None}
    scores = [v for v in values if v.name in sources and _is_product(v)]
    if len(scores) != 1:
        return Refusal(f"{m.name} is the maximum of no sum of products")
    sums = [v for v in values if any(r.source == m.name for r in reads(v))]
    totals = [v for v in sums if len(v.axes) == len(m.axes)]
    products = [v for v in sums if _is_product(v) and len(v.axes) == len(m.axes) + 1]
    if len(totals) != 1 or len(products) != 1:
        return Refusal(
            f"{len(totals)} sums and {len(products)} sums of products read {m.name}; a chain has one of each"
        )
    if len({m.name, scores[0].name, totals[0].name, products[0].name}) != 4:
        return Refusal(f"{m.name}, its sum and its products are not four values")
    beside = tuple(o for o in outputs if o is not mains[0])
    used = {r.source for o in beside for r in reads(o)} & {scores[0].name, products[0].name}
    if used:
        return Refusal(
            f"{min(used)} is read by an output of rows; these may read {m.name} and {totals[0].name}"
        )
    return ReductionChain(m, totals[0], products[0], scores[0], mains[0], beside)


def _is_product(value: ItemValue) -> bool:
    return not isinstance(factors(value), Refusal)


def recognise(k: Kernel, info: DeviceInfo) -> Rows | Refusal:
    """Such a chain, with results that are narrow enough to be rescaled."""
    chain = find(k)
    if isinstance(chain, Refusal):
        return chain
    row, inner = chain.maximum.axes[-1] if chain.maximum.axes else None, chain.product.axes[-1]
    if row is None:
        return Refusal(f"{chain.maximum.name} has no rows")
    most = MAX_WIDTH_VECTORS * info.lanes(chain.maximum.dtype)
    if high(inner.extent) > most:
        return Refusal(f"{high(inner.extent):,} results in a row; pays up to {most}")
    shared = shared_tiles(k, chain)
    if isinstance(shared, Refusal):
        return shared
    k = shared
    for axis in (chain.product.axes[len(chain.maximum.axes) - 1], inner):
        loop = loop_of(k, chain, axis)
        if isinstance(loop, Refusal):
            return loop
    return Rows(k, chain, row)


def choose(form: Rows, info: DeviceInfo) -> OnePass:
    """Blocks of a few vectors of columns, and as many rows as registers hold beside them."""
    c = form.chain
    assert c.maximum.reduce is not None
    lanes = info.lanes(c.maximum.dtype)
    columns, inner = high(c.maximum.reduce.axes[0].extent), high(c.product.axes[-1].extent)
    most = ceildiv(columns, lanes)
    widths = list(dict.fromkeys(min(n, most) for n in (BLOCK_VECTORS, 1, 2, 8)))
    k, vectors = pick(form.kernel, "online.columns", widths)
    across = _padded(inner, lanes)
    wide = max(vectors, across // lanes)
    if columns > lanes * vectors and _most_rows(wide, info) < 2 and across % (lanes * vectors) == 0:
        wide, across = (
            vectors,
            lanes * vectors,
        )  # results are cut, for one row's sums would wait for each other
    k, tall = pick(k, "online.rows", *_rows_per_tile(high(form.row.extent), _most_rows(wide, info)))
    return OnePass(k, tall, vectors, lanes * vectors, across)


def _padded(results: int, lanes: int) -> int:
    """A row of so many results in steps of some vectors, the last of which may not be full."""
    step = lanes * min(BLOCK_VECTORS, ceildiv(results, lanes))
    return ceildiv(results, step) * step


def apply(form: Rows, choice: OnePass, info: DeviceInfo) -> Kernel:
    """The chain in one pass."""
    return _OnePass(form, choice, info).schedule()


RULE = Rule("online", recognise, choose, apply)


def shared_tiles(k: Kernel, c: ReductionChain) -> Kernel | Refusal:
    """The division after the sum; `scores` and `weights` as values that all items share."""
    m, total, product = c.maximum.name, c.total.name, c.product.name
    k = attempt(k, Factor(product))
    k = run(k, Stage(m, c.maximum.expr, "scores", axis_names(c, c.maximum)))
    k = run(k, *(Share(item.name, "scores", axis_names(c, item)) for item in (c.total, c.product)))
    part = next((e for e in ex.walk(k.algorithm.item(total).exprs()) if _is_weight(e, m)), None)
    if part is None:
        return Refusal(f"{total} adds no exponentials of differences to {m}")
    k = run(k, Stage(total, part, "weights", axis_names(c, c.total)))
    return run(k, Share(product, "weights", axis_names(c, c.product)))


def loop_of(k: Kernel, c: ReductionChain, axis: Axis) -> str | Refusal:
    """The output's loop over an axis of the product."""
    load = next(r for r in reads(k.algorithm.item(c.out.name)) if r.source == c.product.name)
    at = load.index[[a.var for a in c.product.axes].index(axis.var)]
    e = substitute(at, k.nests[c.out.name].bind)
    if isinstance(e, Var):
        return e.name
    return Refusal(f"{c.out.name} has no loop along {axis.var.name} of {c.product.name}")


def _is_weight(e: Expr, maximum: str) -> bool:
    if not isinstance(e, ScalarCall) or e.op is not Op.EXP:
        return False
    d = e.args[0]
    return isinstance(d, ScalarCall) and d.op is Op.SUB and running(d.args[1], maximum)


def axis_names(c: ReductionChain, item: ItemValue) -> tuple[str, ...]:
    """Rows, then the summed axis."""
    assert item.reduce is not None
    return (*(a.var.name for a in item.axes[: len(c.maximum.axes)]), item.reduce.axes[0].var.name)


class _OnePass:
    def __init__(self, form: Rows, choice: OnePass, info: DeviceInfo) -> None:
        chain = form.chain
        self.k, self.chain, self.row, self.choice, self.info = choice.kernel, chain, form.row, choice, info
        self.m, self.total, self.product = chain.maximum.name, chain.total.name, chain.product.name
        self.out = chain.out.name
        assert chain.maximum.reduce is not None
        self.columns = chain.maximum.reduce.axes[0]

    def schedule(self) -> Kernel:
        c, tall, width = self.chain, self.choice.tall, self.choice.columns
        assert c.maximum.reduce is not None
        around, outer, tile = self.output(tall, _rows_per_block(high(self.row.extent), tall))
        for item in c.beside:
            self.k = run(self.k, ComputeAt(item.name, self.out, outer))
            self.k = attempt(self.k, Vectorize(self.k.nests[item.name].loops[-1].var.name))
        if high(c.maximum.reduce.axes[0].extent) <= width:
            self.whole(outer, tile, width)
            self.tiles(outer, around, tall, (self.out, outer))
        else:
            blocks = self.online(outer, width)
            self.product_tiles(tall)
            self.tiles(outer, around, tall, (self.m, blocks))
            self.k = attempt(self.k, Trim(self.m, blocks))
        return self.k

    def whole(self, outer: str, tile: str, width: int) -> None:
        """Rows that fit into one tile need no second step: each value is computed once per block of rows."""
        self.k = run(self.k, ComputeAt(self.product, self.out, tile, Scope.REGISTER))
        self.register_tile(self.product)
        for name in (self.total, "weights", self.m):
            self.k = run(self.k, ComputeAt(name, self.out, outer))
        for name in (self.m, self.total):
            j = next((s.var.name for s in self.k.nests[name].loops if s.reduce), None)
            if j is not None:
                self.k = run(self.k, Pad(j, width))
                self.k = attempt(self.k, Vectorize(j))

    def output(self, tall: int, block: int) -> tuple[list[str], str, str]:
        """Blocks of rows outside, lanes along the product's own axis inside: (loops around, blocks, tiles in them)."""
        axes = self.chain.product.axes
        i, d = (loop_of(self.k, self.chain, a) for a in (axes[len(self.chain.maximum.axes) - 1], axes[-1]))
        assert isinstance(i, str) and isinstance(d, str)
        others = [s.var.name for s in self.k.nests[self.out].loops if s.var.name not in (i, d)]
        self.k = run(self.k, Pad(i, block))
        self.k, ib, i1 = split(self.k, i, block, "ib", "ir")
        self.k, it, ii = split(self.k, i1, tall, "it", "ii")
        if not isinstance(self.row.extent, int):
            self.k = attempt(self.k, Clip(it))
        self.k = run(self.k, Permute(self.out, (*others, ib, it, ii, d)))
        self.k = rows.lanes(self.k, d, self.lanes_of(axes[-1]))
        return others, ib, it

    def lanes_of(self, inner: Axis) -> int:
        lanes = self.info.lanes(self.chain.maximum.dtype)
        return min(lanes * BLOCK_VECTORS, lanes * ceildiv(high(inner.extent), lanes))

    def online(self, outer: str, width: int) -> str:
        """The maximum's loop over blocks of columns, with the sums running beside it; its name."""
        c = self.chain
        assert c.product.reduce is not None and c.total.reduce is not None
        self.k = run(self.k, SplitReduce(self.product, c.product.reduce.axes[0].var.name, width, "part"))
        for name in (self.product, "part", self.total, "weights", self.m):  # readers before what they read
            self.k = run(self.k, ComputeAt(name, self.out, outer))
        blocks: dict[str, str] = {}
        within: dict[str, str] = {}
        for name in (self.m, self.total):
            j = next(s.var.name for s in self.k.nests[name].loops if s.reduce)
            self.k = run(self.k, Pad(j, width))
            self.k, jo, ji = split(self.k, j, width, "jb", "jj")
            blocks[name], within[name] = jo, ji
            order = [jo, *(s.var.name for s in self.k.nests[name].loops if s.var.name not in (jo, ji)), ji]
            self.k = run(self.k, Permute(name, tuple(order)))
        own = next(s.var.name for s in self.k.nests[self.product].loops if s.reduce)
        self.k = run(self.k, OnlineReduce(self.m, self.total, blocks[self.m], blocks[self.total]))
        self.k = run(self.k, OnlineReduce(self.m, self.product, blocks[self.m], own))
        for name in (self.m, self.total):
            self.k = attempt(self.k, Vectorize(within[name]))
        return blocks[self.m]

    def product_tiles(self, tall: int) -> None:
        """The part of the product that one block of columns adds, in register tiles."""
        *around, i, d = (s.var.name for s in self.k.nests[self.product].loops)
        self.k, it, ii = split(self.k, i, tall, "ot", "oi")
        if extent(self.k, d) > self.choice.across:
            self.k, dt, d = split(self.k, d, self.choice.across, "dt", "di")
            self.k = run(self.k, Permute(self.product, (*around, it, dt, ii, d)))
            it = dt
        self.k = run(self.k, ComputeAt("part", self.product, it, Scope.REGISTER))
        self.register_tile("part")
        if not isinstance(self.columns.extent, int):
            steps = next(s.var.name for s in self.k.nests["part"].loops if s.reduce)
            self.k = attempt(self.k, Trim("part", steps))
        self.k = run(self.k, Unroll(ii))
        self.k = rows.lanes(self.k, d, min(extent(self.k, d), self.lanes_of(self.chain.product.axes[-1])))

    def tiles(self, outer: str, around: list[str], tall: int, at: tuple[str, str]) -> None:
        """Tasks; scores and weights at `at`, in register tiles; the panel of the second factor packed."""
        batch = around[0] if around else None
        for inner in around[1:]:
            assert batch is not None
            self.k, batch = merge(self.k, batch, inner)
        many = batch is not None and extent(self.k, batch) >= 2 * self.info.cores
        if not many and batch is not None:
            step = Merge(batch, outer, f"{batch}_{outer}")
            if step.check(self.k) is None:
                self.k, batch = merge(self.k, batch, outer)
                outer = batch
        task = batch if batch is not None else outer
        self.k = attempt(self.k, Bind(task, self.info.task_kind))
        scores = self.chain.scores
        if at[0] == self.out:
            at = (self.out, outer)
        self.k = run(self.k, ComputeAt("weights", *at))
        self.k = attempt(self.k, Vectorize(self.k.nests["weights"].loops[-1].var.name))
        panel = self.panel(scores)
        self.k = run(self.k, ComputeAt("scores", *at))
        loops = [s.var.name for s in self.k.nests["scores"].loops]
        self.k, it, ii = split(self.k, loops[-2], tall, "st", "si")
        self.k = run(self.k, ComputeAt(scores.name, "scores", it, Scope.REGISTER))
        self.register_tile(scores.name)
        self.k = run(self.k, Unroll(ii), Vectorize(self.k.nests["scores"].loops[-1].var.name))
        self.k = attempt(self.k, PrefetchNext("scores", it))
        if not isinstance(panel, Refusal):
            where = (self.out, batch) if many and batch is not None and self.panel_fits() else at
            self.k = run(self.k, ComputeAt(panel, where[0], where[1]))
            self.in_blocks(panel, extent(self.k, self.k.nests[scores.name].loops[-1].var.name))
            self.k = fill(self.k, panel, self.info)

    def panel_fits(self) -> bool:
        """The panel of all columns, if their number is only known at run time, stays in the cache however many."""
        scores = self.chain.scores
        if isinstance(self.columns.extent, int) or scores.reduce is None:
            return True
        size = high(self.columns.extent) * high(elements(tuple(a.extent for a in scores.reduce.axes)))
        return size * scores.dtype.itemsize <= self.info.l2_bytes

    def in_blocks(self, panel: str, width: int) -> None:
        """The panel's columns in blocks of a tile's width, each block contiguous: rows of a tile far apart would share
        the cache's sets."""
        nest = self.k.nests[panel]
        rank = len(nest.size)
        if rank < 2 or nest.size[-1] <= width or nest.size[-1] % width or not nest.loops:
            return
        order = (*range(rank - 2), rank - 1, rank - 2)
        self.k = run(self.k, Arrange(panel, Scope.LOCAL, order, (*[1] * (rank - 1), width)))
        self.k, _, _ = split(self.k, nest.loops[-1].var.name, width, "pb", "pc")

    def register_tile(self, name: str) -> None:
        """Sums outside, then rows written out, then lanes."""
        nest = self.k.nests[name]
        pure = [s.var.name for s in nest.loops if not s.reduce]
        reduced = [s.var.name for s in nest.loops if s.reduce]
        self.k = run(self.k, Permute(name, (*reduced, *pure)))
        for n in pure[:-1]:
            self.k = run(self.k, Unroll(n))
        self.k = attempt(self.k, Vectorize(pure[-1]))

    def panel(self, scores: ItemValue) -> str | Refusal:
        """The scores' factor that depends on the columns, staged with the columns innermost."""
        pair = factors(scores)
        assert not isinstance(pair, Refusal) and scores.reduce is not None
        users = readers(self.k.algorithm, scores.name)
        load = next(r for r in reads(users[0]) if r.source == scores.name)
        staged = self.k.algorithm.item("scores")
        assert isinstance(staged, ItemValue)
        column = staged.axes[-1].var
        at = [k for k, i in enumerate(load.index) if column in variables(i)]
        if len(at) != 1:
            return Refusal(f"columns of scores are in {len(at)} indices of {scores.name}")
        axis = scores.axes[at[0]]
        part = next((f for f in pair if axis.var in axes_of(f)), None)
        if part is None:
            return Refusal(f"no factor of {scores.name} depends on {axis.var.name}")
        summed = [a.var.name for a in scores.reduce.axes]
        names = [a.var.name for a in scores.all_axes if a.var in axes_of(part)]
        around = [n for n in names if n not in summed and n != axis.var.name]
        order = (*around, *(n for n in names if n in summed), axis.var.name)
        self.k = run(self.k, Stage(scores.name, part, "panel", order))
        return "panel"


def _most_rows(vectors: int, info: DeviceInfo) -> int:
    """The most rows of so many vectors that registers hold, beside what is multiplied."""
    return max(1, min(MAX_TILE_ROWS, (info.vector_registers - vectors - 1) // vectors))


def _rows_per_tile(extent: int, most: int) -> tuple[list[int], list[float]]:
    """Rows of a register tile, the most first, and their cost: as many as registers hold are best, fewer when they fit
    the extent better."""

    def cost(rows: int) -> float:
        block = _rows_per_block(extent, rows)
        guards = GUARD_FACTOR if extent % block else 1.0
        return ceildiv(extent, block) * block / extent * (1 + 1.5 / rows) * guards

    rows = list(range(most, 0, -1))
    return rows, [cost(r) for r in rows]


def _rows_per_block(extent: int, tall: int) -> int:
    """Rows of a block: whole tiles, about as many in each block."""
    count = ceildiv(extent, tall)
    return tall * ceildiv(count, ceildiv(count, BLOCK_TILES))
