"""C's fmod on floats, as a function of the module.

With q = |x| / |y| below 2**22 (f32) or 2**51 (f64), n = trunc(q) is the quotient or one more, and |x| - n |y| is a
multiple of y's last place not larger than y, so that one fused multiply-add gives it exactly. Where any lane is out of
that range, all go through `frem`, which is a call of the C library per lane.

GPUs have no such library, and LLVM's own expansion there is not exact. They divide in steps, as by hand: t is y times
the largest power of 2**20 (f32) or 2**50 (f64) that leaves it below x; x is reduced by t as above, and t goes down, a
power at a time, to y. All t are exact, subnormal y included. Up to 14 (f32) or 42 (f64) steps.
"""
# Tests: tests/backends/cpu/test_narrow_stores.py, tests/backends/cpu/test_ops.py

from __future__ import annotations

from math import inf, nan

from weft.backends.llvm.types import literal, register_type, suffix, vector
from weft.backends.llvm.writer import Function, Module
from weft.ir.dtypes import DType

_LARGEST_QUOTIENT = {32: 2.0**22, 64: 2.0**51}

_STEP = {32: 2.0**20, 64: 2.0**50}
"""The factor between two steps of a long division."""

_LONG_DIVISION = """\
  %bounded = fcmp olt {t} {x}, {infinity}
  %proper = fcmp olt {t} {y}, {infinity}
  %positive = fcmp ogt {t} {y}, {zero}
  %finite = and {b} %bounded, %proper
  %divides = and {b} %finite, %positive
  %a = select {b} %divides, {t} {x}, {t} {zero}
  %b = select {b} %divides, {t} {y}, {t} {one}
  br label %up
up:
  %t = phi {t} [ %b, %slow ], [ %higher, %up ]
  %above = fmul {t} %t, {step}
  %still = fcmp ole {t} %above, %a
  %higher = select {b} %still, {t} %above, {t} %t
  %any_up = {any} %still{end}
  br i1 %any_up, label %up, label %down
down:
  %r = phi {t} [ %a, %up ], [ %rest, %down ]
  %d = phi {t} [ %higher, %up ], [ %lower, %down ]
  %q = fdiv {t} %r, %d
  %n = call {t} @llvm.trunc.{suffix}({t} %q)
  %minus = fneg {t} %n
  %left = call {t} @llvm.fma.{suffix}({t} %minus, {t} %d, {t} %r)
  %beyond = fcmp olt {t} %left, {zero}
  %back = fadd {t} %left, %d
  %rest = select {b} %beyond, {t} %back, {t} %left
  %more = fcmp ogt {t} %d, %b
  %below = fmul {t} %d, {inverse}
  %lower = select {b} %more, {t} %below, {t} %d
  %any_down = {any} %more{end}
  br i1 %any_down, label %down, label %done
done:
  %infinite = fcmp oeq {t} {y}, {infinity}
  %whole = and {b} %bounded, %infinite
  %other = select {b} %whole, {t} {x}, {t} {nan}
  %result = select {b} %divides, {t} %rest, {t} %other
  %signed = call {t} @llvm.copysign.{suffix}({t} %result, {t} %x)
  ret {t} %signed"""
"""All lanes until the last is done. Where x or y is not finite, or y is 0, 0 is divided by 1 instead; the result there
is x if only y is infinite, and else NaN."""


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
    finite = f.emit(f"fcmp olt {t} {ay}, {constant(inf)}")
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
    if not module.gpu:
        f.do(f"ret {t} {f.emit(f'frem {t} %x, %y')}")
        return f.finish()
    step, any_lane = _STEP[dtype.bits], f"llvm.vector.reduce.or.v{lanes}i1"
    if lanes:
        module.declare(any_lane, "i1", bools)
    values = {"zero": 0.0, "one": 1.0, "infinity": inf, "nan": nan, "step": step, "inverse": 1 / step}
    written = {k: constant(v) for k, v in values.items()}
    either, end = (f"call i1 @{any_lane}({bools}", ")") if lanes else ("or i1 false,", "")
    types = {"t": t, "b": bools, "suffix": suffix(scalar, lanes)}
    f.lines.append(_LONG_DIVISION.format(any=either, end=end, x=ax, y=ay, **types, **written))
    return f.finish()
