"""The verifier of graphs: every node is what its op's rule makes of its inputs, and equal nodes are one object."""
# Tests: tests/ir/test_graph_forms.py

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.dtypes import DType
from weft.ir.errors import IRError
from weft.ir.graph import Fill, Leaf, Node, Target, in_files, toposort
from weft.ir.graph_text import show_attrs
from weft.ir.index import at_least
from weft.ir.loop_body import LoopNode
from weft.ir.ops import LEAVES, Op
from weft.ir.shape_rules import RULES


def verify_graph(roots: Sequence[Node]) -> None:
    """IRError naming the node and the rule when the graph under `roots` breaks one."""
    seen: dict[tuple[object, ...], Node] = {}
    for n in toposort(roots, stop_at_storage=False):
        _verify(n)
        key = (n.op, n.attrs, n.shape, n.dtype, *map(id, n.inputs))
        if n.op is not Op.BUFFER and seen.setdefault(key, n) is not n:
            raise _bad(n, "there is another node with the same fields")


def _bad(n: Node, why: str) -> IRError:
    return IRError(f"graph: {n!r} ({show_attrs(n.attrs)}) of {list(n.inputs)!r}: {why}")


def _verify(n: Node) -> None:
    if any(at_least(s) < 0 for s in n.shape):
        raise _bad(n, "a size may be negative")
    if n.op in LEAVES:
        _verify_leaf(n)
        return
    if isinstance(n.attrs, LoopNode):
        verify_graph((*n.attrs.body.nexts, *n.attrs.body.outs))
    rule = RULES.get(n.op)
    if rule is None:
        raise _bad(n, "its op has no rule: it belongs to kernels")
    dtype: DType | None = n.dtype if n.op in (Op.CAST, Op.BITCAST) else None
    shape, made = rule(n.op, n.inputs, n.attrs, n.shape, dtype)
    if shape != n.shape or made is not n.dtype:
        raise _bad(n, f"its rule gives {made.name}{list(shape)}")
    device = (
        n.attrs.device
        if isinstance(n.attrs, Target)
        else next((i.device for i in n.inputs if i.device), None)
    )
    if device != n.device and not (device is None and in_files(n.inputs)):
        raise _bad(n, f"it is on {n.device}, its inputs on {device}")
    if n.op is not Op.COPY and len({i.device for i in n.inputs if i.device is not None}) > 1:
        raise _bad(n, "its inputs are on different devices")


def _verify_leaf(n: Node) -> None:
    match n.op:
        case Op.BUFFER:
            fits = isinstance(n.attrs, Leaf) and n.device == n.attrs.device
        case Op.CONST:
            fits = isinstance(n.attrs, Fill)
        case _:
            fits = n.attrs is None and len(n.shape) == 1 and (n.dtype.is_int or n.dtype.is_float)
    if not fits or n.inputs:
        raise _bad(n, "it is no well-formed leaf")
