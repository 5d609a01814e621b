"""The graph as DOT, for Graphviz: leaves are boxes, operations ellipses."""
# Tests: tests/ir/test_graph_forms.py

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.graph import Node, toposort
from weft.ir.graph_text import show_attrs


def graph_dot(roots: Sequence[Node], stop_at_storage: bool = True) -> str:
    """A DOT digraph of the nodes under `roots`; results have a double outline."""
    order = toposort(roots, stop_at_storage)
    names = {id(n): f"n{k}" for k, n in enumerate(order)}
    results = {id(r) for r in roots}
    lines = ["digraph graph_ {", "  node [fontname=monospace];"]
    for n in order:
        leaf = not n.inputs or (stop_at_storage and n.storage is not None)
        label = " ".join(x for x in (n.op.symbol, show_attrs(n.attrs)) if x)
        shape = f"{n.dtype.short}[{', '.join(map(repr, n.shape))}]"
        outline = ", peripheries=2" if id(n) in results else ""
        text = f"{label}\\n{shape}".replace('"', "'")
        lines.append(f'  {names[id(n)]} [label="{text}", shape={"box" if leaf else "ellipse"}{outline}];')
        if not leaf:
            lines.extend(f"  {names[id(i)]} -> {names[id(n)]};" for i in n.inputs)
    return "\n".join([*lines, "}"])
