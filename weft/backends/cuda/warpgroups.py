"""Loops on matrix units -> `wgmma`: four warps multiply what lies in shared memory, without loading it.

    unroll i, j: matrix k in 16: c[..] += a[..] * b[..]    ->    wgmma c, descriptor of a, descriptor of b

It applies after `ring`, where both panels are filled by asynchronous copies alone, have rows of 128 bytes along what is
contiguous (the terms, or rows or columns, then in blocks of 64), and start at multiples of 1024 bytes. The copies then
put 16-byte pieces where the unit expects them: their number in a row, exclusive-or the row's number modulo 8. What a
thread's elements of c are is the same as for `mma.sync`, over the four warps; see the PTX ISA, "Asynchronous warpgroup
level matrix instructions": register fragments, canonical layouts, the matrix descriptor.

The unit reads through the asynchronous proxy: after a thread's copies have arrived, and before the barrier that tells
the others, `fence.proxy.async` makes them visible to it. A step's product is on its way while the next step's panels
are waited for and copied: only the one before it has to be done, so rings have a place more, and no copy overtakes a
product. The last one is waited for after the loop. Where a step does more than one product, it waits for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd

from weft.backends.cuda.matrix import WARP, MatrixLoops, Operand, Product, chain
from weft.backends.cuda.ring import PIECE, Copy, Wait
from weft.backends.llvm import memory
from weft.backends.llvm.body import Body, Own
from weft.backends.llvm.index import affine
from weft.ir import dtypes
from weft.ir.errors import IRError
from weft.ir.expr import Load, walk
from weft.ir.index import Int, Sum, Var, floordiv, high, substitute
from weft.ir.loops import Alloc, Block, Buffer, If, Loop, LoopKind, Program, Scope, Stmt
from weft.ir.loops_names import every, names_of_stmt, roots, written
from weft.ir.matrix import LayoutFactor, MatrixUnit, Role
from weft.ir.passes.grid import grid_parts
from weft.lazy_dataclass import dataclass

GROUP = 4
"""Warps of a group."""

ROW_BYTES = 128
"""Bytes of a panel's rows: the widest pattern of the unit's own."""

PATTERN_BYTES = 1024
"""Eight rows, after which the pattern repeats; where each operand's pattern starts."""

TILES = 32
"""Tiles of eight columns that one instruction takes, at most."""

TYPES = {dtypes.bfloat16: "bf16", dtypes.float16: "f16"}

