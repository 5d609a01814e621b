"""A trial of products by groups of warps on this very GPU: two small ones have to come out right.

    y (64 x 128) = a (64 x 192) @ b (192 x 128)      bf16, both as they stand; f16, both stored transposed

The programs go the way of all others (rings of copies, patterns, descriptors that start within a pattern, products on
their way while the next panels come), with whole numbers so small that every sum is exact: what differs is wrong. A
verdict holds for this kind of GPU, this driver and this version of weft, and is kept on disk.
"""
# Tests: tests/backends/cuda/test_warpgroups.py, tests/backends/cuda/test_device.py

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from weft import disk_cache
from weft.backends.protocol import Commands, Launch
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.expr import Load, call, cast, const
from weft.ir.index import Int, Var, floordiv, mod
from weft.ir.loops import Accumulate, Alloc, Block, Buffer, Loop, LoopKind, Program, Scope, Stmt, Store
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.backends.cuda.device import CudaDevice

ROWS, COLUMNS, TERMS = 64, 128, 192
"""Sizes of the products: four steps of the ring are more than it has places for at first."""

ROW, PIECE, THREADS = 64, 8, 128
"""Elements of a panel's rows and of one copy, and the threads of one group."""

_log = logging.getLogger("weft")


def agrees(device: CudaDevice) -> bool:
    """True where the products are right on the device, as found now or before. DeviceError, CudaError where
    they cannot run."""
    key = disk_cache.digest("wgmma", device.info.description, device.fingerprint(), disk_cache.compiler())
    known = disk_cache.get("trial", key)
    if known is None:
        known = b"right" if _tried(device) else b"wrong"
        disk_cache.put("trial", key, known)
    if known == b"right":
        return True
    _log.warning(
        "%s: products by groups of warps (wgmma) gave wrong results when they were tried; products run on mma.sync "
        "instead, which is slower. Please report this",
        device.info.name,
    )
    return False


def _tried(device: CudaDevice) -> bool:
    programs = [product("trial", dtypes.bfloat16, False), product("trial_turned", dtypes.float16, True)]
    codes, _ = device.compile(programs)
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, shape).astype(np.float32) for shape in ((ROWS, TERMS), (TERMS, COLUMNS)))
    for n, p in enumerate(programs):
        x, y = (a.T, b.T) if n else (a, b)
        # a bf16 is the upper half of an f32
        given = [
            np.ascontiguousarray(v).astype(np.float16)
            if n
            else (np.ascontiguousarray(v).view(np.uint32) >> 16).astype(np.uint16)
            for v in (x, y)
        ]
        memories = [device.allocate(nbytes) for nbytes in (*(v.nbytes for v in given), 4 * ROWS * COLUMNS)]
        for m, v in zip(memories, given, strict=False):
            device.write(m, v.data)
        device.link(codes, Commands((Launch(n, (0, 1, 2)),), len(p.params), (), 0)).run(memories)
        got = np.frombuffer(device.read(memories[-1], 4 * ROWS * COLUMNS), np.float32)
        if not np.array_equal(got.reshape(ROWS, COLUMNS), a @ b):
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Results:
    """The loops over a thread's results, outermost first: warp, lanes, then its own; and which result it is, with the
    column as a block of 64 and a place in it."""

    loops: tuple[Var, ...]
    row: Int
    block: Int
    within: Int

    @property
    def place(self) -> Int:
        """Among all results."""
        return self.row * COLUMNS + self.block * ROW + self.within

    def around(self, body: Block, last: LoopKind = LoopKind.UNROLL, before: tuple[Loop, ...] = ()) -> Stmt:
        """The loops, with `before` (empty) ones between the threads' and their own."""
        kinds = [LoopKind.THREAD] * LANES + [LoopKind.UNROLL] * (len(self.loops) - LANES - 1) + [last]
        loops = [Loop(v, v.hi + 1, (), kind) for v, kind in zip(self.loops, kinds, strict=True)]
        for x in reversed([*loops[:LANES], *before, *loops[LANES:]]):
            body = (replace(x, body=body),)
        return body[0]


