"""What the executor counts: wavefronts and sectors of accesses whose costs are known."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.cuda.assembler import assemble, library
from tests.backends.cuda.ptx.machine import launch
from tests.backends.cuda.ptx.profile import Profile
from tests.backends.cuda.ptx.text import parse
from tests.backends.cuda.sass import Flight, flights

ONE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a)
.maxntid 32
{
	.reg .b32 %r<8>;
	.reg .b64 %rd<8>;
	.shared .align 128 .b8 tile[32768];
	ld.param.b64 %rd1, [a];
	mov.u32 %r1, %tid.x;
	cvt.u64.u32 %rd2, %r1;
	mul.lo.u64 %rd3, %rd2, STEP;
	add.s64 %rd4, %rd1, %rd3;
	ld.global.KIND %r2, [%rd4];
	mov.b64 %rd5, tile;
	add.s64 %rd6, %rd5, %rd3;
	st.shared.KIND [%rd6], %r2;
	bar.sync 0;
	ret;
}
"""


@pytest.mark.parametrize(
    "step, wide, wavefronts, least, sectors",
    [
        (4, False, 1, 1, 4),
        (8, False, 2, 1, 8),
        (128, False, 32, 1, 32),
        (132, False, 1, 1, 32),
        (16, True, 4, 4, 16),
        (32, True, 8, 4, 32),
        (144, True, 4, 4, 32),
    ],
)
def test_wavefronts_and_sectors(step: int, wide: bool, wavefronts: int, least: int, sectors: int) -> None:
    text = ONE.replace("STEP", str(step)).replace("KIND", "v4.b32" if wide else "b32")
    if wide:
        text = text.replace("%r2", "{%r2, %r3, %r4, %r5}")
    memory = np.zeros(8192, np.uint8)
    start = -(-memory.ctypes.data // 256) * 256
    profile = Profile()
    given = {start: memory[start - memory.ctypes.data :]}
    launch(parse(text), "k", 1, 32, 0, [start], given, profile=profile)
    assert (profile.shared.taken, profile.shared.least) == (wavefronts, least)
    assert profile.reads.taken == sectors
    kinds = profile.instructions(parse(text).kernels["k"].blocks)
    assert (kinds["st shared"], kinds["ld global"], kinds["barrier"]) == (1, 1, 1)


LOADS = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a)
.maxntid 32
{
	.reg .b32 %r<12>;
	.reg .b64 %rd<8>;
	ld.param.b64 %rd1, [a];
BODY
	st.global.b64 [%rd1], %rd2;
	ret;
}
"""
CHASED = "\n".join(["\tld.global.b64 %rd2, [%rd1];", *["\tld.global.b64 %rd2, [%rd2];"] * 2])
TOGETHER = "\n".join(
    [
        *[f"\tld.global.b64 %rd{k + 3}, [%rd1+{8 * k}];" for k in range(4)],
        "\tadd.s64 %rd2, %rd3, %rd4;",
        "\tadd.s64 %rd2, %rd2, %rd5;",
        "\tadd.s64 %rd2, %rd2, %rd6;",
    ]
)


@pytest.mark.skipif(library() is None, reason="needs NVIDIA's assembler: pip install nvidia-nvjitlink")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "body, loads, waits", [(CHASED, 3, 3), (TOGETHER, 4, 1), (CHASED + "\n" + TOGETHER, 6, 4)]
)
def test_waits_are_those_of_the_machine_code(body: str, loads: int, waits: int, arch: str) -> None:
    text = LOADS.replace("BODY", body)
    if body.startswith(CHASED + "\n"):  # so that what is chased is used, and one of the loads is not
        text = text.replace("add.s64 %rd2, %rd3, %rd4", "add.s64 %rd2, %rd2, %rd3").replace(
            "[%rd1+", "[%rd2+"
        )
    assert flights(assemble(text, arch))["k"] == Flight(loads, waits)
