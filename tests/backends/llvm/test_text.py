"""What the rendered text looks like: where instructions stand and how many there are."""

from __future__ import annotations

import re

import pytest

from weft.backends.cpu.compile import assembly
from weft.backends.cpu.llvm import Module, host_target
from weft.backends.cpu.render import render_module
from weft.backends.cpu.targets import Target
from weft.backends.llvm.frame import groups_of
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.expr import Load, call, cast, const
from weft.ir.index import Int, Var, in_range
from weft.ir.loops import Alloc, Block, Buffer, Loop, LoopKind, Prefetch, Program, Scope, Stmt, Store
from weft.ir.ops import Op

F32 = dtypes.float32
X86 = Target("x86_64-unknown-linux-gnu", "znver4", "+avx512f,+avx512bw,+avx512dq,+avx512vl,+f16c,+fma")
SERIAL, UNROLL, VECTOR, PARALLEL = LoopKind.SERIAL, LoopKind.UNROLL, LoopKind.VECTOR, LoopKind.PARALLEL


def var(name: str, extent: int) -> Var:
    return Var(name, 0, extent - 1)


def loop(v: Var, *body: Stmt, kind: LoopKind = SERIAL) -> Loop:
    return Loop(v, v.hi + 1, body, kind)


def params(**sizes: Int) -> tuple[Buffer, ...]:
    return tuple(Buffer(n, F32, s, Scope.GLOBAL) for n, s in sizes.items())


def load(name: str, at: Int) -> Load:
    return Load(F32, name, (at,))


def text(body: Block, target: Target = X86, name: str = "k", **sizes: Int) -> str:
    return render_module([Program(name, params(**sizes), frozenset(sizes), (), body)], target)


def matmul(tile_m: int, tile_n: int, lanes: int, k: int) -> Block:
    """One tile of a product of packed panels, accumulated in registers."""
    acc = Buffer("acc", F32, tile_m * tile_n, Scope.REGISTER)
    kk = var("k", k)

    def tile(tag: str, at: Int, value: object) -> Stmt:
        i, j, v = var(f"i{tag}", tile_m), var(f"j{tag}", tile_n // lanes), var(f"v{tag}", lanes)
        column = j * lanes + v
        store = value(i, column)  # type: ignore[operator]
        return loop(i, loop(j, loop(v, store, kind=VECTOR), kind=UNROLL), kind=UNROLL)

    def fma(i: Var, c: Int) -> Stmt:
        here = i * tile_n + c
        return Store(
            "acc",
            here,
            call(Op.FMA, load("a", kk * tile_m + i), load("b", kk * tile_n + c), load("acc", here)),
        )

    return (
        Alloc(acc),
        tile("0", 0, lambda i, c: Store("acc", i * tile_n + c, const(F32, 0.0))),
        loop(kk, tile("1", kk, fma)),
        tile("2", 0, lambda i, c: Store("r", i * tile_n + c, load("acc", i * tile_n + c))),
    )


def test_what_a_loop_does_not_change_is_computed_outside() -> None:
    i, j = var("i", 8), var("j", 8)
    ir = text((loop(i, loop(j, Store("y", i * 24 + j * 3, load("x", i * 24 + j * 3)))),), x=200, y=200)
    innermost = re.split(r"\nloop\d+:\n", ir)[-1].split("br i1")[0]
    assert ir.count(" phi ") == 4  # i, 24 i, j, 3 j
    assert " mul " not in ir
    assert innermost.count("getelementptr") == 2


def test_unrolled_iterations_share_loads() -> None:
    ir = text(matmul(6, 64, 16, 32), a=6 * 32, b=64 * 32, r=6 * 64)
    assert ir.count("load float,") == 6
    assert ir.count("load <16 x float>") == 4 + 24 + 24  # the panel's; accumulators to add to, and to store
    assert ir.count("insertelement") == 6


@pytest.mark.skipif(not host_target().triple.startswith("x86_64"), reason="x86-64 assembly")
def test_a_register_tile_stays_in_registers() -> None:
    program = Program("k", params(a=6 * 32, b=64 * 32, r=6 * 64), frozenset({"r"}), (), matmul(6, 64, 16, 32))
    asm = assembly([program], X86)
    start = asm.index("vfmadd231ps")
    inner = asm[asm.rindex(".LBB", 0, start) : asm.index("\tj", start)]
    assert inner.count("vfmadd231ps") == 24
    assert "rsp" not in inner


@pytest.mark.skipif(not host_target().triple.startswith("x86_64"), reason="x86-64 assembly")
@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.uint8, dtypes.int8])
def test_vectors_of_floats_become_integers_as_vectors(dtype: DType) -> None:
    """LLVM takes vectors of its own saturating conversion apart."""
    v = var("v", 64)
    whole = cast(cast(load("x", v), dtypes.int32), dtype)
    buffers = (Buffer("x", F32, 64, Scope.GLOBAL), Buffer("y", dtype, 64, Scope.GLOBAL))
    body = (loop(v, Store("y", v, whole), kind=VECTOR),)
    asm = assembly([Program("k", buffers, frozenset({"y"}), (), body)], X86)
    assert asm.count("vcvttps2dq") == 4 and "vcvttss2si" not in asm


