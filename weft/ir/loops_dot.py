"""Lowered loops as a DOT graph: statements in nested boxes, arrows from what is written to who reads it."""
# Tests: tests/ir/test_loops_text.py

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.expr import Load, Temp, walk
from weft.ir.loops import Accumulate, Alloc, Block, If, Let, Loop, Program, Stmt, Store
from weft.ir.loops_names import roots
from weft.ir.loops_text import show_head, show_program


def dot_program(p: Program) -> str:
    """The program as DOT source."""
    lines = [f"digraph {_quote(p.name)} {{", "  compound=true; node [shape=box, fontname=monospace];"]
    lines.append(f"  label={_quote(show_program(p).splitlines()[0])}; labelloc=t; fontname=monospace;")
    source = {b.name: f"param_{k}" for k, b in enumerate(p.params)}
    lines += [f"  {source[b.name]} [label={_quote(b.name)}, shape=cylinder];" for b in p.params]
    edges: list[str] = []
    lines += _block(p.body, "  ", "s", source, edges)
    return "\n".join([*lines, *dict.fromkeys(edges), "}"])


def _block(body: Block, indent: str, path: str, source: dict[str, str], edges: list[str]) -> Iterator[str]:
    for k, s in enumerate(body):
        node = f"{path}_{k}"
        if isinstance(s, Loop | If):
            yield f"{indent}subgraph cluster_{node} {{"
            yield f"{indent}  label={_quote(show_head(s))}; fontname=monospace;"
            yield from _block(s.body, indent + "  ", node, source, edges)
            yield indent + "}"
            continue
        yield f"{indent}{node} [label={_quote(show_head(s))}];"
        edges.extend(f"  {source[n]} -> {node};" for n in _reads(s) if n in source)
        match s:
            case Let(name, _):
                source[name] = node
            case Alloc(buffer):
                source[buffer.name] = node
            case Store(buffer) | Accumulate(buffer):
                edges.append(f"  {node} -> {source.get(buffer, buffer)} [style=dashed];")
            case _:
                pass


def _reads(s: Stmt) -> list[str]:
    used = (x for x in walk(roots(s)) if isinstance(x, Load | Temp))
    return list(dict.fromkeys(x.source if isinstance(x, Load) else x.name for x in used))


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\l") + '"'
