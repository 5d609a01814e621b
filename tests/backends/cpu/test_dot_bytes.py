"""Four products of bytes in each lane: every mix of signs, lanes and targets, at the ends of the range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from weft.backends.cpu.compile import assembly
from weft.backends.cpu.llvm import host_target
from weft.backends.cpu.targets import Target
from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.dtypes import DType
from weft.ir.expr import Const, Load
from weft.ir.index import Var
from weft.ir.loops import Accumulate, Buffer, Let, Loop, LoopKind, Prefetch, Program, Scope
from weft.ir.ops import Op

TRIPLE = "x86_64-unknown-linux-gnu"
ZEN4 = Target(TRIPLE, "znver4", "+avx2,+avx512f,+avx512bw,+avx512vl,+avx512vnni")
ALDER = Target(TRIPLE, "alderlake", "+avx2,+avxvnni")
HASWELL = Target(TRIPLE, "haswell", "+avx2")
I32 = dtypes.int32


def program(name: str, a: DType, b: DType, lanes: int, nibbles: bool = False) -> Program:
    """c[l] += sum k: a[k] * b[4*l + k], or of the low halves of b's bytes."""
    k, l = Var("k", 0, 3), Var("l", 0, lanes - 1)
    x, y = Load(a, "a", (k,)), Load(b, "b", (4 * l + k,))
    y = ex.call(Op.AND, y, Const(b, 15)) if nibbles else y
    shared = Let("t", ex.cast(x, I32))
    into = Accumulate("c", l, Op.ADD, ex.call(Op.MUL, ex.cast(y, I32), ex.Temp(I32, "t")))
    body = (
        Loop(
            k,
            4,
            (shared, Loop(l, lanes, (Prefetch("b", 4 * l + k + 4096), into), LoopKind.VECTOR)),
            LoopKind.MATRIX,
        ),
    )
    params = tuple(
        Buffer(n, d, s, Scope.GLOBAL) for n, d, s in (("a", a, 4), ("b", b, 4 * lanes), ("c", I32, lanes))
    )
    return Program(name, params, frozenset({"c"}), (), body)


BYTES = (dtypes.int8, dtypes.uint8)
PROGRAMS = [
    program(f"{a.name}_{b.name}_{lanes}_{int(nibbles)}", a, b, lanes, nibbles)
    for a in BYTES
    for b in BYTES
    for lanes in (2, 4, 8, 16, 24, 33)
    for nibbles in (False, True)
]


@pytest.mark.parametrize(
    "target", [None, Target(host_target().triple, "x86-64-v3", "+avx2")], ids=["host", "avx2"]
)
def test_sums_are_exact(compile_all: Callable[..., Any], target: Target | None) -> None:
    if target is not None and "+avx2" not in host_target().features.split(","):
        pytest.skip("no AVX2 here")
    made = compile_all(PROGRAMS, target)
    for p in PROGRAMS:
        rng = np.random.default_rng(0)
        arrays: dict[str, Any] = {"c": rng.integers(-(1 << 31), 1 << 31, p.params[2].size, dtype=np.int32)}
        for b in p.params[:2]:
            ends = [b.dtype.min, b.dtype.max, 0, 1]
            arrays[b.name] = rng.choice(ends, b.size).astype(b.dtype.name)
        made.check(p.name, arrays)


@pytest.mark.parametrize(
    "target, lanes, has, lacks",
    [
        (ZEN4, 16, "vpdpbusd", "vpmaddwd"),
        (ZEN4, 8, "vpdpbusd", "vpmaddwd"),
        (ALDER, 16, "vpdpbusd", "vpmaddwd"),
        (HASWELL, 16, "vpmaddwd", "vpdpbusd"),
    ],
)
def test_what_has_an_instruction_for_it_uses_it(target: Target, lanes: int, has: str, lacks: str) -> None:
    text = assembly([program("p", dtypes.int8, dtypes.uint8, lanes)], target)
    assert has in text and lacks not in text
    assert text.count("prefetch") == -(-4 * lanes // 64), "each line once"
    assert "vpdpbusd" not in assembly([program("p", dtypes.int8, dtypes.int8, lanes)], target)
