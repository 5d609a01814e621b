"""Sums of products on the matrix units of thread blocks.

    block (s, p):  for k0:  panels a[s, k0 ..], b[k0 .., p] -> LOCAL, in the operands' dtype
                            warp (sw, pw), lane:  unroll tiles: c[m x n] += a[m x k] @ b[k x n]    one instruction each
                   lane: store what its registers hold

The device's description lists its units. A unit serves a product of its operand dtype: of 16-bit factors that are
summed in float32, and of float32 itself where the user lets the device round factors to TF32.

Panels keep the axis innermost that is contiguous in memory, so that they are filled by wide accesses, and are padded so
that the rows of a fragment lie in different banks.
"""

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.ir.expr import Expr, Load, ScalarCall
from weft.ir.index import Var, coefficient, flatten, high, variables
from weft.ir.kernel.algorithm import Axis
from weft.ir.kernel.schedule import Kernel, fresh
from weft.ir.kernel.transforms.base import Refusal, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.stage import Arrange, PadRows, Stage
from weft.ir.kernel.transforms.tensorize import Tensorize
from weft.ir.loops import LoopKind, Scope
from weft.ir.matrix import MatrixUnit
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize.access import axes_of
from weft.scheduler.optimize.contraction_form import Contraction
from weft.scheduler.optimize.gpu_panels import ACCESS_BYTES, fill, is_near, share_out
from weft.scheduler.optimize.gpu_product import Product
from weft.scheduler.optimize.rule import Choice
from weft.scheduler.optimize.steps import merge, split


@dataclass(frozen=True, slots=True)
class WarpTile:
    """A block's tile of `rows` x `columns` results, over `down` x `across` warps."""

    rows: int
    columns: int
    down: int
    across: int


TILES = (
    WarpTile(128, 128, 2, 4),
    WarpTile(128, 64, 2, 2),
    WarpTile(64, 64, 2, 2),
    WarpTile(32, 64, 1, 2),
    WarpTile(32, 32, 1, 2),
)
"""From the one with most reuse; the first that gives every multiprocessor a block is taken."""

GROUP_TILES = (WarpTile(128, 256, 2, 1), WarpTile(128, 128, 2, 1), WarpTile(64, 128, 1, 1))
"""The same for units that read panels themselves: two groups of warps, or one."""

MAX_ROWS_TOGETHER = 2048
"""Rows of results that the blocks which run at once should have, about: a hundred and some blocks of 16,384 or more
results."""

MAX_ROW_BYTES = 64
"""Bytes of a panel's row along the summed axis, at most: two or four instructions' worth."""


@dataclass(frozen=True, slots=True)
class Units:
    """A unit, the parts of the factors that become panels (along rows, along columns), terms per step, and a tile."""

    unit: MatrixUnit
    parts: tuple[Expr, Expr]
    steps: int
    tile: WarpTile

    def __str__(self) -> str:
        return f"{self.tile.rows}x{self.tile.columns} on {self.unit}"


@dataclass(frozen=True)
class UnitTiles(Choice):
    """A block's tile on matrix units."""

    decision = "gpu_matrix.tile"

    kernel: Kernel
    units: Units

    def __str__(self) -> str:
        return (
            f"tile {self.units} by {self.units.steps}, {self.units.tile.down * self.units.tile.across} warps"
        )


def options(form: Product, info: DeviceInfo) -> list[Units] | Refusal:
    """Units and tiles for the product, the preferred first: the first that gives every multiprocessor a block, else the
    one with most blocks."""
    found: list[Units] = []
    refused = [Refusal("the device has no matrix units")]
    for unit in info.matrix_units:
        parts, steps = _parts(form, unit), _steps(form.depth, unit)
        unfit = next((x for x in (parts, steps) if isinstance(x, Refusal)), None)
        if isinstance(parts, Refusal) or isinstance(steps, Refusal):
            refused += [unfit] if unfit is not None else []
            continue
        uncopied = _uncopied(form, parts, steps) if unit.row_bytes else None
        if uncopied is not None:
            refused.append(uncopied)
            continue
        tiles = GROUP_TILES if unit.row_bytes else TILES
        whole = [t for t in tiles if t.rows % (t.down * unit.m) == 0 and t.columns % (t.across * unit.n) == 0]
        found += [Units(unit, parts, steps, t) for t in whole]

    def blocks(u: Units) -> int:
        return form.blocks(u.tile.rows, u.tile.columns)

    enough = [u for u in found if blocks(u) >= info.cores]
    rest = [u for u in found if u not in enough and not u.unit.row_bytes]
    few = Refusal(f"no tile gives each of {info.cores} multiprocessors a block")
    return [*enough, *sorted(rest, key=blocks, reverse=True)] or (few if found else refused[-1])