def test_streams_need_a_proof_of_alignment() -> None:
    i, v = var("i", 10), var("v", 16)

    def stream(at: Int) -> str:
        store = Store("y", at, load("x", at), stream=True)
        return text((loop(i, loop(v, store, kind=VECTOR)),), x=400, y=400)

    assert stream(i * 16 + v).count("!nontemporal") == 1
    assert "sfence" in stream(i * 16 + v)
    assert "!nontemporal" not in stream(i * 16 + v + 1)
    assert "!nontemporal" not in stream(i * 17 + v)


@pytest.mark.parametrize(
    ("lanes", "most", "sizes"),
    [
        (16, 16, [16]),
        (48, 48, [32, 16]),
        (21, 21, [16, 4, 1]),
        (3, 3, [2, 1]),
        (64, 16, [16] * 4),
        (21, 8, [8, 8, 4, 1]),
    ],
)
def test_lanes_come_in_powers_of_two(lanes: int, most: int, sizes: list[int]) -> None:
    assert [g.lanes for g in groups_of(lanes, most)] == sizes


def test_lines_are_read_in_order_where_memory_is_asked_for_ahead() -> None:
    i, v = var("i", 10), var("v", 64)
    ahead = Prefetch("x", i * 64 + v + 256)
    shown = text(
        (loop(i, loop(v, ahead, Store("y", i * 64 + v, load("x", i * 64 + v)), kind=VECTOR)),), x=640, y=640
    )
    assert shown.count("call void @llvm.prefetch.p0(") == 4 and shown.count("load <16 x float>") == 4
    alone = text(
        (loop(i, loop(v, Store("y", i * 64 + v, load("x", i * 64 + v)), kind=VECTOR)),), x=640, y=640
    )
    assert "load <64 x float>" in alone


def test_rows_that_are_read_as_a_square_are_asked_for_line_by_line() -> None:
    """A vector of 16 rows, whose next steps are neighbours: one prefetch for each row, not for each element."""
    k, v = var("k", 16), var("v", 16)
    at = v * 512 + k
    inner = loop(v, Prefetch("x", at + 8192), Store("y", v * 16 + k, load("x", at)), kind=VECTOR)
    shown = text((loop(k, inner, kind=UNROLL),), x=16384, y=256)
    assert shown.count("call void @llvm.prefetch.p0(") == 16
    assert shown.count("load <4 x float>") == 64 and "masked.gather" not in shown
    alone = loop(v, Prefetch("x", v * 512), Store("y", v, load("x", v * 512)), kind=VECTOR)
    assert "call void @llvm.prefetch" not in text((alone,), x=16384, y=256)


def test_several_programs_share_a_module() -> None:
    v = var("v", 16)
    guarded = Load(F32, "x", (v - 3,), in_range(v, 3, None))
    programs = [
        Program(
            f"k{n}",
            params(x=16, y=16),
            frozenset({"y"}),
            (),
            (loop(var("i", 4), loop(v, Store("y", v, guarded), kind=VECTOR), kind=PARALLEL),),
        )
        for n in range(3)
    ]
    ir = render_module(programs, X86)
    assert [f"@k{n}(" in ir for n in range(3)] == [True] * 3
    assert ir.count("declare void @weft_parallel") == 1
    Module(ir).verify()


def test_ops_without_a_rule_are_refused() -> None:
    with pytest.raises(ValueError, match="exp must be expanded before it is rendered"):
        text((Store("y", 0, call(Op.EXP, load("x", 0))),), x=1, y=1)


def test_a_processor_has_no_thread_blocks() -> None:
    with pytest.raises(ValueError, match="k: a CPU has no block loops"):
        text((loop(var("i", 4), Store("y", 0, load("x", 0)), kind=LoopKind.BLOCK),), x=1, y=1)


def test_short_loops_are_written_out_while_there_is_little_in_them() -> None:
    r, s, v = var("r", 4), var("s", 4), var("v", 16)
    near = loop(r, loop(s, loop(v, Store("y", r * 64 + s * 16 + v, load("x", s * 16 + v)), kind=VECTOR)))
    assert "loop" not in text((near,), x=64, y=256)
    wide = var("v", 64)
    apart = load("x", r * 1024 + s * 256 + wide * 4)
    far = loop(r, loop(s, loop(wide, Store("y", r * 256 + s * 64 + wide, apart), kind=VECTOR)))
    shown = text((far,), x=4096, y=1024)
    assert (
        shown.count(" phi ") >= 2 and shown.count("load <64 x float>") == 16
    )  # of the inner loop's iterations


def test_short_loops_around_squares_stay_loops() -> None:
    r, j, v = var("r", 4), var("j", 32), var("v", 16)
    turns = loop(
        r, loop(j, loop(v, Store("y", r * 512 + j * 16 + v, load("x", r * 512 + v * 32 + j)), kind=VECTOR))
    )
    assert text((turns,), x=2048, y=2048).count("load <4 x float>") == 64  # of one square


@pytest.mark.skipif(not host_target().triple.startswith("x86_64"), reason="x86-64 assembly")
def test_squares_are_turned_by_interleaving_fours() -> None:
    j, v = var("j", 16), var("v", 16)
    turn = loop(j, loop(v, Store("y", j * 16 + v, load("x", v * 16 + j)), kind=VECTOR))
    program = Program("k", params(x=256, y=256), frozenset({"y"}), (), (turn,))
    asm = assembly([program], X86)
    counts = [len(re.findall(rf"\t{name}", asm)) for name in ("vunpck", "vshuf", "vperm")]
    assert counts == [32, 0, 0]
