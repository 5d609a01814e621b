"""The outputs of a program that may take the memory of one of its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from weft.ir import expr as ex
from weft.ir.expr import Expr, Load
from weft.ir.index import Int
from weft.ir.loops import Accumulate, If, Let, Loop, Program, Stmt, Store

Path: TypeAlias = tuple[tuple[int, bool], ...]
"""The place of a statement: its position in each block from the outermost in, and whether a loop is there."""


def in_place_pairs(program: Program) -> frozenset[tuple[int, int]]:
    """(written, read) pairs of parameter numbers that may share memory.

    That is safe when the output is stored by one statement, and every load of the input happens before it: in the same
    iteration of the same innermost body and at the same offset, so that an element is read for the last time just
    before it is overwritten; or in a statement or loop that is over before the storing one begins.
    """
    params = {p.name: k for k, p in enumerate(program.params)}
    loads: dict[str, list[tuple[Path, Int, Stmt]]] = {}
    stores: dict[str, list[tuple[Path, Int, bool]]] = {}
    for path, stmt in _statements(program.body, ()):
        for x in ex.walk(_expressions(stmt)):
            if isinstance(x, Load) and x.source in params:
                loads.setdefault(x.source, []).append((path, x.index[0], stmt))
        match stmt:
            case Store() | Accumulate() if stmt.buffer in params:
                stores.setdefault(stmt.buffer, []).append((path, stmt.offset, isinstance(stmt, Store)))
            case _:
                pass
    out: set[tuple[int, int]] = set()
    for written, places in stores.items():
        if len(places) != 1 or not places[0][2] or written in loads:
            continue
        path, offset, _ = places[0]
        w = program.params[params[written]]
        for read, where in loads.items():
            r = program.params[params[read]]
            if r.dtype is not w.dtype or r.size != w.size or read in stores:
                continue
            if all(_just_before(at, path, i == offset) or _over(at, path, s) for at, i, s in where):
                out.add((params[written], params[read]))
    return frozenset(out)


def _just_before(load: Path, store: Path, same: bool) -> bool:
    """In one innermost body, at the same offset."""
    return same and load[:-1] == store[:-1] and load[-1][0] <= store[-1][0]


def _over(load: Path, store: Path, stmt: Stmt) -> bool:
    """No loop is around both, and the load's part of the program comes first. A binding may be used later than that."""
    for (a, looping), (b, _) in zip(load, store, strict=False):
        if a != b:
            return a < b and not isinstance(stmt, Let)
        if looping:
            return False
    return False


def _statements(block: tuple[Stmt, ...], outer: Path) -> Iterator[tuple[Path, Stmt]]:
    for k, s in enumerate(block):
        path = (*outer, (k, isinstance(s, Loop)))
        yield path, s
        if isinstance(s, Loop | If):
            yield from _statements(s.body, path)


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