def _parts(form: Product, unit: MatrixUnit) -> tuple[Expr, Expr] | Refusal:
    """The parts of the factors that the unit multiplies, along rows and along columns."""
    dtype = form.contraction.value.dtype
    if unit.accumulator is not dtype:
        return Refusal(f"{unit} adds up {unit.accumulator.name}, not {dtype.name}")
    rows, columns = (operand(f, unit) for f in form.factors)
    return rows if isinstance(rows, Refusal) else columns if isinstance(columns, Refusal) else (rows, columns)


def operand(factor: Expr, unit: MatrixUnit) -> Expr | Refusal:
    """The factor before it is converted to the sum's dtype."""
    if unit.operand is not unit.accumulator:
        if not isinstance(factor, ScalarCall) or factor.op is not Op.CAST:
            return Refusal(f"{unit}: a factor is {factor.dtype.name}")
        factor = factor.args[0]
    if factor.dtype is not unit.operand:
        return Refusal(f"{unit}: a factor is {factor.dtype.name}")
    return factor


def _steps(depth: Axis, unit: MatrixUnit) -> int | Refusal:
    """Terms per step: whole instructions, and no rest; as many as its rows have where the unit reads panels itself."""
    most = max(unit.k, (unit.row_bytes or MAX_ROW_BYTES) // unit.operand.itemsize)
    steps = (most,) if unit.row_bytes else (most, most // 2, unit.k)
    whole = (d for d in steps if d >= unit.k and high(depth.extent) % d == 0)
    return next(whole, Refusal(f"{high(depth.extent):,} products in a sum are no whole steps of {steps[-1]}"))


def _uncopied(form: Product, parts: tuple[Expr, Expr], steps: int) -> Refusal | None:
    """The reason why panels do not come by copies of whole pieces while others are used, as units need that read
    them by themselves: elements as they are, in rows that start at whole pieces, for more than one step."""
    if high(form.depth.extent) < 2 * steps:
        return Refusal(
            f"{high(form.depth.extent)} products in a sum; units that read panels pay from {2 * steps}"
        )
    for part in parts:
        q = form.kernel.algorithm.param(part.source) if isinstance(part, Load) and not part.guard else None
        if q is None or not isinstance(part, Load):
            return Refusal("a factor is not read as it lies in memory")
        offset = flatten(part.index, q.shape)
        found = {
            v: coefficient(offset, v) for v in (set[Var]() if isinstance(offset, int) else variables(offset))
        }
        far = [s for s in found.values() if s != 1]
        if len(far) + 1 != len(found) or any(s is None or s * q.dtype.itemsize % ACCESS_BYTES for s in far):
            return Refusal(f"rows of {q.name} do not start at whole pieces of {ACCESS_BYTES} bytes")
    return None


def apply(form: Product, choice: UnitTiles) -> Kernel:
    """The loops of a block's tile."""
    u = choice.units
    tiled = form.rows, form.columns
    return _OnUnits(form.kernel, form, tiled, u.parts, form.depth, u.steps, u.unit, u.tile).schedule()


@dataclass(slots=True)
class _OnUnits:
    k: Kernel
    form: Product
    tiled: tuple[Axis, Axis]
    """Rows and columns."""
    parts: tuple[Expr, Expr]
    """The factors that go along them."""
    depth: Axis
    steps: int
    unit: MatrixUnit
    tile: WarpTile

    @property
    def c(self) -> Contraction:
        return self.form.contraction

    @property
    def threads(self) -> int:
        return self.tile.down * self.tile.across * self.unit.threads

    def schedule(self) -> Kernel:
        t, value, out = self.tile, self.c.value.name, self.c.out.name
        s, p = self.form.loops(self.k)
        others = [x.var.name for x in self.k.nests[out].loops if x.var.name not in (s, p)]
        self.k = run(self.k, Pad(s, t.rows), Pad(p, t.columns))
        self.k, sb, s = split(self.k, s, t.rows, "sb", "si")
        self.k, pb, p = split(self.k, p, t.columns, "pb", "pi")
        threads, rows, columns = self._warps(s, p)
        self.k = run(self.k, Permute(out, (*others, sb, pb, *threads, *rows, *columns)))
        block = [*others, sb, pb]
        together = self._rows_together(sb)
        if together > 1:
            self.k, sb, near = split(self.k, sb, together, "sbo", "sbn")
            self.k = run(self.k, Permute(out, (*others, sb, pb, near, *threads, *rows, *columns)))
            block = [*others, sb, pb, near]
        name = block[0]
        for inner in block[1:]:
            self.k, name = merge(self.k, name, inner)
        self.k = run(self.k, Bind(name, LoopKind.BLOCK), *(Bind(n, LoopKind.THREAD) for n in threads))
        self.k = run(self.k, *(Unroll(n) for n in (*rows, *columns[:-1])), Vectorize(columns[-1]))
        panels = [self._stage(n) for n in (0, 1)]
        self.k = run(self.k, ComputeAt(value, out, name))
        at = self._accumulate()
        for panel in panels:
            self.k = run(self.k, ComputeAt(panel, value, at))
            self.k = self._laid_out(panel)
            self.k = fill(self.k, panel, self.threads, self.unit.operand.itemsize)
        return self.k

    def _rows_together(self, loop: str) -> int:
        """Rows of blocks that run at once, so that what these read is near a square, and stays in the last cache."""
        spec = self.k.nests[self.c.out.name].loop(loop)
        assert spec is not None
        if not isinstance(spec.extent, int) or spec.extent * self.tile.rows <= MAX_ROWS_TOGETHER:
            return 1
        return next(
            (n for n in (16, 8, 4, 2) if n * self.tile.rows <= MAX_ROWS_TOGETHER and spec.extent % n == 0), 1
        )

    def _warps(self, s: str, p: str) -> tuple[list[str], list[str], list[str]]:
        """The loops over a tile's rows and columns as threads (warps, then lanes) and each thread's own rows and
        columns."""
        t, u = self.tile, self.unit
        self.k, down, rows, row_lanes = share_out(self.k, s, t.rows // t.down, u.m, u.rows)
        self.k, across, columns, column_lanes = share_out(self.k, p, t.columns // t.across, u.n, u.columns)
        return [down, across, *row_lanes, *column_lanes], rows, columns

    def _stage(self, which: int) -> str:
        """A factor as a panel, the axis innermost that its memory is contiguous along; its name."""
        value, part, tiled = self.c.value.name, self.parts[which], self.tiled[which]
        names = [a.var.name for a in self.c.value.all_axes if a.var in axes_of(part)]
        inner = (
            self.depth
            if is_near(self.k, part, self.depth.var) or not is_near(self.k, part, tiled.var)
            else tiled
        )
        last = [n for n in (tiled.var.name, self.depth.var.name) if n != inner.var.name]
        around = [n for n in names if n not in (*last, inner.var.name)]
        order = (*around, *last, inner.var.name)
        panel = fresh(self.k.names(), "rows_panel" if which == 0 else "columns_panel")
        self.k = run(self.k, Stage(value, part, panel, order))
        return panel

    def _laid_out(self, panel: str) -> Kernel:
        """Rows padded, so that threads meet few banks; or exactly as long as the unit takes them, in blocks."""
        size = self.unit.operand.itemsize
        if not self.unit.row_bytes:
            return run(self.k, PadRows(panel, ACCESS_BYTES // size))
        row, rank = self.unit.row_bytes // size, len(self.k.nests[panel].size)
        if self.k.nests[panel].size[-1] <= row:
            return self.k
        order = (*range(rank - 2), rank - 1, rank - 2)
        return run(self.k, Arrange(panel, Scope.LOCAL, order, (*[1] * (rank - 1), row)))

    def _accumulate(self) -> str:
        """The value's loops: steps of the sum, warps and lanes, the step's instructions, a thread's results; the name
        of the steps' loop."""
        value = self.c.value.name
        nest = self.k.nests[value]
        pure = [x.var.name for x in nest.loops if not x.reduce]
        reduced = [x.var.name for x in nest.loops if x.reduce]
        deep = next(n for n in reduced if self.form.runs(self.k, n, self.depth))
        s, p = (next(n for n in pure if self.form.runs(self.k, n, a)) for a in self.tiled)
        self.k, step, term = split(self.k, deep, self.steps, f"{deep}s", f"{deep}t")
        self.k, tiles, term = split(self.k, term, self.unit.k, f"{deep}m", f"{deep}k")
        threads, rows, columns = self._warps(s, p)
        rest = [n for n in pure if n not in (s, p)]
        outer = [n for n in reduced if n != deep]
        self.k = run(self.k, Permute(value, (*rest, *outer, step, *threads, tiles, *rows, *columns, term)))
        self.k = run(self.k, *(Bind(n, LoopKind.THREAD) for n in threads))
        self.k = run(self.k, *(Unroll(n) for n in (tiles, *rows, *columns)), Tensorize(term, self.unit))
        return step
