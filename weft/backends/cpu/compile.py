"""Programs -> an object file for the CPU.

What we render is unrolled, vectorized and hoisted already, so a handful of passes is enough: registers for stack
slots, common subexpressions, peepholes.
"""
# Tests: tests/backends/cpu/test_ops.py

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.loops import Program

from .llvm import Module, Target
from .render import render_module

PASSES = ("sroa", "instruction_combine", "simplify_cfg")
"""LLVM's passes, in order."""


def compile_programs(programs: Sequence[Program], target: Target) -> bytes:
    """One object file that exports every program under its name and imports `render.IMPORTS`."""
    return compile_text(render_module(programs, target), target)


def compile_text(text: str, target: Target) -> bytes:
    """The object file of a module that `render_module` gave."""
    return _optimized(text, target).object(target, lean=True)


def assembly(programs: Sequence[Program], target: Target) -> str:
    """The code that `compile_programs` gives, as text."""
    return _optimized(render_module(programs, target), target).assembly(target, lean=True)


def _optimized(text: str, target: Target) -> Module:
    module = Module(text)
    module.run_passes(target, PASSES)
    return module