UNITS: tuple[MatrixUnit, ...] = tuple(
    MatrixUnit(
        64, n, 16, operand, dtypes.float32,
        (LayoutFactor(Role.LANE, GROUP), LayoutFactor(Role.ELEMENT, 2), LayoutFactor(Role.LANE, 8)),
        (LayoutFactor(Role.ELEMENT, n // 64), LayoutFactor(Role.ELEMENT, 8),
         LayoutFactor(Role.LANE, 4), LayoutFactor(Role.ELEMENT, 2)),
        ROW_BYTES,
    )
    for operand in TYPES
    for n in (256, 128)
)  # fmt: skip
"""The units of compute capability 9.0 alone, with its own instructions (sm_90a)."""


def units(capability: tuple[int, int]) -> tuple[MatrixUnit, ...]:
    """The units of an architecture."""
    return UNITS if capability == (9, 0) else ()


@dataclass(frozen=True, slots=True)
class Fence(Own):
    """The fence after which the unit, too, knows what this thread knows to be in shared memory."""

    def render(self, body: Body) -> None:
        body.frame.f.do('call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"()')


@dataclass(frozen=True, slots=True)
class Side:
    """An operand as its descriptor has it: `major` says that its own axis is contiguous, not the terms; `leading` bytes
    lie between blocks of 64 of that axis."""

    operand: Operand
    major: bool
    leading: int


@dataclass(frozen=True, slots=True, eq=False)
class GroupProduct(Own):
    """The product of one step, by a group of warps."""

    product: Product
    a: Side
    b: Side
    columns: tuple[dict[Var, int], ...]
    left: int = 0
    """Products that may be on their way afterwards: this one."""

    def render(self, body: Body) -> None:
        p, frame, f = self.product, body.frame, body.frame.f
        accumulators = frame.place(p.sum.buffer)
        rows, deep = p.runs([x for x, _ in p.rows]), p.runs(p.deep)
        row, column = p.elements["row"], p.elements["column"]
        count = 4 * len(self.columns)
        kind = TYPES[p.operand]
        registers = ", ".join(f"${k}" for k in range(count))
        for r in rows:
            spots: list[str] = []
            for c in self.columns:
                for e in range(4):
                    offset = substitute(p.sum.offset, {**deep[0], **r, **c, row: e // 2, column: e % 2})
                    spots.append(memory.address(frame, accumulators, affine(frame, offset)))
            args = [f"float {f.emit(f'load float, ptr {x}, align 4')}" for x in spots]
            lines = ["wgmma.fence.sync.aligned;"]
            for k, at in enumerate(deep):
                sides = [
                    self.descriptor(body, side, {**at, **r, **self.columns[0]}) for side in (self.a, self.b)
                ]
                args += [f"i64 {x}" for x in sides]
                a, b = (2 * count + 2 * k + n for n in (0, 1))
                lines.append(
                    f"wgmma.mma_async.sync.aligned.m64n{2 * count}k16.f32.{kind}.{kind} "
                    f"{{{registers}}}, ${a}, ${b}, 1, 1, 1, {int(self.a.major)}, {int(self.b.major)};"
                )
            lines += ["wgmma.commit_group.sync.aligned;", f"wgmma.wait_group.sync.aligned {self.left};"]
            result = f"{{ {', '.join(['float'] * count)} }}"
            constraints = [
                *["=f"] * count,
                *(str(k) for k in range(count)),
                *["l"] * (2 * len(deep)),
                "~{memory}",
            ]
            got = f.emit(
                f'call {result} asm sideeffect "{" ".join(lines)}", "{",".join(constraints)}"({", ".join(args)})'
            )
            for k, x in enumerate(spots):
                f.do(f"store float {f.emit(f'extractvalue {result} {got}, {k}')}, ptr {x}, align 4")
        frame.touch((p.sum.buffer,))

    def descriptor(self, body: Body, side: Side, at: Mapping[Var, int]) -> str:
        """The descriptor of the operand's tile: its start, and the steps of its layout."""
        p, frame, f = self.product, body.frame, body.frame.f
        first = substitute(p.base(side.operand, at), {p.warp: floordiv(p.thread, WARP * GROUP) * GROUP})
        place = frame.place(side.operand.buffer.name)
        start = memory.address(frame, place, affine(frame, first))
        shared = f.emit(f"addrspacecast ptr {start} to ptr addrspace(3)")
        address = f.emit(f"ptrtoint ptr addrspace(3) {shared} to i64")
        low = f.emit(f"lshr i64 {f.emit(f'and i64 {address}, {0x3FFFF}')}, 4")
        return f.emit(f"or i64 {low}, {descriptor_steps(side.leading, PATTERN_BYTES)}")


@dataclass(frozen=True, slots=True, eq=False)
class Done(Own):
    """A product that was on its way has arrived in its registers."""

    product: GroupProduct

    def render(self, body: Body) -> None:
        p, frame, f = self.product.product, body.frame, body.frame.f
        (at,), (row, column) = p.runs([x for x, _ in p.rows]), (p.elements["row"], p.elements["column"])
        first = p.runs(p.deep)[0]
        spots = [
            memory.address(frame, frame.place(p.sum.buffer), affine(frame, substitute(p.sum.offset, place)))
            for c in self.product.columns
            for e in range(4)
            if (place := {**first, **at, **c, row: e // 2, column: e % 2})
        ]
        count = len(spots)
        result = f"{{ {', '.join(['float'] * count)} }}"
        constraints = ",".join([*["=f"] * count, *(str(k) for k in range(count)), "~{memory}"])
        args = ", ".join(f"float {f.emit(f'load float, ptr {x}, align 4')}" for x in spots)
        got = f.emit(
            f'call {result} asm sideeffect "wgmma.wait_group.sync.aligned 0;", "{constraints}"({args})'
        )
        for k, x in enumerate(spots):
            f.do(f"store float {f.emit(f'extractvalue {result} {got}, {k}')}, ptr {x}, align 4")
        frame.touch((p.sum.buffer,))


def descriptor_steps(leading: int, stride: int) -> int:
    """The constant part of a matrix descriptor in the 128-byte pattern, which starts at a multiple of 1024 bytes."""
    return (leading & 0x3FFFF) >> 4 << 16 | (stride & 0x3FFFF) >> 4 << 32 | 1 << 62


def on_groups(grid: Program) -> tuple[Program, frozenset[str]]:
    """The grid with its products on groups of warps, as far as panels lie as the unit takes them; those panels."""
    _, local, thread = grid_parts(grid)
    found = _Products({b.name: b for b in local}, thread, grid.body)
    made = {id(c.loops[0]): g for c in found.chains if (g := found.fitting(c)) is not None}
    panels = frozenset(s.operand.buffer.name for g in made.values() for s in (g.a, g.b))
    if not panels or any(found.panels(c) & panels and id(c.loops[0]) not in made for c in found.chains):
        return grid, frozenset()

    def visit(body: Block) -> Block:
        out: list[Stmt] = []
        for s in body:
            match s:
                case Loop() if id(s) in made:
                    out.append(made[id(s)])
                case Loop() if (one := _alone(s, made)) is not None:
                    steps = tuple(replace(one, left=1) if x is one else x for x in visit(s.body))
                    out += [replace(s, body=steps), Done(one)]
                case Loop() | If():
                    out.append(replace(s, body=visit(s.body)))
                case Copy() if s.target in panels:
                    out.append(replace(s, turned=True))
                case Wait() if panels & set(s.buffers):
                    out += [s, Fence()]
                case _:
                    out.append(s)
        return tuple(out)

    return replace(grid, body=visit(grid.body)), panels


def _alone(s: Loop, made: Mapping[int, GroupProduct]) -> GroupProduct | None:
    """The product of a ring's step, where it is the only one there, and nothing else in the loop has its sums."""
    products = [made[id(x)] for x in s.body if id(x) in made]
    if len(products) != 1 or not any(isinstance(x, Wait) for x in s.body) or s.kind is not LoopKind.SERIAL:
        return None
    (one,) = products
    rest = tuple(x for x in s.body if id(x) not in made)
    touched = {n for x in every(rest) for n in names_of_stmt(x)}
    if one.product.rows or one.product.sum.buffer in touched or any(id(x) in made for x in every(rest)):
        return None
    return one


class _Products:
    """The products of a grid, and what else touches their panels."""

    def __init__(self, local: dict[str, Buffer], thread: Loop, body: Block) -> None:
        self.local, self.thread = local, thread
        self.chains = list(_chains(body))
        inside = {id(s) for c in self.chains for s in every((c.loops[0],))}
        outside = [s for s in every(body) if id(s) not in inside and not isinstance(s, Alloc)]
        copies = [s for s in outside if isinstance(s, Copy)]
        self.copied = {s.target for s in copies} - {s.target for s in copies if s.nbytes != PIECE}
        plain = [s for s in outside if not isinstance(s, Own)]
        self.touched = {e.source for s in plain for e in walk(roots(s)) if isinstance(e, Load)}
        self.touched |= {n for s in plain if not isinstance(s, Loop | If) for n in written((s,))}

    def panels(self, c: MatrixLoops) -> set[str]:
        return {e.source for e in walk([c.sum.value]) if isinstance(e, Load)}

    def fitting(self, c: MatrixLoops) -> GroupProduct | None:
        """The product of a chain, where its panels are as the unit takes them."""
        names = self.panels(c)
        if not names <= self.copied - self.touched or not names <= self.local.keys():
            return None
        try:
            p = Product(c, self.thread, self.local)
        except IRError:
            return None
        if p.operand not in TYPES or p.threads % (WARP * GROUP) or not p.deep:
            return None
        if any(self.local[n].scope is not Scope.LOCAL or not _patterned(self.local[n]) for n in names):
            return None
        columns = sorted(p.runs([x for x, _ in p.columns]), key=lambda at: _far(p, p.b, at))
        a, b = self.side(p, p.a, None), self.side(p, p.b, [_far(p, p.b, at) for at in columns])
        if a is None or b is None or len(columns) > TILES:
            return None
        return GroupProduct(p, a, b, tuple(columns))

    def side(self, p: Product, o: Operand, tiles: list[int] | None) -> Side | None:
        """The operand's descriptor; None where its layout is no such. `tiles`: where the tiles of eight columns start;
        None for rows, which the warps of a group share."""
        size = o.buffer.dtype.itemsize
        row, pattern, major = ROW_BYTES // size, PATTERN_BYTES // size, o.along == 1
        if (o.deep, o.along) != ((row, 1) if major else (1, row)):
            return None
        start = p.base(o, {x.var: 0 for x in p.loops})
        warps = [substitute(start, {p.warp: w}) for w in range(p.threads // WARP)]
        own = 0 if tiles is not None else WARP_ROWS * o.along
        if any(x - warps[w - w % GROUP] != own * (w % GROUP) for w, x in enumerate(warps)):
            return None
        group = Var(f"{p.warp.name}_group", 0, p.threads // WARP // GROUP - 1)
        if gcd(*_steps(substitute(start, {p.warp: group * GROUP}))) % pattern:
            return None
        if any(_far(p, o, at) % pattern for at in p.runs([x for x, _ in p.rows])):
            return None
        terms = [_far(p, o, at) for at in p.runs(p.deep)]
        if any(x % pattern if major else not 0 <= x <= row - p.unit.k for x in terms):
            return None
        block = tiles[8] if tiles is not None and major and len(tiles) > 8 else pattern
        even = [k // 8 * block + k % 8 * 8 if major else 8 * row * k for k in range(len(tiles or ()))]
        if (tiles is not None and tiles != even) or block % pattern:
            return None
        return Side(o, major, block * size if major else 16)


WARP_ROWS = 16
"""Rows of one warp in a group."""


def _far(p: Product, o: Operand, at: Mapping[Var, int]) -> int:
    """The distance of a tile from the first; -1 where that is no constant."""
    zero = {x.var: 0 for x in p.loops}
    far = p.base(o, {**zero, **at}) - p.base(o, zero)
    return far if isinstance(far, int) else -1


def _steps(x: Int) -> list[int]:
    """The factors of an offset's terms, and its constant."""
    if isinstance(x, int):
        return [x]
    return [x.const, *(c for _, c in x.terms)] if isinstance(x, Sum) else [1]


def _patterned(b: Buffer) -> bool:
    """The buffer's size is whole patterns."""
    return high(b.size) * b.dtype.itemsize % PATTERN_BYTES == 0


def _chains(body: Block) -> Iterator[MatrixLoops]:
    for s in body:
        if isinstance(s, Loop) and (found := chain(s)) is not None:
            yield found
        elif isinstance(s, Loop | If):
            yield from _chains(s.body)
