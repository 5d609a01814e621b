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

from dataclasses import dataclass

from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.errors import IRError
from weft.ir.expr import Call, Expr, Load
from weft.ir.index import Var, ceildiv, high, substitute, variables
from weft.ir.kernel.algorithm import Axis, Output, Value, readers, reads
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.factor import Factor
from weft.ir.kernel.transforms.hint import PrefetchNext
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.merge import Merge
from weft.ir.kernel.transforms.online import OnlineReduce
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.share import Share
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.kernel.transforms.stage import Arrange, Stage
from weft.ir.kernel.transforms.trim import Trim
from weft.ir.loops import Scope
from weft.ir.ops import Op
from weft.scheduler.optimize import rows
from weft.scheduler.optimize.access import axes_of
from weft.scheduler.optimize.contraction_form import factors, fill
from weft.scheduler.optimize.steps import merge, split

BLOCK_VECTORS = 4
"""Columns of a tile of scores, in SIMD registers."""

GUARDED = 1.1
"""How much longer a tile takes whose rows may lie outside."""

ROW_TILES = 16
"""Register tiles per block of rows."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The maximum, the plain sum, the weighted product, what the scores are computed by, and who reads the results."""

    maximum: Value
    total: Value
    product: Value
    scores: Value
    out: Output


def find(k: Kernel) -> Chain | None:
    """The chain, when the kernel is one."""
    values = [i for i in k.algorithm.items if isinstance(i, Value)]
    outputs = [i for i in k.algorithm.items if isinstance(i, Output)]
    if len(values) != 4 or len(outputs) != 1 or any(v.reduce is None for v in values):
        return None
    top = [v for v in values if v.reduce is not None and v.reduce.op is Op.MAX]
    if len(top) != 1 or top[0].reduce is None or len(top[0].reduce.axes) != 1:
        return None
    m = top[0]
    sources = {r.source for r in reads(m) if k.algorithm.param(r.source) is None}
    scores = [v for v in values if v.name in sources and factors(v) is not None]
    sums = [v for v in values if any(r.source == m.name for r in reads(v))]
    totals = [v for v in sums if len(v.axes) == len(m.axes)]
    products = [v for v in sums if factors(v) is not None and len(v.axes) == len(m.axes) + 1]
    if len(scores) != 1 or len(totals) != 1 or len(products) != 1:
        return None
    chain = Chain(m, totals[0], products[0], scores[0], outputs[0])
    static = all(isinstance(a.extent, int) for v in values for a in v.all_axes)
    return chain if static and len({*(v.name for v in values)}) == 4 else None


def schedule(k: Kernel, info: DeviceInfo) -> Kernel | None:
    """The one-pass schedule of such a chain; None for other kernels."""
    chain = find(k)
    if chain is None:
        return None
    try:
        return _OnePass(k, chain, info).schedule()
    except IRError:  # a transform does not apply to this kernel: other rules may
        return None


def shared_tiles(k: Kernel, c: Chain) -> Kernel | None:
    """The division after the sum; `scores` and `weights` as values that all items share. None where they do not."""
    m, total, product = c.maximum.name, c.total.name, c.product.name
    k = attempt(k, Factor(product))
    k = run(k, Stage(m, c.maximum.expr, "scores", axis_names(c, c.maximum)))
    for item in (c.total, c.product):
        step = Share(item.name, "scores", axis_names(c, item))
        if step.check(k) is not None:
            return None
        k = run(k, step)
    part = next((e for e in ex.walk(k.algorithm.item(total).exprs()) if _is_weight(e, m)), None)
    if part is None:
        return None
    k = run(k, Stage(total, part, "weights", axis_names(c, c.total)))
    step = Share(product, "weights", axis_names(c, c.product))
    return None if step.check(k) is not None else run(k, step)


def _is_weight(e: Expr, maximum: str) -> bool:
    if not isinstance(e, Call) or e.op is not Op.EXP:
        return False
    d = e.args[0]
    return (
        isinstance(d, Call) and d.op is Op.SUB and isinstance(d.args[1], Load) and d.args[1].source == maximum
    )


def axis_names(c: Chain, item: Value) -> tuple[str, ...]:
    """Rows, then the summed axis."""
    assert item.reduce is not None
    return (*(a.var.name for a in item.axes[: len(c.maximum.axes)]), item.reduce.axes[0].var.name)


