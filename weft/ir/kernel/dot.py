"""An algorithm as a DOT graph: parameters, values and outputs, with arrows from what is read to who reads it."""
# Tests: tests/ir/kernel/test_text.py

from __future__ import annotations

from weft.ir.kernel.algorithm import Algorithm, Output, reads
from weft.ir.kernel.text import show_algorithm


def dot_algorithm(a: Algorithm) -> str:
    """The algorithm as DOT source."""
    lines = show_algorithm(a).splitlines()
    texts: list[str] = []
    for line in lines[1:]:
        if line.startswith("    "):
            texts[-1] += "\n" + line.strip()
        else:
            texts.append(line.strip())
    out = [f"digraph {_quote(a.name)} {{", "  node [shape=box, fontname=monospace];"]
    out += [
        f"  {_quote(p.name)} [label={_quote(f'{p.name}: {p.dtype.short}{list(p.shape)}')}, shape=cylinder];"
        for p in a.params
    ]
    out += [f"  {_quote(i.name)} [label={_quote(text)}];" for i, text in zip(a.items, texts, strict=True)]
    for item in a.items:
        out += [
            f"  {_quote(s)} -> {_quote(item.name)};" for s in dict.fromkeys(r.source for r in reads(item))
        ]
        if isinstance(item, Output):
            out += [
                f"  {_quote(item.name)} -> {_quote(p)};" for p in dict.fromkeys(s.param for s in item.stores)
            ]
    return "\n".join([*out, "}"])


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\l") + '"'
