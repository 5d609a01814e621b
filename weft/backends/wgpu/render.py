"""Grids (see `weft.ir.passes.grid`) -> WGSL, a module each.

Buffers are bindings 0, 1, ... of group 0 in the order of the grid's parameters, all of them writable, because parts of
one buffer may be read and written in one dispatch. The uniform after them holds the runtime variables, the number of
blocks, and a zero that compilers do not know. Block b is the workgroup (b % WIDE, b / WIDE); workgroups beyond the
last block do nothing.
"""

from __future__ import annotations

from weft.backends.clike.body import Body
from weft.backends.clike.language import Language, Place, Where
from weft.backends.clike.values import opaques
from weft.ir.dtypes import DType, bool_
from weft.ir.expr import Load
from weft.ir.index import high
from weft.ir.loops import Combine, Loop, Program
from weft.ir.ops import Op
from weft.ir.passes.grid import grid_parts
from weft.lazy_dataclass import dataclass

from .language import Wgsl, is_packed, needed

WIDE = 32768
"""Workgroups along the first dimension of a dispatch that has more of them."""


def render(grid: Program, pairs: bool = False) -> str:
    """The text of one grid; its entry point is `main`. `pairs`: without 64-bit integers of the device."""
    language = Wgsl(pairs)
    block, local, thread = grid_parts(grid)
    assert isinstance(thread.extent, int), "grids have a constant number of threads"
    body = _Grid(language, _Threads(thread.extent), ["weft_numbers", "weft_group", "weft_thread"])
    head: list[str] = []
    for k, b in enumerate(grid.params):
        packed = is_packed(b.dtype)
        place = Place(body.fresh.fresh(b.name), b, Where.GLOBAL, written=packed)
        body.places[b.name] = place
        element = "atomic<u32>" if packed else language.type(b.dtype)
        head.append(f"@group(0) @binding({k}) var<storage, read_write> {place.name}: array<{element}>;")
    numbers = len(grid.variables) + 2
    head.append("var<private> weft_zero: u32;")
    head.append(
        f"@group(0) @binding({len(grid.params)}) "
        f"var<uniform> weft_numbers: array<vec4<i32>, {-(-numbers // 4)}>;"
    )
    for b in local:
        body.places[b.name] = place = Place(body.fresh.fresh(b.name), b, Where.LOCAL)
        head.append(f"var<workgroup> {place.name}: array<{language.type(b.dtype)}, {max(1, high(b.size))}>;")
    for j, v in enumerate(grid.variables):
        body.do(f"let {body.define(v.name)}: i32 = {number(j)};")
    body.do(f"weft_zero = bitcast<u32>({number(numbers - 1)});")
    name = body.define(block.var.name)
    body.do(f"let {name}: i32 = i32(weft_group.x + weft_group.y * {WIDE}u);")
    body.do(f"if ({name} >= {number(numbers - 2)}) {{ return; }}")
    if thread.extent == 1:
        body.constants[thread.var] = 0
        body.names[thread.var.name] = "0"
    else:
        body.do(f"let {body.define(thread.var.name)}: i32 = i32(weft_thread);")
    body.block(thread.body)
    lines = "\n".join(body.lines)
    entry = (
        f"@compute @workgroup_size({thread.extent})\n"
        "fn main(@builtin(workgroup_id) weft_group: vec3<u32>, "
        "@builtin(local_invocation_index) weft_thread: u32) {"
    )
    return "\n".join([*head, language.helpers(needed(lines)) + entry, lines, "}\n"])


class _Grid(Body):
    """The body of one grid; its threads combine registers by subgroup operations."""

    def among_threads(self, s: Combine) -> None:
        """With the thread half a group away, then a quarter, and so on. All of a group compute the same tree: where an
        operand's place matters (zeros of either sign), the lower thread's comes first."""
        place = self.places[s.buffer]
        dtype = place.buffer.dtype
        ordered = dtype.is_float and s.op in (Op.MAX, Op.MIN)
        distance = s.group // 2
        while distance:
            for _ in self.each():
                (value,) = self.evaluate((Load(dtype, s.buffer, (s.offset,)),), opaques(s.offset))
                mine = self.bind(dtype, 0, value.text)
                other = self.bind(dtype, 0, _exchanged(self.language, dtype, mine, distance))
                if ordered:
                    upper = f"((weft_thread & {distance}u) != 0u)"
                    first = self.bind(dtype, 0, f"select({mine}, {other}, {upper})")
                    mine, other = first, self.bind(dtype, 0, f"select({other}, {mine}, {upper})")
                total = self._op(s.op, dtype, 0, (mine, other))
                self.do(self.language.store(place, self.index.bare(self.at(s.offset)), total))
            self._forget({s.buffer})
            distance //= 2


def _exchanged(language: Language, dtype: DType, x: str, distance: int) -> str:
    """The value that another invocation of the subgroup has. Its operations know words and vectors of them."""
    if dtype is bool_:
        return f"(subgroupShuffleXor(select(0u, 1u, {x}), {distance}u) != 0u)"
    if language.type(dtype) in ("i64", "u64"):
        words = f"subgroupShuffleXor(bitcast<vec2<u32>>({x}), vec2<u32>({distance}u).x)"
        return f"bitcast<{language.type(dtype)}>({words})"
    return f"subgroupShuffleXor({x}, {distance}u)"


def number(k: int) -> str:
    """Entry `k` of the uniform."""
    return f"weft_numbers[{k // 4}][{k % 4}]"


@dataclass(frozen=True, slots=True)
class _Threads:
    """Blocks and threads are the device's."""

    threads: int

    def spread(self, body: Body, loop: Loop) -> None:
        raise ValueError(f"a grid has no {loop.kind.value} loop inside its loop over threads")

    def barrier(self, body: Body) -> None:
        if self.threads > 1:
            body.do("storageBarrier();")
            body.do("workgroupBarrier();")
