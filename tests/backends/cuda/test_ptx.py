"""The PTX machine itself: control flow, warp-wide instructions, asynchronous copies, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backends.cuda.ptx.machine import launch
from tests.backends.cuda.ptx.text import PtxError, parse
from tests.backends.cuda.ptx.warps import SHAPES

HEAD = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b)
.maxntid 64
{
	.reg .pred %p<4>;
	.reg .b16 %rs<8>;
	.reg .b32 %r<40>;
	.reg .b64 %rd<8>;
	.shared .align 128 .b8 tile[4096];
	ld.param.b64 %rd1, [a];
	ld.param.b64 %rd2, [b];
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd3, %r1, 4;
	add.s64 %rd4, %rd1, %rd3;
	add.s64 %rd5, %rd2, %rd3;
	cvt.u64.u32 %rd6, %r1;
"""


def run(body: str, a: Any, threads: int = 32, races: bool = True) -> Any:
    """Words b after `body`, which finds the addresses of its own words of a and b in %rd4 and %rd5."""
    a = np.ascontiguousarray(a)
    b = np.zeros(1024, np.uint32)
    memory = {x.ctypes.data: x.view(np.uint8).reshape(-1) for x in (a, b)}
    launch(
        parse(HEAD + body + "\nret;\n}"), "k", 1, threads, 0, [a.ctypes.data, b.ctypes.data], memory, races
    )
    return b


def test_threads_part_and_meet() -> None:
    body = """
	ld.global.b32 %r2, [%rd4];
	mov.b32 %r3, 0;
	setp.eq.b32 %p1, %r2, 0;
	@%p1 bra $done;
$loop:
	add.s32 %r3, %r3, %r2;
	sub.s32 %r2, %r2, 1;
	setp.ne.b32 %p2, %r2, 0;
	@%p2 bra $loop;
$done:
	shfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;
	st.global.b32 [%rd5], %r4;
"""
    n = np.arange(32, dtype=np.uint32) % 7
    assert np.array_equal(run(body, n)[:32], (n * (n + 1) // 2)[np.arange(32) ^ 1])


@pytest.mark.parametrize("mode", ["up", "down", "idx"])
def test_shuffles(mode: str) -> None:
    clamp = 0 if mode == "up" else 31
    got = run(f"ld.global.b32 %r2, [%rd4];\nshfl.sync.{mode}.b32 %r3, %r2, 3, {clamp}, -1;\nst.global.b32 [%rd5], %r3;",
              np.arange(100, 132, dtype=np.uint32))[:32]  # fmt: skip
    lane = np.arange(32)
    wanted = {
        "up": np.where(lane < 3, lane, lane - 3),
        "down": np.where(lane > 28, lane, lane + 3),
        "idx": 0 * lane + 3,
    }
    assert np.array_equal(got, wanted[mode] + 100)


def test_shuffles_wait_for_the_whole_warp() -> None:
    """Threads that took a short way to where all meet, which stands further up, do not go ahead."""
    body = """
	setp.eq.s32 %p1, %r1, 5;
	mov.b32 %r2, 1;
	@%p1 bra $long;
$meet:
	shfl.sync.bfly.b32 %r4, %r2, 1, 31, -1;
	bra $end;
$long:
	mov.b32 %r2, 7;
	bra $meet;
$end:
	st.global.b32 [%rd5], %r4;
"""
    wanted = np.ones(32)
    wanted[4] = 7
    assert np.array_equal(run(body, np.zeros(32, np.uint32))[:32], wanted)


def test_part_of_a_warp_may_not_shuffle() -> None:
    with pytest.raises(PtxError, match="part of a warp"):
        run("setp.lt.u32 %p1, %r1, 5;\n@%p1 shfl.sync.bfly.b32 %r4, %r1, 1, 31, -1;", np.zeros(32, np.uint32))


def test_races_and_addresses() -> None:
    shared = "mov.b64 %rd7, tile;\nadd.s64 %rd3, %rd7, %rd3;\nst.shared.b32 [%rd3], %r1;\n"
    across = "xor.b32 %r2, %r1, 40;\nmul.wide.u32 %rd6, %r2, 4;\nadd.s64 %rd6, %rd7, %rd6;\n"
    read = across + "ld.shared.b32 %r3, [%rd6];\nst.global.b32 [%rd5], %r3;"
    none = np.zeros(64, np.uint32)
    assert np.array_equal(run(shared + "bar.sync 0;\n" + read, none, 64)[:64], np.arange(64) ^ 40)
    with pytest.raises(PtxError, match="race"):
        run(shared + read, none, 64)
    with pytest.raises(PtxError, match="outside"):
        run("ld.global.b32 %r3, [%rd4+100000];", none)
    with pytest.raises(PtxError, match="misaligned"):
        run("ld.global.b32 %r3, [%rd4+2];", none)


COPY = """
	mov.b64 %rd7, tile;
	shl.b64 %rd3, %rd6, 4;
	add.s64 %rd7, %rd7, %rd3;
	add.s64 %rd4, %rd1, %rd3;
	cp.async.cg.shared.global [%rd7], [%rd4], 16;
	cp.async.commit_group;
	{wait}
	ld.shared.b32 %r3, [%rd7+4];
	st.global.b32 [%rd5], %r3;
	cp.async.wait_all;
"""


def test_copies_arrive_when_they_are_waited_for() -> None:
    a = np.arange(128, dtype=np.uint32)
    assert np.array_equal(run(COPY.format(wait="cp.async.wait_group 0;"), a)[:32], np.arange(32) * 4 + 1)
    assert (run(COPY.format(wait="cp.async.wait_group 1;"), a)[:32] == 0xFFFFFFFF).all()


@pytest.mark.parametrize(
    "kind, shape", [("bf16", "m16n8k16"), ("f16", "m16n8k16"), ("f16", "m16n8k8"), ("tf32", "m16n8k8")]
)
def test_fragments_cover_each_element_once(kind: str, shape: str) -> None:
    s = SHAPES[shape, 32 if kind == "tf32" else 16]
    for (rows, columns), size in ((s.a, (16, s.k)), (s.b, (s.k, 8)), (s.c, (16, 8))):
        counts = np.zeros(size, int)
        np.add.at(counts, (rows, columns), 1)
        assert (counts == 1).all()


def test_load_matrix() -> None:
    body = """
	mov.b64 %rd7, tile;
	add.s64 %rd6, %rd7, %rd3;
	ld.global.b32 %r2, [%rd4];
	st.shared.b32 [%rd6], %r2;
	bar.sync 0;
	and.b32 %r3, %r1, 7;
	mul.wide.u32 %rd3, %r3, 16;
	add.s64 %rd7, %rd7, %rd3;
	ldmatrix.sync.aligned.m8n8.x1{t}.shared.b16 {{%r4}}, [%rd7];
	st.global.b32 [%rd5], %r4;
"""
    m = np.arange(64, dtype=np.uint16).reshape(8, 8)
    for t, wanted in (("", m), (".trans", m.T)):
        got = run(body.format(t=t), m.view(np.uint32))[:32].view(np.uint16).reshape(8, 8)
        assert np.array_equal(got, wanted)
