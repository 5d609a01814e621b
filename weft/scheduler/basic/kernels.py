"""Kernels of pieces: those of a form are shared by all graphs, with the sizes as runtime variables.

What has no form (slices, padding, windows, gathers, scatters) has a kernel for its sizes, shared by pieces alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from weft.backends.protocol import Device
from weft.ir import graph
from weft.ir.graph import Node, Shape
from weft.ir.index import Int, substitute
from weft.ir.kernel.algorithm import Algorithm
from weft.lazy_dataclass import dataclass
from weft.scheduler.basic.cut import Piece, moved_apart, split
from weft.scheduler.basic.form import formed
from weft.scheduler.basic.form_kernels import FormKernels, kernels_of, of_form
from weft.scheduler.basic.sizes import sized
from weft.scheduler.kernelize.spec import KernelSpec
from weft.scheduler.programs import missing

PROGRAM_SECONDS = 0.014
"""The time in which a basic kernel's program is compiled."""

KERNEL_SECONDS = 1e-4
"""The time that one more kernel takes, in building a plan and in a few runs of it."""

Key: TypeAlias = tuple[Any, ...]
Splitter: TypeAlias = "Callable[[Piece], tuple[Piece, ...]]"


@dataclass(frozen=True, slots=True, eq=False)
class BasicKernel:
    """A kernel of a piece: its specification on the piece's nodes; what it shares with others alike, and the values of
    its variables that make it this one."""

    spec: KernelSpec
    algorithm: Algorithm
    sizes: Mapping[str, Int]


@dataclass(frozen=True, slots=True, eq=False)
class _Sized:
    """The kernels of pieces alike, sizes included. `order`: for each leaf of the kernels, the number of one of a
    piece's; `own`: their algorithms for these sizes, with flops and bytes, and `sizes`, the values of their variables;
    `between`: what they write beside the root, with its shapes."""

    kernels: FormKernels
    order: tuple[int, ...]
    own: tuple[tuple[Algorithm, Int, Int], ...]
    sizes: tuple[Mapping[str, Int], ...]
    between: tuple[tuple[Node, Shape], ...]


