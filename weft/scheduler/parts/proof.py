"""Steps put together again: a proof, without data, that a cut computes the graph that it was made of.

    part 0        v2 = x @ w               exchange 1    v3 = v2[0:4]         part 2    v4 = relu(v3)
    together      relu((x @ w)[0:4])       and the graph without its copies   relu((x @ w)[0:4])

Nodes that are equal are one object, so both are compared by identity. A box that lacks its halo, a term that counts
twice, values that are taken for each other: what a step gives then is nothing that the graph has. Reshapes of reshapes
are one on both sides, since exchanges look through them.
"""
# Tests: tests/scheduler/parts/test_verify.py

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.errors import IRError
from weft.ir.graph import Node, Shape, intern
from weft.ir.ops import Op
from weft.ir.rewrite import rewritten
from weft.scheduler.parts.cut import Compute, Cut, Exchange
from weft.scheduler.parts.moves import Moved, verify_move

_ANYWHERE = "anywhere:0"
"""The device of all nodes that are compared: where they are computed makes no difference to what they are."""


def prove(cut: Cut, outputs: Sequence[Node], leaves: Sequence[Node]) -> None:
    """IRError, which names the step, where the steps do not compute `outputs` from `leaves`."""
    known: set[Node] = set(leaves)
    wanted = _plain(outputs, {n: n for n in leaves}, known)
    made: dict[int, Node] = dict(enumerate(leaves))
    for number, step in enumerate(cut.steps):
        for v in step.reads:
            if v not in made:
                raise IRError(
                    f"step {number} reads value {v}, which no step before it gives", "plan of parts"
                )
        if isinstance(step, Compute):
            own = [*step.reads, *step.results]
            if away := [v for v in own if cut.values[v].device != step.device]:
                raise IRError(
                    f"step {number} on {step.device} uses value {away[0]} elsewhere", "plan of parts"
                )
        found = _computed(step, made) if isinstance(step, Compute) else [_moved(cut, step, made[step.source])]
        for v, n in zip(step.results, found, strict=True):
            value = cut.values[v]
            if n not in known or (n.shape, n.dtype) != (value.shape, value.dtype):
                raise IRError(
                    f"step {number} gives value {v}, which is no part of the graph", "plan of parts"
                )
            if made.setdefault(v, n) is not n:
                raise IRError(
                    f"step {number} gives value {v} another time, as something else", "plan of parts"
                )
    for k, (v, n, asked) in enumerate(zip(cut.outputs, wanted, outputs, strict=True)):
        if made.get(v) is not n or asked.device not in (None, cut.values[v].device):
            raise IRError(f"result {k} is value {v}, which is not what was asked for", "plan of parts")


def _plain(roots: Sequence[Node], places: Mapping[Node, Node], seen: set[Node]) -> list[Node]:
    """The nodes over others in these places, without copies, on no device; all that is made is `seen`."""

    def over(n: Node, inputs: tuple[Node, ...]) -> Node:
        found = _node(n, inputs)
        seen.add(found)
        return found

    found = rewritten(roots, over, places, stop_at_storage=False)
    seen.update(found)
    return found


def _node(n: Node, inputs: tuple[Node, ...]) -> Node:
    stored = n.op is Op.CONTIGUOUS and inputs[0].op in (
        Op.CONST,
        Op.RANGE,
    )  # a loop's, which carries no constants
    if isinstance(n.attrs, Moved):
        return intern(n.op, inputs, n.attrs, n.shape, n.dtype, _ANYWHERE)
    if n.op is Op.COPY or stored:
        return inputs[0]
    if n.op is Op.RESHAPE:
        return _reshaped(inputs[0], n.shape)
    device = _ANYWHERE if any(i.device is not None for i in inputs) else None
    return intern(n.op, inputs, n.attrs, n.shape, n.dtype, device)


def _reshaped(n: Node, shape: Shape) -> Node:
    if n.op is Op.RESHAPE:
        (n,) = n.inputs
    return n if n.shape == shape else intern(Op.RESHAPE, (n,), None, shape, n.dtype, n.device and _ANYWHERE)


def _computed(step: Compute, made: Mapping[int, Node]) -> list[Node]:
    """The results of a part, over what its leaves stand for."""
    for leaf, v in step.inputs.items():
        if (leaf.shape, leaf.dtype) != (made[v].shape, made[v].dtype):
            raise IRError(f"a part on {step.device} reads value {v} as something else", "plan of parts")
    return _plain(step.nodes, {leaf: made[v] for leaf, v in step.inputs.items()}, set())


def _moved(cut: Cut, step: Exchange, source: Node) -> Node:
    """The box of a value that an exchange gives, or what a move does."""
    if step.move is not None:
        verify_move(step.move)
        target = cut.values[step.target]
        return intern(Op.COPY, (source,), step.move, target.shape, target.dtype, _ANYWHERE)
    n = _reshaped(source, step.shape)
    if step.box is not None:
        n = intern(Op.SHRINK, (n,), step.box, step.size, n.dtype, n.device and _ANYWHERE)
    return _reshaped(n, cut.values[step.target].shape)
