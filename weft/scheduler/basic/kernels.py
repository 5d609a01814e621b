"""Kernels of pieces: those of a form are shared by all graphs, with the sizes as runtime variables.

What has no form (slices, padding, windows, gathers, scatters) has a kernel for its sizes, shared by pieces alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.ir import graph
from weft.ir.graph import Node
from weft.ir.index import Var, evaluate
from weft.ir.kernel.algorithm import Algorithm
from weft.scheduler.basic.cut import Piece
from weft.scheduler.basic.form import Form, built, formed
from weft.scheduler.basic.sizes import SizedForm, graph_of, sized
from weft.scheduler.kernelize import KernelSpec, kernelize_all

FORMS_KEPT = 2048
"""Kernels of forms in memory; the one made longest ago goes first."""

_forms: dict[tuple[Form | SizedForm, int], _Kernels] = {}


@dataclass(frozen=True, slots=True, eq=False)
class _Kernels:
    """The kernels of a graph on leaves of its own, and the node that they compute."""

    specs: tuple[KernelSpec, ...]
    leaves: tuple[Node, ...]
    root: Node
    variables: tuple[Var, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class BasicKernel:
    """A kernel of a piece: its specification on the piece's nodes; what it shares with others alike, and the values of
    its variables that make it this one."""

    spec: KernelSpec
    algorithm: Algorithm
    sizes: Mapping[str, int]


class Kernels:
    """The kernels of one graph's pieces."""

    def __init__(self, device: str, buffers: int) -> None:
        self.device, self.buffers = device, buffers
        self.known: dict[tuple[Any, ...], tuple[_Kernels, tuple[int, ...], tuple[int, ...]]] = {}

    def of(self, piece: Piece, homes: Mapping[Node, Node]) -> list[BasicKernel]:
        """The kernels of a piece. `homes`: the nodes in whose memory others are."""
        key = _rows(piece)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.made(piece)
        kernels, order, sizes = found
        leaves = [homes.get(n, n) for n in piece.leaves]
        nodes: dict[Node, Node] = {n: leaves[k] for n, k in zip(kernels.leaves, order, strict=True)}
        nodes[kernels.root] = homes.get(piece.root, piece.root)
        return list(_on(kernels, nodes, sizes, self.device))

    def made(self, piece: Piece) -> tuple[_Kernels, tuple[int, ...], tuple[int, ...]]:
        """The kernels of a piece alike; for each leaf of theirs, the number of one of the piece's; their sizes."""
        number = {n: k for k, n in enumerate(piece.leaves)}
        form = formed(piece, self.device)
        if form is not None:
            kernels = _of_form(form.form, self.buffers)
            return kernels, tuple([number[n] for n in form.leaves]), form.sizes
        found = sized(piece, self.device)
        if found is not None:
            kernels = _of_form(found.form, self.buffers)
            return kernels, tuple(range(len(piece.leaves))), found.sizes
        copy: dict[Node, Node] = {n: graph.buffer(n.shape, n.dtype, self.device, None) for n in piece.leaves}
        for n in (*piece.inside, piece.root):
            device = self.device if n.inputs else None
            copy[n] = graph.intern(
                n.op, tuple([copy[i] for i in n.inputs]), n.attrs, n.shape, n.dtype, device
            )
        root = copy[piece.root]
        specs = _kernels(root, self.buffers)
        leaves = tuple([copy[n] for n in piece.leaves])
        return _Kernels(specs, leaves, root), tuple(range(len(leaves))), ()


def _of_form(form: Form | SizedForm, buffers: int) -> _Kernels:
    """The kernels of a form."""
    found = _forms.get((form, buffers))
    if found is None:
        made = built(form) if isinstance(form, Form) else graph_of(form)
        specs = _kernels(made.root, buffers)
        found = _forms[form, buffers] = _Kernels(specs, made.leaves, made.root, form.variables)
        if len(_forms) > FORMS_KEPT:
            _forms.pop(next(iter(_forms)), None)
    return found


def _kernels(root: Node, buffers: int) -> tuple[KernelSpec, ...]:
    """The kernels that compute a node."""
    specs = kernelize_all([root], buffers)
    assert all(isinstance(s, KernelSpec) for s in specs)
    return tuple([s for s in specs if isinstance(s, KernelSpec)])


def _rows(piece: Piece) -> tuple[Any, ...]:
    """Equal for pieces alike, sizes included."""
    number: dict[Node, int] = {}
    rows: list[Any] = []
    for n in piece.leaves:
        number[n] = len(number)
        rows.append((n.dtype, n.shape))
    for n in (*piece.inside, piece.root):
        number[n] = len(number)
        rows.append((n.op, n.attrs, n.dtype, n.shape, *[number[i] for i in n.inputs]))
    return tuple(rows)


def _on(
    kernels: _Kernels, nodes: dict[Node, Node], sizes: Sequence[int], device: str
) -> Sequence[BasicKernel]:
    """The kernels on other nodes, for these values of their variables."""
    values = {v.name: x for v, x in zip(kernels.variables, sizes, strict=True)}
    out: list[BasicKernel] = []
    for spec in kernels.specs:
        for n in spec.writes:
            if n not in nodes:
                shape = tuple([int(evaluate(s, values)) for s in n.shape])
                nodes[n] = graph.buffer(shape, n.dtype, device, None)
        algorithm = spec.algorithm
        own = {v.name: values[v.name] for v in algorithm.variables}
        params = tuple(
            [replace(p, shape=tuple([int(evaluate(s, values)) for s in p.shape])) for p in algorithm.params]
        )
        own_spec = replace(
            spec,
            algorithm=replace(algorithm, name=f"basic_{algorithm.name}", params=params),
            reads=tuple([nodes[n] for n in spec.reads]),
            writes=tuple([nodes[n] for n in spec.writes]),
            inplace={p: nodes[n] for p, n in spec.inplace.items()},
            flops=int(evaluate(spec.flops, values)),
            bytes=int(evaluate(spec.bytes, values)),
        )
        out.append(BasicKernel(own_spec, algorithm, own))
    return out
