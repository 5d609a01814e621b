"""Sums of products with reuse on devices of many threads: which axes are tiled, and by whom.

matrix units           `gpu_matrix`, where the device has one for the factors
panels in LOCAL        `gpu_shared_tiles`, where threads of a block share memory
neither                here: every thread reads what it needs where it is, and no thread waits for another
                       thread (st, pt):  for k: acc[4 x 4 ..] += a[.., k] * b[k, ..];  store
"""
# Tests: tests/scheduler/test_golden.py
# Tests: tests/scheduler/optimize/test_gpu.py, tests/scheduler/optimize/test_gpu_matrix.py

from __future__ import annotations

from dataclasses import replace

from weft.backends.protocol import DeviceInfo
from weft.ir.index import ceildiv, high
from weft.ir.kernel.algorithm import Axis
from weft.ir.kernel.decisions import pick
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.loops import LoopKind
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize import contraction_form as contraction
from weft.scheduler.optimize import gpu_matrix, gpu_shared_tiles
from weft.scheduler.optimize.gpu_matrix import UnitTiles
from weft.scheduler.optimize.gpu_product import Product
from weft.scheduler.optimize.gpu_shared_tiles import SharedTiles, Tile
from weft.scheduler.optimize.rule import Choice, Rule
from weft.scheduler.optimize.steps import merge, split

OWN = ((8, 8), (4, 8), (4, 4), (2, 4), (1, 4))
"""Results in the registers of a thread that shares nothing, rows and columns."""

OWN_THREADS = 32
"""Threads of a block of such threads."""

MIN_DEPTH, MIN_RESULTS = 4, 64
"""Products of a sum, and results, from which on tiles pay."""


@dataclass(frozen=True)
class OwnTiles(Choice):
    """Each thread reads what it needs where it is."""

    decision = "gpu_contraction.tile"

    kernel: Kernel
    tile: Tile

    def __str__(self) -> str:
        return f"{self.tile.threads} threads, each with {self.tile.tall}x{self.tile.wide} results in register"


def recognise(k: Kernel, info: DeviceInfo) -> Product | Refusal:
    """A kernel around one contraction that is not small."""
    c = contraction.find(k)
    if isinstance(c, Refusal):
        return c
    unsized = [a.var.name for a in c.value.all_axes if not isinstance(a.extent, int)]
    if unsized:
        return Refusal(f"the size of {unsized[0]} is only known at run time")
    k, c = contraction.merge_short_axes(k, c)
    s, p, side = _axes(k, c)
    assert c.value.reduce is not None
    depth = max(c.value.reduce.axes, key=lambda a: (high(a.extent), a.var.name))
    results = high(s.extent) * high(p.extent)
    if high(depth.extent) < MIN_DEPTH or results < MIN_RESULTS:
        return Refusal(
            f"{high(s.extent)} x {high(p.extent)} results of {high(depth.extent)} products; "
            f"pays from {MIN_RESULTS} results of {MIN_DEPTH}"
        )
    return Product(k, c, s, p, side, depth)


def choose(form: Product, info: DeviceInfo) -> UnitTiles | SharedTiles | OwnTiles:
    """Matrix units where they serve, else panels in LOCAL memory, where threads share some."""
    if not info.scratchpad:
        tiles = _own_tiles(form, info)
        k, tile = pick(form.kernel, "gpu_contraction.tile", tiles)
        return OwnTiles(k, tile, refused=(("gpu_matrix", NO_SCRATCHPAD), ("gpu_shared_tiles", NO_SCRATCHPAD)))
    on_units = gpu_matrix.options(form, info)
    if not isinstance(on_units, Refusal):
        k, units = pick(form.kernel, "gpu_matrix.tile", on_units)
        return UnitTiles(k, units)
    shared = gpu_shared_tiles.options(form, info)
    k, tile = pick(form.kernel, "gpu_shared_tiles.tile", shared)
    return SharedTiles(k, tile, refused=(("gpu_matrix", on_units),))


def apply(form: Product, choice: UnitTiles | SharedTiles | OwnTiles, info: DeviceInfo) -> Kernel:
    """The loops of what was chosen."""
    form = replace(form, kernel=choice.kernel)
    match choice:
        case UnitTiles():
            return gpu_matrix.apply(form, choice)
        case SharedTiles():
            return gpu_shared_tiles.InPanels(form, choice.tile).schedule()
        case OwnTiles():
            return _Tiled(form, choice.tile).schedule()


RULE = Rule("gpu_contraction", recognise, choose, apply)
NO_SCRATCHPAD = Refusal("the device's threads share no memory")


def _axes(k: Kernel, c: contraction.Contraction) -> tuple[Axis, Axis, int]:
    """The tiled axes, rows and columns (neighbours in the output), and the factor that the columns belong to."""

    def score(option: tuple[Axis, Axis, int]) -> float:
        s, p, _ = option
        near = sum(2.0 for x in contraction.output_steps(k, c, p) if x == 1)
        return near + min(high(p.extent), 128) / 128 + min(high(s.extent), 128) / 128

    return max(((s, p, side) for side in (0, 1) for p in c.own(side) for s in c.own(1 - side)), key=score)