class _OnePass:
    def __init__(self, k: Kernel, chain: Chain, info: DeviceInfo) -> None:
        self.k, self.chain, self.info = k, chain, info
        self.m, self.total, self.product = chain.maximum.name, chain.total.name, chain.product.name
        self.out = chain.out.name

    def schedule(self) -> Kernel | None:
        c, info = self.chain, self.info
        assert c.maximum.reduce is not None and c.product.reduce is not None and c.total.reduce is not None
        lanes = info.lanes(c.maximum.dtype)
        columns = c.maximum.reduce.axes[0]
        width = min(lanes * BLOCK_VECTORS, lanes * ceildiv(high(columns.extent), lanes))
        inner = c.product.axes[-1]
        vectors = max(width // lanes, ceildiv(high(inner.extent), lanes))
        row = c.maximum.axes[-1] if c.maximum.axes else None
        if row is None or high(inner.extent) > 16 * lanes:
            return None
        tall = _rows_per_tile(high(row.extent), vectors, info.vector_registers)
        block = _rows_per_block(high(row.extent), tall)
        prepared = shared_tiles(self.k, c)
        if prepared is None:
            return None
        self.k = prepared
        loops = self.output(row, inner, tall, block)
        if loops is None:
            return None
        around, outer, tile = loops
        if high(columns.extent) <= width:
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

    def loop_of(self, axis: Axis) -> str | None:
        """The output's loop over an axis of the product."""
        load = next(r for r in reads(self.k.algorithm.item(self.out)) if r.source == self.product)
        at = load.index[[a.var for a in self.chain.product.axes].index(axis.var)]
        e = substitute(at, self.k.nests[self.out].bind)
        return e.name if isinstance(e, Var) else None

    def output(self, row: Axis, inner: Axis, tall: int, block: int) -> tuple[list[str], str, str] | None:
        """Blocks of rows outside, lanes along the product's own axis inside: (loops around, blocks, tiles in them)."""
        rows_axis = self.chain.product.axes[len(self.chain.maximum.axes) - 1]
        i, d = self.loop_of(rows_axis), self.loop_of(inner)
        if i is None or d is None:
            return None
        others = [s.var.name for s in self.k.nests[self.out].loops if s.var.name not in (i, d)]
        self.k = run(self.k, Pad(i, block))
        self.k, ib, i1 = split(self.k, i, block, "ib", "ir")
        self.k, it, ii = split(self.k, i1, tall, "it", "ii")
        self.k = run(self.k, Permute(self.out, (*others, ib, it, ii, d)))
        self.k = rows.lanes(self.k, d, self.lanes_of(inner))
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
        names = [s.var.name for s in self.k.nests[self.product].loops]
        i, d = names[-2], names[-1]
        self.k, it, ii = split(self.k, i, tall, "ot", "oi")
        self.k = run(self.k, ComputeAt("part", self.product, it, Scope.REGISTER))
        self.register_tile("part")
        self.k = run(self.k, Unroll(ii))
        self.k = rows.lanes(self.k, d, min(self.extent(d), self.lanes_of(self.chain.product.axes[-1])))

    def tiles(self, outer: str, around: list[str], tall: int, at: tuple[str, str]) -> None:
        """Tasks; scores and weights at `at`, in register tiles; the panel of the second factor packed."""
        batch = around[0] if around else None
        for inner in around[1:]:
            assert batch is not None
            self.k, batch = merge(self.k, batch, inner)
        many = batch is not None and self.extent(batch) >= 2 * self.info.cores
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
        if panel is not None:
            where = (self.out, batch) if many and batch is not None else at
            self.k = run(self.k, ComputeAt(panel, where[0], where[1]))
            self.in_blocks(panel, self.extent(self.k.nests[scores.name].loops[-1].var.name))
            self.k = fill(self.k, panel, self.info)

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

    def extent(self, loop: str) -> int:
        owner = self.k.owner(loop)
        assert owner is not None
        spec = self.k.nests[owner].loop(loop)
        assert spec is not None
        return high(spec.extent)

    def register_tile(self, name: str) -> None:
        """Sums outside, then rows written out, then lanes."""
        nest = self.k.nests[name]
        pure = [s.var.name for s in nest.loops if not s.reduce]
        reduced = [s.var.name for s in nest.loops if s.reduce]
        self.k = run(self.k, Permute(name, (*reduced, *pure)))
        for n in pure[:-1]:
            self.k = run(self.k, Unroll(n))
        self.k = attempt(self.k, Vectorize(pure[-1]))

    def panel(self, scores: Value) -> str | None:
        """The scores' factor that depends on the columns, staged with the columns innermost."""
        pair = factors(scores)
        assert pair is not None and scores.reduce is not None
        users = readers(self.k.algorithm, scores.name)
        load = next(r for r in reads(users[0]) if r.source == scores.name)
        staged = self.k.algorithm.item("scores")
        assert isinstance(staged, Value)
        column = staged.axes[-1].var
        at = [k for k, i in enumerate(load.index) if column in variables(i)]
        if len(at) != 1:
            return None
        axis = scores.axes[at[0]]
        part = next((f for f in pair if axis.var in axes_of(f)), None)
        if part is None:
            return None
        summed = [a.var.name for a in scores.reduce.axes]
        names = [a.var.name for a in scores.all_axes if a.var in axes_of(part)]
        around = [n for n in names if n not in summed and n != axis.var.name]
        order = (*around, *(n for n in names if n in summed), axis.var.name)
        self.k = run(self.k, Stage(scores.name, part, "panel", order))
        return "panel"


def _rows_per_tile(extent: int, vectors: int, registers: int) -> int:
    """Rows of a register tile: as many as registers hold, fewer when they fit the extent better."""
    most = max(1, min(8, (registers - vectors - 1) // vectors))

    def cost(rows: int) -> float:
        block = _rows_per_block(extent, rows)
        guards = GUARDED if extent % block else 1.0
        return ceildiv(extent, block) * block / extent * (1 + 1.5 / rows) * guards

    return min(range(1, most + 1), key=lambda r: (cost(r), -r))


def _rows_per_block(extent: int, tall: int) -> int:
    """Rows of a block: whole tiles, about as many in each block."""
    count = ceildiv(extent, tall)
    return tall * ceildiv(count, ceildiv(count, ROW_TILES))