class Kernels:
    """The kernels of one graph's pieces. `counts`: how often a key comes. `whole`: pieces are not split to share
    programs, and what is missing is not counted."""

    def __init__(self, device: Device, counts: Mapping[Key, int], whole: bool = False) -> None:
        self.device, self.counts, self.whole = device, counts, whole
        self.name, self.buffers = device.info.name, device.info.bounds.parameters
        self.known: dict[Key, _Sized | Splitter] = {}
        """By the keys of pieces; for those that are split, what does that."""
        self.made: set[Node] = set()
        """The nodes that kernels compute, up to here."""
        self.there: set[Algorithm] = set()
        """The algorithms up to here, and those whose programs need not be compiled."""
        self.absent: set[Algorithm] = set()
        """The algorithms that were looked for in vain."""
        self.missing = 0
        """The number of programs that have to be compiled."""

    def of(self, piece: Piece, key: Key, homes: Mapping[Node, Node]) -> list[BasicKernel]:
        """The kernels of a piece, which has this key. `homes`: the nodes in whose memory others are."""
        if piece.root in self.made:  # a part of several pieces
            return []
        if key not in self.known:
            self.known[key] = self._chosen(piece, key)
        found = self.known[key]
        if not isinstance(found, _Sized):
            return [k for p in found(piece) for k in self.of(p, key_of(p), homes)]
        self.made.add(piece.root)
        kernels, leaves = found.kernels, piece.leaves
        nodes: dict[Node, Node] = {}
        for n, k in zip(kernels.leaves, found.order, strict=True):
            leaf = leaves[k]
            nodes[n] = homes.get(leaf, leaf)
        nodes[kernels.root] = homes.get(piece.root, piece.root)
        for n, shape in found.between:
            nodes[n] = graph.buffer(shape, n.dtype, self.name, None)
        made: list[BasicKernel] = []
        for spec, (own, flops, moved), sizes in zip(kernels.specs, found.own, found.sizes, strict=True):
            reads, writes = tuple([nodes[n] for n in spec.reads]), tuple([nodes[n] for n in spec.writes])
            inplace = {p: nodes[n] for p, n in spec.inplace.items()}
            own_spec = KernelSpec(own, reads, writes, inplace, spec.why, flops, moved)
            made.append(BasicKernel(own_spec, spec.algorithm, sizes))
        return made

    def _chosen(self, piece: Piece, key: Key) -> _Sized | Splitter:
        """The kernels of a piece alike, or how it is split where that is better."""
        found = self._of(piece)
        if found is None:
            for way in (moved_apart, split):
                if len(way(piece)) > 1:
                    return way
            found = self._of_sizes(piece)
        if self.whole:
            return found
        new, parts = self._missing([found]), split(piece)
        if new and len(parts) > 1:
            of_parts = [self._of(p) for p in parts]
            if None not in of_parts:
                others = len(self._missing([x for x in of_parts if x is not None]))
                saved = (len(new) - others) * PROGRAM_SECONDS
                if saved > self.counts.get(key, 1) * len(parts) * KERNEL_SECONDS:
                    return split
        self.there |= new
        self.missing += len(new)
        return found

    def _missing(self, found: Sequence[_Sized]) -> set[Algorithm]:
        """The algorithms of these kernels whose programs are not there, nor to be compiled for others."""
        return self._looked_for({s.algorithm for x in found for s in x.kernels.specs})

    def need(self, algorithms: Iterable[Algorithm]) -> None:
        """Count programs that have to be compiled for these."""
        if not self.whole:
            new = self._looked_for(set(algorithms))
            self.there |= new
            self.missing += len(new)

    def _looked_for(self, algorithms: set[Algorithm]) -> set[Algorithm]:
        """The algorithms whose programs are not there, nor to be compiled for others."""
        wanted = algorithms - self.there
        asked = wanted - self.absent
        if asked:
            absent = set(missing(list(asked), self.device))
            self.absent |= absent
            self.there |= asked - absent
        return wanted & self.absent

    def _of(self, piece: Piece) -> _Sized | None:
        """The kernels of a piece's form; None where it has none but for its sizes."""
        form = formed(piece, self.name)
        if form is not None:
            number = {n: k for k, n in enumerate(piece.leaves)}
            order = tuple([number[n] for n in form.leaves])
            return _for_sizes(of_form(form.form, self.buffers), order, form.sizes)
        found = sized(piece, self.name)
        if found is None:
            return None
        return _for_sizes(of_form(found.form, self.buffers), found.order, found.sizes)

    def _of_sizes(self, piece: Piece) -> _Sized:
        """The kernels of a piece for its sizes."""
        copy: dict[Node, Node] = {n: graph.buffer(n.shape, n.dtype, self.name, None) for n in piece.leaves}
        for n in (*piece.inside, piece.root):
            device = self.name if n.inputs else None
            copy[n] = graph.intern(
                n.op, tuple([copy[i] for i in n.inputs]), n.attrs, n.shape, n.dtype, device
            )
        root = copy[piece.root]
        specs = kernels_of(root, self.buffers)
        made = FormKernels(specs, tuple([copy[n] for n in piece.leaves]), root)
        return _for_sizes(made, tuple(range(len(piece.leaves))), ())


def key_of(piece: Piece) -> Key:
    """The key of a piece: equal for pieces alike, sizes included."""
    number: dict[Node, int] = {}
    rows: list[Any] = []
    for n in piece.leaves:
        number[n] = len(number)
        rows.append((n.dtype, n.shape))
    for n in (*piece.inside, piece.root):
        number[n] = len(number)
        rows.append((n.op, n.attrs, n.dtype, n.shape, *[number[i] for i in n.inputs]))
    return tuple(rows)


def _for_sizes(kernels: FormKernels, order: tuple[int, ...], sizes: Sequence[Int]) -> _Sized:
    """The kernels for these values of their variables."""
    values = dict(zip(kernels.variables, sizes, strict=True))
    names = {v.name: v for v in values}

    def shape(sizes: Shape) -> Shape:
        return tuple([x if x.__class__ is int else substitute(x, values) for x in sizes])

    own: list[tuple[Algorithm, Int, Int]] = []
    for spec in kernels.specs:
        a = spec.algorithm
        params = tuple([replace(p, shape=shape(p.shape)) for p in a.params])
        flops, moved = substitute(spec.flops, values), substitute(spec.bytes, values)
        own.append((replace(a, name=f"basic_{a.name}", params=params), flops, moved))
    between = [n for s in kernels.specs for n in s.writes if n is not kernels.root]
    return _Sized(
        kernels, order, tuple(own),
        tuple([
            {v.name: values[names[v.name]] for v in s.algorithm.variables if v.name in names} for s in kernels.specs
        ]),
        tuple([(n, shape(n.shape)) for n in dict.fromkeys(between)]),
    )  # fmt: skip