LANES = 3
"""Loops over threads: warps, and lanes by rows and columns."""


def _results(stem: str) -> _Results:
    sizes = {"warp": 4, "row": 8, "lane": 4, "half": 2, "block": COLUMNS // ROW, "tile": 8, "pair": 2}
    w, g, t, h, d, j, q = loops = tuple(Var(f"{stem}_{n}", 0, size - 1) for n, size in sizes.items())
    return _Results(loops, w * 16 + h * 8 + g, d, j * 8 + t * 2 + q)


def product(name: str, operand: DType, turned: bool) -> Program:
    """The loops of one product, `turned` where its factors are stored transposed: for one group of four warps."""
    a = Buffer("a", operand, ROWS * TERMS, Scope.GLOBAL)
    b = Buffer("b", operand, TERMS * COLUMNS, Scope.GLOBAL)
    y = Buffer("y", dtypes.float32, ROWS * COLUMNS, Scope.GLOBAL)
    rows = Buffer("rows", operand, ROWS * ROW, Scope.LOCAL)
    columns = Buffer("columns", operand, COLUMNS * ROW, Scope.LOCAL)
    sums = Buffer("sums", dtypes.float32, ROWS * COLUMNS, Scope.LOCAL)
    step = Var("step", 0, TERMS // ROW - 1)
    zero, add, store = (_results(n) for n in ("zero", "add", "store"))
    m, k = Var("m", 0, ROW // 16 - 1), Var("k", 0, 15)
    deep = m * 16 + k
    left = deep * ROW + add.row if turned else add.row * ROW + deep
    right = (
        (add.block * ROW + add.within) * ROW + deep
        if turned
        else add.block * ROW**2 + deep * ROW + add.within
    )
    factors = (Load(operand, "rows", (left,)), Load(operand, "columns", (right,)))
    term = call(Op.MUL, *(cast(x, dtypes.float32) for x in factors))
    one = Loop(k, 16, (Accumulate("sums", add.place, Op.ADD, term),), LoopKind.MATRIX)
    steps = (
        *_filled(rows, a, ROWS, not turned, step),
        *_filled(columns, b, COLUMNS, turned, step),
        add.around((one,), before=(Loop(m, m.hi + 1, (), LoopKind.UNROLL),)),
    )
    body: Block = (
        Alloc(sums),
        zero.around((Store("sums", zero.place, const(dtypes.float32, 0.0)),)),
        Loop(step, TERMS // ROW, steps),
        store.around(
            (Store("y", store.place, Load(dtypes.float32, "sums", (store.place,))),), LoopKind.VECTOR
        ),
    )
    block = Loop(Var("only", 0, 0), 1, body, LoopKind.BLOCK)
    return Program(name, (a, b, y), frozenset({"y"}), (), (block,))


def _filled(panel: Buffer, source: Buffer, across: int, by_terms: bool, step: Var) -> tuple[Stmt, ...]:
    """All threads copy a step's panel; `by_terms`: the terms are contiguous in memory, else the `across` rows or
    columns, which then lie in blocks of 64."""
    count = across * ROW // PIECE // THREADS
    t, o, v = (
        Var(f"{panel.name}_{n}", 0, size - 1)
        for n, size in (("thread", THREADS), ("own", count), ("lane", PIECE))
    )
    length = (ROW if by_terms else across) // PIECE
    piece = o * THREADS + t
    at, far = floordiv(piece, length), mod(piece, length)
    if by_terms:
        target, origin = at * ROW + far * PIECE, at * TERMS + step * ROW + far * PIECE
    else:
        block, within = floordiv(far, ROW // PIECE), mod(far, ROW // PIECE)
        target = block * ROW**2 + at * ROW + within * PIECE
        origin = (step * ROW + at) * across + far * PIECE
    lanes = Loop(
        v,
        PIECE,
        (Store(panel.name, target + v, Load(panel.dtype, source.name, (origin + v,))),),
        LoopKind.VECTOR,
    )
    own = Loop(o, count, (lanes,), LoopKind.UNROLL)
    return Alloc(panel), Loop(t, THREADS, (own,), LoopKind.THREAD)
