"""The graph as text: one line per node, inputs before users.

%0 buffer cpu:0 f32[4, 3]
%1 const 1.0 f32[4, 3]
%2 add %0 %1 f32[4, 3]
return %2
"""
# Tests: tests/ir/test_graph_forms.py

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from weft.ir.graph import Attrs, Fill, Leaf, Node, Target, toposort
from weft.ir.loop_body import LoopNode
from weft.ir.template import GraphTemplate


def show_graph(roots: Sequence[Node], stop_at_storage: bool = True) -> str:
    """The graph under `roots`; computed nodes are shown as leaves if asked."""
    order = toposort(roots, stop_at_storage)
    names = {id(n): f"%{k}" for k, n in enumerate(order)}
    lines = [f"{names[id(n)]} {_line(n, names, stop_at_storage)}" for n in order]
    return "\n".join([*lines, f"return {', '.join(names[id(r)] for r in roots)}"])


def show_attrs(attrs: Attrs) -> str:
    """The attributes of a node, without their class: "axis=0, op=add"."""
    match attrs:
        case None:
            return ""
        case Fill():
            return str(attrs.value).lower() if isinstance(attrs.value, bool) else repr(attrs.value)
        case Leaf():
            return attrs.device or "anywhere"  # in a file, which every device reads
        case LoopNode():
            return f"{attrs.part.value} {attrs.number} of {attrs.body!r}"
        case GraphTemplate():
            return repr(attrs)
        case Target(device, None):
            return f"device={device!r}"
        case _:
            return ", ".join(f"{f.name}={_plain(getattr(attrs, f.name))}" for f in fields(attrs) if f.repr)


def _plain(x: object) -> str:
    return getattr(x, "symbol", None) or repr(x)


def _line(n: Node, names: dict[int, str], stop_at_storage: bool) -> str:
    shape = f"{n.dtype.short}[{', '.join(map(repr, n.shape))}]"
    if stop_at_storage and n.storage is not None and n.inputs:
        return f"stored {shape} {n.device}"
    words = [n.op.symbol, *(names[id(i)] for i in n.inputs)]
    attrs = show_attrs(n.attrs)
    if attrs:
        words.append(attrs if isinstance(n.attrs, Fill | Leaf) else f"({attrs})")
    return " ".join([*words, shape])
