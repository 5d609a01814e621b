"""Conversions of float16 that LLVM calls by name: there, and rounding once."""

import ctypes
from typing import Any

import numpy as np
import pytest

from weft.backends.cpu.llvm import compile_ir
from weft.backends.cpu.machine import host
from weft.backends.cpu.objects import load_object
from weft.backends.cpu.runtime import load_runtime

LOOP = """
define void @convert(ptr %from, ptr %to, i64 %n) nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = getelementptr SOURCE, ptr %from, i64 %i
  %x = load SOURCE, ptr %at
  %y = HOW SOURCE %x to TARGET
  %out = getelementptr TARGET, ptr %to, i64 %i
  store TARGET %y, ptr %out
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
"""


def near_halves(dtype: Any) -> Any:
    """Every finite float16, the middles between neighbours, and what lies just beside both; odd values."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(dtype)
    middles = np.concatenate([(halves[1:] + halves[:-1]) / 2, np.array([65520.0], dtype)])
    points = np.concatenate([halves, middles])
    beside = [np.nextafter(points, dtype(np.inf)), np.nextafter(points, dtype(0))]
    odd = np.array([np.inf, np.nan, 65536, 1e30, np.finfo(dtype).max, np.finfo(dtype).tiny], dtype)
    positive = np.concatenate([points, *beside, odd])
    return np.concatenate([positive, -positive])


@pytest.mark.parametrize(
    ("source", "target", "how"),
    [("double", "half", "fptrunc"), ("float", "half", "fptrunc"), ("half", "float", "fpext")],
)
def test_conversions_that_llvm_calls_are_there(source: str, target: str, how: str) -> None:
    machine = host()
    text = LOOP.replace("SOURCE", source).replace("TARGET", target).replace("HOW", how)
    plain = type(machine.target)(machine.target.triple)  # without F16C: everything is a call
    runtime = load_runtime(machine)
    loaded = load_object(compile_ir(text, plain), ["convert"], runtime.symbols)
    types = {"double": np.float64, "float": np.float32, "half": np.float16}
    if source == "half":
        values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    else:
        values = near_halves(types[source])
    out = np.zeros(values.size, types[target])
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    function(loaded.address("convert"))(values.ctypes.data, out.ctypes.data, values.size)
    with np.errstate(all="ignore"):
        want = values.astype(types[target])
    kept = ~np.isnan(want)
    words = np.uint16 if target == "half" else np.uint32
    assert np.array_equal(out.view(words)[kept], want.view(words)[kept])
    assert np.array_equal(np.isnan(out), np.isnan(want))
    assert np.array_equal(np.signbit(out), np.signbit(want))
