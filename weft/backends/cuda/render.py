"""Grids (see `weft.ir.passes.grid`) -> one LLVM module for NVPTX.

A kernel is `void NAME(ptr buffer ..., i64 variable ...)`: its parameters in order, then the runtime variables. Block b
of the grid is `ctaid.x`, thread t of a block `tid.x`. A LOCAL buffer is an array of its own in shared memory, or, where
they take more than a kernel may declare, a slice of one array whose size is given at launch.
"""
# Tests: tests/backends/cuda/test_kernels.py, tests/backends/cuda/test_assemble.py

from __future__ import annotations

from collections.abc import Sequence, Set

from weft.backends.cuda import matrix
from weft.backends.cuda.extrema import with_extrema
from weft.backends.cuda.ring import ringed
from weft.backends.cuda.warpgroups import PATTERN_BYTES, on_groups
from weft.backends.llvm.body import Body
from weft.backends.llvm.frame import Frame, Place, Term
from weft.backends.llvm.memory import ALIGNMENT
from weft.backends.llvm.writer import Function, Module
from weft.ir.index import high
from weft.ir.loops import Alloc, Loop, LoopKind, Program
from weft.ir.loops_names import every
from weft.ir.passes.grid import grid_parts
from weft.lazy_dataclass import dataclass

TRIPLE = "nvptx64-nvidia-cuda"


@dataclass(frozen=True, slots=True)
class Shape:
    """The launch of one grid: threads per block, and the bytes of shared memory given to it then."""

    threads: int
    local_bytes: int


TWO_BLOCKS = 256
"""Threads of a block, at most, of which two run at once with 128 registers for each thread."""

KEPT_BYTES = 256
"""Bytes of one buffer in a thread's registers then, at most: half of them."""

STATIC_BYTES = 48 << 10
"""Bytes of shared memory that a kernel may declare."""


def render_module(
    grids: Sequence[Program],
    ring_bytes: int | None = None,
    group_bytes: int | None = None,
    extrema: bool = False,
) -> tuple[str, list[Shape]]:
    """LLVM IR of all grids, each exported under its own name, and how each is launched. `ring_bytes`: of shared memory
    that rings of asynchronous copies may make a block's buffers grow to; None where there are no such copies.
    `group_bytes`: the same for products by groups of warps; None where there are no units for them. `extrema`: whether
    there are instructions for maxima that keep NaNs."""
    module = Module(gpu=True, bfloat=True, extrema=extrema)
    arrays: list[str] = []
    shapes: list[Shape] = []
    for grid in grids:
        grid = with_extrema(grid) if extrema else grid
        panels = frozenset[str]()
        if group_bytes is not None:
            grouped, panels = on_groups(ringed(grid, group_bytes, behind=1))
            grid = grouped if panels else grid
        if ring_bytes is not None and not panels:
            grid = ringed(grid, ring_bytes)
        shapes.append(_kernel(module, grid, arrays, panels))
    dynamic = f"@weft_local = external addrspace(3) global [0 x i8], align {PATTERN_BYTES}"
    head = "\n".join((f'target triple = "{TRIPLE}"', dynamic, *arrays))
    return module.text(head, "attributes #0 = { nounwind }\n!0 = !{i32 1}"), shapes


def _kernel(module: Module, grid: Program, arrays: list[str], panels: Set[str]) -> Shape:
    block, local, thread = grid_parts(grid)
    local = sorted(local, key=lambda b: b.name not in panels)  # these are whole patterns, and start with them
    assert isinstance(thread.extent, int)
    pointers = [f"ptr align 64 %p{k}" for k in range(len(grid.params))]
    numbers = [f"i64 %n{k}" for k in range(len(grid.variables))]
    header = f"define ptx_kernel void @{grid.name}({', '.join([*pointers, *numbers])}) #0"
    f = Function(module, f'{header} "nvvm.maxntid"="{thread.extent}"{_two_blocks(thread)}')
    frame = Frame(f)
    for k, buffer in enumerate(grid.params):
        frame.places[buffer.name] = Place(f"%p{k}", buffer)
    for k, var in enumerate(grid.variables):
        frame.bindings[var.name] = Term(f"%n{k}", 0)
    sizes = [max(1, -(-high(b.size) * b.dtype.itemsize // ALIGNMENT) * ALIGNMENT) for b in local]
    dynamic = sum(sizes) > STATIC_BYTES
    top = 0
    for k, (b, size) in enumerate(zip(local, sizes, strict=True)):
        array = "@weft_local" if dynamic else f"@{grid.name}_local{k}"
        if not dynamic:
            align = PATTERN_BYTES if b.name in panels else 128
            arrays.append(f"{array} = internal addrspace(3) global [{size} x i8] undef, align {align}")
        base = frame.on_entry(f"addrspacecast ptr addrspace(3) {array} to ptr")
        frame.places[b.name] = Place(frame.on_entry(f"getelementptr i8, ptr {base}, i64 {top}"), b)
        top += size if dynamic else 0
    body = Body(frame, _Threads(high(block.extent)))
    body.hooks.spread(body, block)
    f.do("ret void")
    module.functions.append(f.finish())
    return Shape(thread.extent, top)


def _two_blocks(thread: Loop) -> str:
    """The attribute by which two blocks find registers on a multiprocessor, 128 for each thread (64 where
    there are twice as many): where threads keep few elements, which leaves enough for the rest."""
    kept = [high(s.buffer.size) * s.buffer.dtype.itemsize for s in every(thread.body) if isinstance(s, Alloc)]
    threads, most = high(thread.extent), max(kept, default=0)
    few = any(threads <= TWO_BLOCKS * n and most * n <= KEPT_BYTES for n in (1, 2))
    return ' "nvvm.minctasm"="2"' if few else ""


@dataclass(slots=True)
class _Threads:
    """Blocks and threads are the hardware's."""

    blocks: int
    thread: Loop | None = None
    """The loop over threads that is being rendered."""

    def spread(self, body: Body, loop: Loop) -> None:
        """The loop's variable is the hardware's number of the block or the thread; its iterations run side by side."""
        frame = body.frame
        register, extent = (
            ("ctaid", self.blocks) if loop.kind is LoopKind.BLOCK else ("tid", high(loop.extent))
        )
        if extent <= 1:
            frame.bindings[loop.var.name] = 0
        else:
            name = f"llvm.nvvm.read.ptx.sreg.{register}.x"
            frame.f.module.declare(name, "i32", "")
            number = frame.on_entry(f"call range(i32 0, {extent}) i32 @{name}()")
            frame.bindings[loop.var.name] = Term(frame.on_entry(f"zext nneg i32 {number} to i64"), 0)
        if loop.kind is LoopKind.THREAD:
            self.thread = loop
        # the block's LOCAL buffers have their places already
        body.block(loop.body[-1:] if loop.kind is LoopKind.BLOCK else loop.body)

    def barrier(self, body: Body) -> None:
        """All threads of the block meet."""
        body.frame.f.call("llvm.nvvm.barrier0", "void", [])

    def exchanged(self, body: Body, word: str, distance: int) -> str:
        """A shuffle of the whole warp."""
        args = [("i32", "-1"), ("i32", word), ("i32", str(distance)), ("i32", "31")]
        return body.frame.f.call("llvm.nvvm.shfl.sync.bfly.i32", "i32", args)

    def multiply(self, body: Body, loop: Loop) -> bool:
        """Products of small matrices, a warp's threads together."""
        found = matrix.chain(loop)
        if found is not None:
            matrix.multiply(body, found, self.thread)
        return found is not None
