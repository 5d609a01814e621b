"""Lowered loops -> C. The statements and expressions are weft's `clike` renderer's; functions and tasks are ours.

void NAME(void **buffers, const int64_t *variables, char *scratch)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.backends.clike.body import Body
from weft.backends.clike.c import HEADER, C
from weft.backends.clike.language import Place, Where
from weft.ir.loops import Alloc, Block, Buffer, If, Loop, LoopKind, Program, Stmt

STACK_BYTES = 8 << 10
"""A larger buffer of a kernel lies in scratch memory, not on the stack."""

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Function:
    """A rendered program: its text, the helper functions it calls, and the bytes of scratch memory it needs."""

    text: str
    helpers: frozenset[str]
    scratch_bytes: int


@dataclass(frozen=True, slots=True)
class InOrder:
    """What clike asks about tasks: here they run one after another, so a barrier has nothing to do."""

    def spread(self, body: Body, loop: Loop) -> None:
        """Independent iterations, as a loop."""
        body.loop(replace(loop, kind=LoopKind.SERIAL))

    def barrier(self, body: Body) -> None:
        """Nothing: the one thread has done all before it."""


def render(p: Program) -> Function:
    """One program as a function."""
    language = C()
    body = Body(language, InOrder(), [p.name, "buffers", "variables", "scratch"])
    for k, b in enumerate(p.params):
        place = Place(body.fresh.fresh(b.name), b, Where.GLOBAL, written=b.name in p.writes)
        body.places[b.name] = place
        kind = language.memory_type(b.dtype)
        body.do(f"{'' if place.written else 'const '}{kind} *{place.name} = buffers[{k}];")
    for k, v in enumerate(p.variables):
        body.do(f"const int64_t {body.define(v.name)} = variables[{k}];")
    statements, large = without_large(p.body)
    offset = 0
    for b in large:
        assert isinstance(b.size, int)
        place = Place(body.fresh.fresh(b.name), b, Where.GLOBAL)
        body.places[b.name] = place
        body.do(f"{language.memory_type(b.dtype)} *{place.name} = (void *)(scratch + {offset});")
        offset += -(-b.size * b.dtype.itemsize // ALIGNMENT) * ALIGNMENT
    body.block(statements)
    head = f"void {p.name}(void **buffers, const int64_t *variables, char *scratch) {{"
    return Function("\n".join([head, *body.lines, "}\n"]), frozenset(body.helpers), offset)


def module(functions: Sequence[Function]) -> str:
    """The text of one file."""
    used = frozenset(name for f in functions for name in f.helpers)
    return "\n".join([HEADER, C().helpers(used), *(f.text for f in functions)])


def without_large(body: Block) -> tuple[Block, list[Buffer]]:
    """The block without allocations that are too large for the stack, and these. Tasks run one at a time, so one
    buffer serves them all."""
    out: list[Stmt] = []
    large: list[Buffer] = []
    for s in body:
        if isinstance(s, Alloc) and isinstance(s.buffer.size, int):
            if s.buffer.size * s.buffer.dtype.itemsize > STACK_BYTES:
                large.append(s.buffer)
                continue
        elif isinstance(s, Loop | If) and getattr(s, "kind", None) is not LoopKind.VECTOR:
            inner, found = without_large(s.body)
            s = replace(s, body=inner)
            large += found
        out.append(s)
    return tuple(out), large
