"""Lowered loops as text, one statement a line; runs of assignments are aligned.

kernel scale(x: f32[n], y: f32[n] out; n in 1..4096)
  parallel i in n//16 + 1:
    vector j in 16:
      y[16*i + j] = x[16*i + j] * 2.0 if 16*i + j < n
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.expr import Expr, Load, ScalarCall, Temp, walk
from weft.ir.expr_text import bare, show_guard
from weft.ir.loops import (
    Accumulate,
    Alloc,
    Barrier,
    Block,
    Buffer,
    Combine,
    If,
    Let,
    Loop,
    LoopKind,
    Prefetch,
    Program,
    Scope,
    Stmt,
    Store,
)

_WIDEST_ALIGNED = 24
_LONGEST_TREE = 200
_LONGEST_PART = 20


def show_program(p: Program) -> str:
    """The whole program as text, without a final newline."""
    params = ", ".join(_param(b, b.name in p.writes) for b in p.params)
    variables = ", ".join(f"{v.name} in {v.lo}..{v.hi}" for v in p.variables)
    head = f"kernel {p.name}({params}{'; ' if variables else ''}{variables})"
    return "\n".join([head, *_block(p.body, "  ")])


def show_head(s: Stmt) -> str:
    """The first line of a statement."""
    return next(_block((s,), ""))


def _param(b: Buffer, written: bool) -> str:
    return f"{b.name}: {b.dtype.short}[{b.size!r}]{' out' if written else ''}"


def _block(body: Block, indent: str) -> Iterator[str]:
    run: list[tuple[str, str, str]] = []  # assignments not yet printed: target, operator, rest
    for s in body:
        if isinstance(s, Let | Store | Accumulate):
            parts, value = _short(s.value)
            run.extend(parts)
            run.append(_assignment(s, value))
            continue
        yield from _flush(run, indent)
        match s:
            case Loop():
                kind = "" if s.kind is LoopKind.SERIAL else s.kind.value + " "
                yield f"{indent}{kind or 'for '}{s.var.name} in {s.extent!r}:"
                yield from _block(s.body, indent + "  ") if s.body else [indent + "  pass"]
            case If():
                yield f"{indent}if {show_guard(s.guard)}:"
                yield from _block(s.body, indent + "  ") if s.body else [indent + "  pass"]
            case Alloc(b):
                scope = "" if b.scope is Scope.REGISTER else f" {b.scope.value}"
                yield f"{indent}alloc {b.name}: {b.dtype.short}[{b.size!r}]{scope}"
            case Barrier():
                yield f"{indent}barrier"
            case Combine():
                sign = f"{s.op.info.infix or s.op.symbol}="
                yield f"{indent}combine {s.buffer}[{s.offset!r}] {sign} of {s.group} threads"
            case Prefetch():
                yield f"{indent}prefetch {s.buffer}[{s.offset!r}]"
            case _:
                raise TypeError(f"not a statement: {type(s).__name__}")
    yield from _flush(run, indent)


def _assignment(s: Let | Store | Accumulate, e: Expr) -> tuple[str, str, str]:
    value = bare(e)
    if isinstance(s, Let):
        return s.name, "=", value
    guard = f" if {show_guard(s.guard)}" if s.guard else ""
    if guard and isinstance(e, Load) and e.guard:
        value = f"({value})"
    target = f"{s.buffer}[{s.offset!r}]"
    if isinstance(s, Accumulate):
        return target, f"{s.op.info.infix or s.op.symbol}=", value + guard
    return ("stream " if s.stream else "") + target, "=", value + guard


def _short(e: Expr) -> tuple[list[tuple[str, str, str]], Expr]:
    """`e`, cut where its text would be long: lines that name shared and deep parts %1, %2 ..., and what is left."""
    order = [x for x in walk([e], into_indices=False) if isinstance(x, ScalarCall)]
    uses: dict[Expr, int] = {}
    size: dict[Expr, int] = {}
    for x in order:
        size[x] = 1 + sum(size.get(a, 1) for a in x.args)
        for a in x.args:
            uses[a] = uses.get(a, 0) + 1
    if not order or size[e] <= _LONGEST_TREE:
        return [], e
    lines: list[tuple[str, str, str]] = []
    new: dict[Expr, Expr] = {}
    for x in order:
        short = ScalarCall(x.dtype, x.op, tuple(new.get(a, a) for a in x.args))
        size[x] = 1 + sum(1 if isinstance(new.get(a), Temp) else size.get(a, 1) for a in x.args)
        if x is not e and (uses[x] > 1 or size[x] >= _LONGEST_PART):
            name = f"%{len(lines) + 1}"
            lines.append((name, "=", bare(short)))
            short = Temp(x.dtype, name)
        new[x] = short
    return lines, new[e]


def _flush(run: list[tuple[str, str, str]], indent: str) -> Iterator[str]:
    left = max((len(t) for t, _, _ in run if len(t) <= _WIDEST_ALIGNED), default=0)
    sign = max((len(o) for _, o, _ in run), default=0)
    for target, operator, rest in run:
        yield f"{indent}{target:<{left}} {operator:>{sign}} {rest}"
    run.clear()
