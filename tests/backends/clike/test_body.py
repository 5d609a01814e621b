"""What C-like text looks like: elements that unrolled loops read again are read once, as long as they stay the same."""

from __future__ import annotations

from weft.backends.clike.parts import offsets, split
from weft.backends.opencl.language import OpenCL
from weft.backends.opencl.render import render_module
from weft.backends.wgpu.render import render
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.expr import Const, Expr, Load, call
from weft.ir.index import Int, Var, in_range
from weft.ir.loops import Accumulate, Alloc, Barrier, Block, Buffer, Loop, LoopKind, Program, Scope, Store
from weft.ir.ops import Op

F = dtypes.float32
SERIAL, UNROLL = LoopKind.SERIAL, LoopKind.UNROLL
U, V, I = Var("u", 0, 3), Var("v", 0, 2), Var("i", 0, 4)


def buffer(name: str, size: int, scope: Scope = Scope.GLOBAL, dtype: DType = F) -> Buffer:
    return Buffer(name, dtype, size, scope)


def load(name: str, at: Int) -> Load:
    return Load(F, name, (at,))


def texts(*body: object, dtype: DType = F) -> list[str]:
    """The program in OpenCL C and in WGSL."""
    stmts: Block = body  # type: ignore[assignment]
    params = (buffer("x", 99, dtype=dtype), buffer("y", 99, dtype=dtype))
    grids, _ = split([Program("p", params, frozenset({"y"}), (), stmts)], 1 << 14, 64, 8)
    return [render_module(grids, OpenCL()), "\n".join(map(render, grids))]


def test_a_tile_reads_each_operand_once() -> None:
    product = call(Op.MUL, load("x", I * 3 + V), load("x", U + 50))
    tile = Loop(U, 4, (Loop(V, 3, (Accumulate("t", U * 3 + V, Op.ADD, product),), UNROLL),), UNROLL)
    clear = Loop(U, 4, (Loop(V, 3, (Store("t", U * 3 + V, Const(F, 0.0)),), UNROLL),), UNROLL)
    save = Loop(U, 4, (Loop(V, 3, (Store("y", U * 3 + V, load("t", U * 3 + V)),), UNROLL),), UNROLL)
    for text in texts(Alloc(buffer("t", 12, Scope.REGISTER)), clear, Loop(I, 5, (tile,), SERIAL), save):
        assert text.count("= x[") == 3 + 4, text


def test_what_is_written_is_read_again() -> None:
    again = Loop(U, 4, (Store("y", 0, call(Op.ADD, load("y", 0), load("x", 0))),), UNROLL)
    for text in texts(again):
        assert text.count("= y[0]") == 4, text
        assert text.count("= x[0]") == 1, text


def test_what_a_loop_writes_is_read_in_every_iteration() -> None:
    inner = Loop(I, 5, (Store("y", I, call(Op.ADD, load("y", 0), Const(F, 1.0))),), SERIAL)
    for text in texts(Loop(U, 4, (Store("y", U + 20, load("y", 0)), inner), UNROLL)):
        assert text.count("= y[0]") == 8, text


def test_names_end_with_the_block_that_they_are_in() -> None:
    inside = Loop(I, 5, (Loop(U, 2, (Store("y", I * 2 + U, load("x", I)),), UNROLL),), SERIAL)
    for text in texts(inside, inside):
        assert text.count("= x[i") == 2, text


def test_other_threads_write_before_a_barrier() -> None:
    t = Var("t", 0, 31)
    body = (
        Alloc(buffer("s", 32, Scope.LOCAL)),
        Loop(t, 32, (Store("s", t, load("x", t)),), LoopKind.THREAD),
        Barrier(),
        Loop(t, 32, (Loop(U, 2, (Store("y", t + U * 32, load("s", 31 - t)),), UNROLL),), LoopKind.THREAD),
    )
    for text in texts(*body):
        assert text.count("= s[") == 1, text
        assert text.index("arrier()" if "arrier()" in text else "barrier(") < text.index("= s["), text


def test_guards_are_part_of_what_is_read() -> None:
    a: Expr = Load(F, "x", (I,), in_range(I + U, 0, 4))
    for text in texts(Loop(I, 5, (Loop(U, 2, (Store("y", I * 2 + U, a),), UNROLL),), SERIAL)):
        assert text.count("x[") - text.count("x[]") >= 2, text


def test_offsets_of_buffers() -> None:
    assert offsets((3, 300, 1), 256) == ((0, 256, 768), 1024)
