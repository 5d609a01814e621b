"""Grids (see `weft.ir.passes.grid`) -> OpenCL C.

A kernel is `NAME(buffer ..., long variable ...)`: its parameters in order, then the runtime variables. Block b of the
grid is work group b, thread t of a block work item t of the group. LOCAL buffers are arrays in local memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.clike.body import Body
from weft.backends.clike.language import Place, Where
from weft.ir import dtypes
from weft.ir.index import high
from weft.ir.loops import Loop, Program
from weft.ir.passes.grid import grid_parts
from weft.lazy_dataclass import dataclass

from .language import RESERVED, OpenCL

HINTS = """#ifndef __has_builtin
#define __has_builtin(x) 0
#endif
#if __has_builtin(__builtin_nontemporal_store)
#define WEFT_STREAM(type, value, at) __builtin_nontemporal_store(value, (__global type*)(at))
#else
#define WEFT_STREAM(type, value, at) (*(__global type*)(at) = (value))
#endif
#if __has_builtin(__builtin_prefetch)
#define WEFT_PREFETCH(at) __builtin_prefetch((const void*)(size_t)(at))
#else
#define WEFT_PREFETCH(at)
#endif
"""


def render_module(grids: Sequence[Program], language: OpenCL | None = None) -> str:
    """The text of all grids, each a kernel under its own name."""
    language = language or OpenCL()
    kernels = [_kernel(g, language) for g in grids]
    used = frozenset(name for _, names in kernels for name in names)
    body = "\n".join(text for text, _ in kernels)
    pragmas = ["#pragma OPENCL FP_CONTRACT OFF"]
    if "double" in body:
        pragmas.insert(0, "#pragma OPENCL EXTENSION cl_khr_fp64 : enable")
    hints = HINTS if "WEFT_" in body else ""
    return "\n".join([*pragmas, hints + language.runs(body) + language.helpers(used) + body])


def kernel_names(grids: Sequence[Program]) -> dict[str, str]:
    """The names of the grids in the text, by their own."""
    return {g.name: kernel_name(g) for g in grids}


def kernel_name(grid: Program) -> str:
    """The name of a grid in the text."""
    return f"{grid.name}_kernel" if grid.name in RESERVED else grid.name


def _kernel(grid: Program, language: OpenCL) -> tuple[str, set[str]]:
    block, local, thread = grid_parts(grid)
    assert isinstance(thread.extent, int), "grids have a constant number of threads"
    body = Body(language, _Threads(thread.extent), [grid.name])
    parameters: list[str] = []
    for b in grid.params:
        place = Place(body.fresh.fresh(b.name), b, Where.GLOBAL, written=b.name in grid.writes)
        body.places[b.name] = place
        parameters.append(language.parameter(place))
    parameters += [f"const long {body.define(v.name)}" for v in grid.variables]
    for b in local:
        body.places[b.name] = place = Place(body.fresh.fresh(b.name), b, Where.LOCAL)
        t = language.memory_type(b.dtype)
        body.do(f"__local {t} {place.name}[{max(1, high(b.size))}] __attribute__((aligned(64)));")
    for loop, call in ((block, "get_group_id(0)"), (thread, "get_local_id(0)")):
        if high(loop.extent) <= 1:
            body.constants[loop.var] = 0
            body.names[loop.var.name] = "0"
        else:
            body.do(
                f"const {language.index('', dtypes.int64).strip('()')} {body.define(loop.var.name)} = {call};"
            )
    body.block(thread.body)
    size = f"__attribute__((reqd_work_group_size({thread.extent}, 1, 1)))"
    head = f"__kernel {size}\nvoid {kernel_name(grid)}({', '.join(parameters)}) {{"
    return "\n".join([head, *body.lines, "}\n"]), body.helpers


@dataclass(frozen=True, slots=True)
class _Threads:
    """Blocks and threads are the device's."""

    threads: int

    def spread(self, body: Body, loop: Loop) -> None:
        raise ValueError(f"a grid has no {loop.kind.value} loop inside its loop over threads")

    def barrier(self, body: Body) -> None:
        if self.threads > 1:  # PoCL spends seconds on one that orders nothing
            body.do("barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);")
