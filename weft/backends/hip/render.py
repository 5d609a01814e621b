"""Grids (see `weft.ir.passes.grid`) -> one LLVM module for AMDGPU.

A kernel is `void NAME(ptr addrspace(1) buffer ..., i64 variable ...)`: its parameters in order, then the runtime
variables. Block b of the grid is `workgroup.id.x`, thread t of a block `workitem.id.x`. A LOCAL buffer is an array in
LDS. Bodies work on generic pointers, which LLVM traces back to these address spaces.
Address spaces, intrinsics and attributes: https://llvm.org/docs/AMDGPUUsage.html
"""
# Tests: tests/backends/hip/test_objects.py

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.llvm.body import Body
from weft.backends.llvm.frame import Frame, Place, Term
from weft.backends.llvm.memory import ALIGNMENT
from weft.backends.llvm.writer import Function, Module
from weft.ir.index import high
from weft.ir.loops import Loop, LoopKind, Program
from weft.ir.passes.grid import grid_parts
from weft.lazy_dataclass import dataclass

TRIPLE = "amdgcn-amd-amdhsa"

_UNUSED = (
    "dispatch-ptr", "queue-ptr", "implicitarg-ptr", "dispatch-id", "workgroup-id-y", "workgroup-id-z",
    "workitem-id-y", "workitem-id-z", "hostcall-ptr", "heap-ptr", "multigrid-sync-arg", "default-queue",
    "completion-action", "lds-kernel-id",
)  # fmt: skip
"""Arguments that the runtime could hand over and none asks for: saying so saves registers and hidden arguments."""

_CODE_OBJECT_VERSION = 400
"""4, which every ROCm reads since 4.1, and older linkers too."""


class _AmdModule(Module):
    """Constants are in address space 4."""

    def zero_block(self, size: int) -> str:
        super().zero_block(size)
        return "addrspacecast (ptr addrspace(4) @weft.zeros to ptr)"

    def text(self, head: str, tail: str) -> str:
        size, self.zeros = self.zeros, 0
        zeros = f"@weft.zeros = internal addrspace(4) constant [{size} x i8] zeroinitializer, align 64"
        return super().text(f"{head}\n{zeros}" if size else head, tail)


class _AmdFunction(Function):
    """The stack is in address space 5."""

    def alloca(self, size: int, align: int = 64) -> str:
        at = f"%{self.fresh('stack')}"
        name = f"%{self.fresh('s')}"
        self.allocas.append(f"  {at} = alloca [{size} x i8], align {align}, addrspace(5)")
        self.allocas.append(f"  {name} = addrspacecast ptr addrspace(5) {at} to ptr")
        return name


def render_module(grids: Sequence[Program], data_layout: str) -> tuple[str, list[int]]:
    """LLVM IR of all grids, each exported under its own name, and the threads of a block of each."""
    module = _AmdModule(gpu=True)
    arrays: list[str] = []
    threads = [_kernel(module, g, arrays) for g in grids]
    head = "\n".join((f'target datalayout = "{data_layout}"', f'target triple = "{TRIPLE}"', *arrays))
    unused = " ".join(f'"amdgpu-no-{name}"' for name in _UNUSED)
    tail = (
        f'attributes #0 = {{ nounwind "uniform-work-group-size"="true" {unused} }}\n'
        "!0 = !{i32 1}\n!llvm.module.flags = !{!1}\n"
        f'!1 = !{{i32 1, !"amdhsa_code_object_version", i32 {_CODE_OBJECT_VERSION}}}'
    )
    return module.text(head, tail), threads


def _kernel(module: Module, grid: Program, arrays: list[str]) -> int:
    block, local, thread = grid_parts(grid)
    assert isinstance(thread.extent, int)
    pointers = [f"ptr addrspace(1) align 64 %g{k}" for k in range(len(grid.params))]
    numbers = [f"i64 %n{k}" for k in range(len(grid.variables))]
    header = f"define amdgpu_kernel void @{grid.name}({', '.join([*pointers, *numbers])}) #0"
    f = _AmdFunction(module, f'{header} "amdgpu-flat-work-group-size"="{thread.extent},{thread.extent}"')
    frame = Frame(f)
    for k, buffer in enumerate(grid.params):
        frame.places[buffer.name] = Place(
            frame.on_entry(f"addrspacecast ptr addrspace(1) %g{k} to ptr"), buffer
        )
    for k, var in enumerate(grid.variables):
        frame.bindings[var.name] = Term(f"%n{k}", 0)
    for k, b in enumerate(local):
        size = max(1, -(-high(b.size) * b.dtype.itemsize // ALIGNMENT) * ALIGNMENT)
        array = f"@{grid.name}_local{k}"
        arrays.append(f"{array} = internal addrspace(3) global [{size} x i8] undef, align 128")
        frame.places[b.name] = Place(frame.on_entry(f"addrspacecast ptr addrspace(3) {array} to ptr"), b)
    body = Body(frame, _Threads(high(block.extent)))
    body.hooks.spread(body, block)
    f.do("ret void")
    module.functions.append(f.finish())
    return thread.extent


@dataclass(slots=True)
class _Threads:
    """Blocks and threads are the hardware's."""

    blocks: int

    def spread(self, body: Body, loop: Loop) -> None:
        """The loop's variable is the hardware's number of the block or the thread; its iterations run side by side."""
        frame = body.frame
        is_block = loop.kind is LoopKind.BLOCK
        name = f"llvm.amdgcn.{'workgroup' if is_block else 'workitem'}.id.x"
        extent = self.blocks if is_block else high(loop.extent)
        if extent <= 1:
            frame.bindings[loop.var.name] = 0
        else:
            frame.f.module.declare(name, "i32", "")
            number = frame.on_entry(f"call range(i32 0, {extent}) i32 @{name}()")
            frame.bindings[loop.var.name] = Term(frame.on_entry(f"zext nneg i32 {number} to i64"), 0)
        # the block's LOCAL buffers have their places already
        body.block(loop.body[-1:] if is_block else loop.body)

    def barrier(self, body: Body) -> None:
        """All threads of the block meet, and see what the others wrote."""
        f = body.frame.f
        f.do('fence syncscope("workgroup") release')
        f.call("llvm.amdgcn.s.barrier", "void", [])
        f.do('fence syncscope("workgroup") acquire')

    def exchanged(self, body: Body, word: str, distance: int) -> str:
        """A permutation of the wave's lanes, by way of the memory of LDS but not its contents."""
        f = body.frame.f
        for half in ("lo", "hi"):
            f.module.declare(f"llvm.amdgcn.mbcnt.{half}", "i32", "i32, i32")
        low = body.frame.on_entry("call i32 @llvm.amdgcn.mbcnt.lo(i32 -1, i32 0)")
        lane = body.frame.on_entry(f"call i32 @llvm.amdgcn.mbcnt.hi(i32 -1, i32 {low})")  # in its wave
        at = f.emit(f"shl i32 {f.emit(f'xor i32 {lane}, {distance}')}, 2")  # in bytes
        return f.call("llvm.amdgcn.ds.bpermute", "i32", [("i32", at), ("i32", word)])

    def multiply(self, body: Body, loop: Loop) -> bool:
        """No matrix units are described, so no loop asks for them."""
        return False