def _own_tiles(form: Product, info: DeviceInfo) -> list[Tile]:
    """Tiles in registers of threads that share nothing, the largest first that leave work for all threads that
    run at once, then the others."""
    rows, columns = high(form.rows.extent), high(form.columns.extent)

    def threads(own: tuple[int, int]) -> int:
        return ceildiv(rows, own[0]) * ceildiv(columns, own[1]) * form.others

    fits = [own for own in OWN if own[0] < 2 * rows and own[1] < 2 * columns]
    enough = [own for own in fits if threads(own) >= info.cores * info.warp]
    order = dict.fromkeys((enough[0] if enough else OWN[-1], *fits))
    return [_own_tile(form, own, info) for own in order]


def _own_tile(form: Product, own: tuple[int, int], info: DeviceInfo) -> Tile:
    """A block of threads with so many results each."""
    tall, wide = own
    across = _power(min(info.warp, ceildiv(high(form.columns.extent), wide)))
    down = _power(min(max(1, OWN_THREADS // across), ceildiv(high(form.rows.extent), tall)))
    steps = next((n for n in (4, 3, 2) if high(form.depth.extent) % n == 0), 4)
    return Tile(down * tall, across * wide, steps, tall, wide)


def _power(n: int) -> int:
    """The largest power of two up to n."""
    return 1 << n.bit_length() - 1


class _Tiled:
    def __init__(self, form: Product, tile: Tile) -> None:
        self.k, self.form, self.tile = form.kernel, form, tile
        self.value, self.out = form.contraction.value.name, form.contraction.out.name

    def schedule(self) -> Kernel:
        t = self.tile
        s, p = self.form.loops(self.k)
        others = [x.var.name for x in self.k.nests[self.out].loops if x.var.name not in (s, p)]
        self.k = run(self.k, Pad(s, t.rows), Pad(p, t.columns))
        self.k, sb, st, sr = self.three(s, t.rows, t.tall, "s")
        self.k, pb, pt, pr = self.three(p, t.columns, t.wide, "p")
        self.k = run(self.k, Permute(self.out, (*others, sb, pb, st, pt, sr, pr)))
        block = [*others, sb, pb]
        name = block[0]
        for inner in block[1:]:
            self.k, name = merge(self.k, name, inner)
        self.k = run(self.k, Bind(name, LoopKind.BLOCK), *self.threads(st, pt))
        self.k = attempt(attempt(self.k, Unroll(sr)), Vectorize(pr)) if t.wide <= 4 else self.vectors(sr, pr)
        self.k = run(self.k, ComputeAt(self.value, self.out, name))
        self.accumulate()
        return self.k

    def vectors(self, rows: str, columns: str) -> Kernel:
        """A thread's columns as vectors of four."""
        k, outer, inner = split(self.k, columns, 4, f"{columns}v", f"{columns}w")
        return run(k, Unroll(rows), Unroll(outer), Vectorize(inner))

    def three(self, loop: str, tile: int, own: int, stem: str) -> tuple[Kernel, str, str, str]:
        """One loop as blocks, threads and a thread's own."""
        k, block, rest = split(self.k, loop, tile, f"{stem}b", f"{stem}i")
        k, thread, inner = split(k, rest, own, f"{stem}t", f"{stem}r")
        return k, block, thread, inner

    def threads(self, *loops: str) -> list[Bind]:
        return [Bind(n, LoopKind.THREAD) for n in loops]

    def accumulate(self) -> None:
        """The value's loops: steps of the sum, threads, terms of the step, a thread's results."""
        t, k, value = self.tile, self.k, self.value
        nest = k.nests[value]
        pure = [x.var.name for x in nest.loops if not x.reduce]
        reduced = [x.var.name for x in nest.loops if x.reduce]
        deep = next(n for n in reduced if self.form.runs(k, n, self.form.depth))
        s, p = (next(n for n in pure if self.form.runs(k, n, a)) for a in (self.form.rows, self.form.columns))
        k = run(k, Pad(deep, t.depth))
        k, step, term = split(k, deep, t.depth, f"{deep}s", f"{deep}t")
        k, st, sr = split(k, s, t.tall, f"{s}t", f"{s}r")
        k, pt, pr = split(k, p, t.wide, f"{p}t", f"{p}r")
        rest = [n for n in pure if n not in (s, p)]
        outer = [n for n in reduced if n != deep]
        if t.wide > 4:
            k, pv, pw = split(k, pr, 4, f"{pr}v", f"{pr}w")
            k = run(
                k, Permute(value, (*rest, *outer, step, st, pt, term, sr, pv, pw)), Unroll(pv), Vectorize(pw)
            )
        else:
            k = run(k, Permute(value, (*rest, *outer, step, st, pt, term, sr, pr)), Vectorize(pr))
        self.k = run(k, Unroll(term), Unroll(sr), *self.threads(st, pt))
