"""Rebuilding statements: what the passes have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import is_

from weft.ir.expr import Expr, Temp, as_index, transform
from weft.ir.index import Index, Int, Opaque, Var, map_guard, rewrite
from weft.ir.loops import Accumulate, Alloc, Block, Combine, If, Let, Loop, Prefetch, Program, Stmt, Store
from weft.ir.loops_names import bound


def with_body(p: Program, body: Block) -> Program:
    """The program with another body; the same object where nothing changed."""
    return p if body is p.body or body == p.body else replace(p, body=body)


def map_stmt(s: Stmt, expr: Callable[[Expr], Expr], index: Callable[[Int], Int]) -> Stmt:
    """A statement with its own expressions and indices mapped; its body is left alone."""
    match s:
        case Let():
            value = expr(s.value)
            return s if value is s.value else Let(s.name, value)
        case Store() | Accumulate():
            guard = map_guard(s.guard, index) if s.guard else s.guard
            return s.over(index(s.offset), expr(s.value), guard)
        case If():
            guard = map_guard(s.guard, index)
            return s if guard is s.guard else If(guard, s.body)
        case Loop():
            extent = index(s.extent)
            return s if extent is s.extent else Loop(s.var, extent, s.body, s.kind)
        case Prefetch() | Combine():
            offset = index(s.offset)
            return s if offset is s.offset else replace(s, offset=offset)
        case _:
            return s


def map_block(body: Block, expr: Callable[[Expr], Expr], index: Callable[[Int], Int]) -> Block:
    """A block with every expression and index in it mapped; the same object where nothing changed."""
    out: list[Stmt] = []
    for s in body:
        new = map_stmt(s, expr, index)
        if isinstance(new, Loop | If):
            inner = map_block(new.body, expr, index)
            new = new.around(inner)
        out.append(new)
    return body if all(map(is_, out, body)) else tuple(out)


def index_map(
    expr: Callable[[Expr], Expr], leaf: Callable[[Index], Int | None] | None = None
) -> Callable[[Int], Int]:
    """A map of index expressions that maps the scalar values inside them by `expr`, and by `leaf` where it says."""

    def on_index(i: Index) -> Int | None:
        if leaf is not None:
            new = leaf(i)
            if new is not None:
                return new
        if isinstance(i, Opaque):
            value = expr(i.value)
            return i if value is i.value else as_index(value, i.lo, i.hi)
        return None

    if leaf is None:
        return lambda i: i if isinstance(i, int) or not i.computed else rewrite(i, on_index)
    return lambda i: i if isinstance(i, int) else rewrite(i, on_index)


class Fresh:
    """Names that a program does not use yet."""

    def __init__(self, p: Program) -> None:
        self.taken = {b.name for b in p.params} | {v.name for v in p.variables} | bound(p.body)
        self.count: dict[str, int] = {}

    def name(self, stem: str) -> str:
        """`stem` followed by the first free number."""
        n = self.count.get(stem, 0)
        while f"{stem}{n}" in self.taken:
            n += 1
        self.count[stem] = n + 1
        self.taken.add(f"{stem}{n}")
        return f"{stem}{n}"


def copy_block(body: Block, fresh: Fresh, mapping: Mapping[str, Int] | None = None) -> Block:
    """A copy that binds new names; free index variables are replaced as `mapping` says."""
    return _Copy(fresh, dict(mapping or {})).block(body)


class _Copy:
    def __init__(self, fresh: Fresh, variables: dict[str, Int]) -> None:
        self.fresh = fresh
        self.variables = variables
        self.renamed: dict[str, str] = {}
        self.memo: dict[Expr, Expr] = {}
        self.index = index_map(self.expr, self.variable)

    def variable(self, i: Index) -> Int | None:
        return self.variables.get(i.name) if isinstance(i, Var) else None

    def expr(self, e: Expr) -> Expr:
        return transform(e, self.leaf, self.variable, self.memo)

    def leaf(self, e: Expr) -> Expr | None:
        from weft.ir.expr import Load

        if isinstance(e, Temp) and e.name in self.renamed:
            return Temp(e.dtype, self.renamed[e.name])
        if isinstance(e, Load) and e.source in self.renamed:
            return Load(e.dtype, self.renamed[e.source], e.index, e.guard)
        return None

    def new(self, name: str) -> str:
        self.renamed[name] = self.fresh.name(name.rstrip("0123456789").rstrip("_") + "_")
        return self.renamed[name]

    def block(self, body: Block) -> Block:
        out: list[Stmt] = []
        for s in body:
            new = map_stmt(s, self.expr, self.index)
            match new:
                case Loop():
                    hi = new.extent - 1 if isinstance(new.extent, int) else new.extent.hi - 1
                    var = Var(self.new(new.var.name), 0, hi)
                    self.variables[new.var.name] = var
                    new = Loop(var, new.extent, self.block(new.body), new.kind)
                case If():
                    new = If(new.guard, self.block(new.body))
                case Let():
                    new = Let(self.new(new.name), new.value)
                case Alloc():
                    new = Alloc(replace(new.buffer, name=self.new(new.buffer.name)))
                case Store() | Accumulate() | Prefetch() | Combine():
                    new = replace(new, buffer=self.renamed.get(new.buffer, new.buffer))
                case _:
                    pass
            out.append(new)
        return tuple(out)


def substituted(body: Block, mapping: Mapping[Var, Int]) -> Block:
    """The block with index variables replaced everywhere."""
    if not mapping:
        return body
    memo: dict[Expr, Expr] = {}

    def on_index(x: Index) -> Int | None:
        return mapping.get(x) if isinstance(x, Var) else None

    def on_expr(e: Expr) -> Expr:
        return transform(e, lambda _: None, on_index, memo)

    return mapped(body, on_expr, index_map(on_expr, on_index))


def mapped(body: Block, expr: Callable[[Expr], Expr], index: Callable[[Int], Int]) -> Block:
    """`map_stmt` of all statements, inner ones too."""
    out: list[Stmt] = []
    for s in body:
        new = map_stmt(s, expr, index)
        out.append(new.around(mapped(new.body, expr, index)) if isinstance(new, Loop | If) else new)
    return tuple(out)


def map_accesses(
    body: Block, name: str, load: Callable[[Expr], Expr | None], offset: Callable[[Int], Int]
) -> Block:
    """Loads as `load` says, and offsets of what is stored to buffer `name` mapped."""
    memo: dict[Expr, Expr] = {}

    def on_expr(e: Expr) -> Expr:
        return transform(e, load, None, memo)

    on_index = index_map(on_expr)

    def visit(block: Block) -> Block:
        out: list[Stmt] = []
        for s in block:
            new = map_stmt(s, on_expr, on_index)
            if isinstance(new, Store | Accumulate) and new.buffer == name:
                new = replace(new, offset=offset(new.offset))
            out.append(new.around(visit(new.body)) if isinstance(new, Loop | If) else new)
        return tuple(out)

    return visit(body)
