"""Which of a program's outputs may take the memory of one of its inputs."""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir import expr as ex
from weft.ir.expr import Expr, Load
from weft.ir.index import Int
from weft.ir.loops import Accumulate, If, Let, Loop, Program, Stmt, Store


def in_place_pairs(program: Program) -> frozenset[tuple[int, int]]:
    """(written, read) pairs of parameter numbers that may share memory.

    That is safe when the output is stored by one statement, at the same offset at which every load of the input
    happens, each before the store in the same innermost body: an element is read for the last time just before it is
    overwritten.
    """
    params = {p.name: k for k, p in enumerate(program.params)}
    bodies = list(_bodies(program.body))
    loads: dict[str, list[tuple[int, int, Int]]] = {}  # parameter -> (body, position, offset)
    stores: dict[str, list[tuple[int, int, Int, bool]]] = {}
    for b, body in enumerate(bodies):
        for k, stmt in enumerate(body):
            for e in _expressions(stmt):
                for x in ex.walk([e]):
                    if isinstance(x, Load) and x.source in params:
                        loads.setdefault(x.source, []).append((b, k, x.index[0]))
            match stmt:
                case Store() | Accumulate() if stmt.buffer in params:
                    plain = isinstance(stmt, Store)
                    stores.setdefault(stmt.buffer, []).append((b, k, stmt.offset, plain))
                case _:
                    pass
    out: set[tuple[int, int]] = set()
    for written, places in stores.items():
        if len(places) != 1 or not places[0][3] or written in loads:
            continue
        body, position, offset, _ = places[0]
        w = program.params[params[written]]
        for read, where in loads.items():
            r = program.params[params[read]]
            if r.dtype is not w.dtype or r.size != w.size or read in stores:
                continue
            if all(b == body and k <= position and at == offset for b, k, at in where):
                out.add((params[written], params[read]))
    return frozenset(out)


def _bodies(block: tuple[Stmt, ...]) -> Iterator[tuple[Stmt, ...]]:
    yield block
    for s in block:
        if isinstance(s, Loop | If):
            yield from _bodies(s.body)


def _expressions(stmt: Stmt) -> Iterator[Expr]:
    match stmt:
        case Let():
            yield stmt.value
        case Store() | Accumulate():
            yield stmt.value
            yield from ex.opaque_values(stmt.offset)
            yield ex.test(stmt.guard)
        case If():
            yield ex.test(stmt.guard)
        case _:
            pass
