"""C's fmod on floats, as a function of the module.

With q = |x| / |y| below 2**22 (f32) or 2**51 (f64), n = trunc(q) is the quotient or one more, and |x| - n |y| is a
multiple of y's last place not larger than y, so that one fused multiply-add gives it exactly. Where any lane is out of
that range, all go through `frem`, which is a call of the C library per lane. GPUs have no such library: LLVM writes
x - trunc(x / y) * y out there, which is not exact, for quotients beyond that range.
"""

from __future__ import annotations

from weft.backends.llvm.types import literal, register_type, suffix, vector
from weft.backends.llvm.writer import Function, Module
from weft.ir.dtypes import DType

_LARGEST_QUOTIENT = {32: 2.0**22, 64: 2.0**51}


def remainder(f: Function, dtype: DType, lanes: int, x: str, y: str) -> str:
    """x - trunc(x / y) * y, exact, with the sign of x."""
    t = register_type(dtype, lanes)
    name = f"weft.fmod.{suffix(register_type(dtype), lanes)}"
    if name not in f.module.helpers:
        f.module.helpers[name] = _define(f.module, name, dtype, lanes)
    return f.emit(f"call {t} @{name}({t} {x}, {t} {y})")


def _define(module: Module, name: str, dtype: DType, lanes: int) -> str:
    scalar, t, bools = register_type(dtype), register_type(dtype, lanes), vector("i1", lanes)
    f = Function(module, f"define internal {t} @{name}({t} %x, {t} %y) #0")

    def constant(value: float) -> str:
        return f"splat ({scalar} {literal(dtype, value)})" if lanes else literal(dtype, value)

    def math(op: str, *args: str) -> str:
        return f.call(f"llvm.{op}.{suffix(scalar, lanes)}", t, [(t, a) for a in args])

    ax, ay = math("fabs", "%x"), math("fabs", "%y")
    q = f.emit(f"fdiv {t} {ax}, {ay}")
    small = f.emit(f"fcmp olt {t} {q}, {constant(_LARGEST_QUOTIENT[dtype.bits])}")
    finite = f.emit(f"fcmp olt {t} {ay}, {constant(float('inf'))}")
    easy = f.emit(f"and {bools} {small}, {finite}")
    if lanes:
        easy = f.call(f"llvm.vector.reduce.and.v{lanes}i1", "i1", [(bools, easy)])
    f.do(f"br i1 {easy}, label %quick, label %slow")
    f.start("quick")
    n = f.emit(f"fneg {t} {math('trunc', q)}")
    rest = math("fma", n, ay, ax)
    below = f.emit(f"fcmp olt {t} {rest}, zeroinitializer")
    up = f.emit(f"fadd {t} {rest}, {ay}")
    rest = f.emit(f"select {bools} {below}, {t} {up}, {t} {rest}")
    f.do(f"ret {t} {math('copysign', rest, '%x')}")
    f.start("slow")
    f.do(f"ret {t} {f.emit(f'frem {t} %x, %y')}")
    return f.finish()
