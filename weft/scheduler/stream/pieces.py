"""Running splits: one plan for all pieces of one size, on the parts of files that each needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.backends.disk.ahead import ReadAhead
from weft.backends.disk.pool import FileRange, file_range
from weft.backends.protocol import Device, Memory
from weft.backends.storage import Storage, from_numpy, lent_to, moved_to
from weft.ir.dtypes import to_numpy
from weft.ir.graph import Box, Node, apply, buffer, strides
from weft.ir.index import Int, evaluate
from weft.ir.ops import COMBINE, Op
from weft.ir.rewrite import rebuilt
from weft.lazy_dataclass import dataclass
from weft.scheduler.plan import Plan
from weft.scheduler.realize import memory_on, plan_for
from weft.scheduler.signature import Signature, signature
from weft.scheduler.stream.slices import regions
from weft.scheduler.stream.split import Kind, Level, PieceLoops, Terms, in_one_go, smaller

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class _Region:
    """A box of a leaf on disk; its start depends on the numbers of the piece."""

    leaf: Node
    start: tuple[Int, ...]
    step: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def in_one_go(self) -> bool:
        return all(s == 1 for s in self.step) and in_one_go(self.leaf.shape, self.shape)

    def bytes(self, env: dict[str, int]) -> FileRange:
        """The bytes of the region in its file: from its first element to its last."""
        stored: Storage = self.leaf.storage
        whole, size = file_range(stored.memory), stored.dtype.itemsize
        start = [int(evaluate(i, env)) for i in self.start]
        first = sum(i * s for i, s in zip(start, self.strides, strict=True))
        reach = sum((n - 1) * t * s for n, t, s in zip(self.shape, self.step, self.strides, strict=True))
        return FileRange(whole.file, whole.begin + first * size, (reach + 1) * size, whole.bools)

    @property
    def strides(self) -> tuple[int, ...]:
        """The leaf's, in elements."""
        return tuple([s for s in strides(self.leaf.shape) if isinstance(s, int)])

    def storage(self, env: dict[str, int]) -> Storage | npt.NDArray[Any]:
        """The elements as storage on disk where they lie together, else a copy in an array."""
        stored: Storage = self.leaf.storage
        part = self.bytes(env)
        if self.in_one_go:
            return Storage(stored.device, part, stored.dtype, self.shape)
        flat = np.frombuffer(part.view(), to_numpy(stored.dtype))
        steps = [t * s * stored.dtype.itemsize for t, s in zip(self.step, self.strides, strict=True)]
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat, self.shape, steps))


@dataclass(frozen=True, slots=True)
class _Variant:
    """The plan of the pieces of one size. Leaf k of the plan is a region, or memory that all pieces share."""

    plan: Plan
    sig: Signature
    regions: dict[int, _Region]
    shared: list[Memory | None]


class Pieces:
    """Splits over the same pieces, bound to a device: each piece is read once for all of them."""

    def __init__(
        self,
        splits: Sequence[PieceLoops],
        known: Mapping[Node, Node],
        terms: Terms,
        device: Device,
        most_bytes: int,
    ) -> None:
        """`known`: leaves in the place of what all pieces need whole. Pieces are made smaller until what lies between
        their kernels takes at most `most_bytes`."""
        self.splits, self.known, self.terms, self.device = list(splits), known, terms, device
        self._variants: dict[tuple[bool, ...], _Variant] = {}
        self._combine: dict[int, tuple[Plan, Signature]] = {}
        while True:
            first = self._variant(self._sizes([0] * len(self.levels)))
            between = first.plan.commands.workspace_bytes
            fewer = [smaller(s) for s in self.splits] if between > most_bytes else [None]
            if any(s is None for s in fewer):
                return
            self.splits = [s for s in fewer if s is not None]
            self._variants.clear()

    @property
    def levels(self) -> tuple[Level, ...]:
        """The loops over pieces. (Which axis of its own a value is split along is each split's.)"""
        return self.splits[0].levels

    def run(self, sink: Callable[[Sequence[Storage]], object]) -> None:
        """Compute all pieces; those of the results, one of each split, go to `sink` in row-major order."""
        levels = self.levels
        rows = [level for level in levels if level.kind is Kind.ROWS]
        inner = [range(level.count) for level in levels[len(rows) :]]
        order = [
            [(*outer, *k) for k in itertools.product(*inner)]
            for outer in itertools.product(*[range(level.count) for level in rows])
        ]
        ahead = itertools.chain.from_iterable(order)
        next(ahead)
        with ReadAhead() as reader:
            for group in order:
                partial: list[tuple[int, Sequence[Storage]]] = []
                for at in group:
                    self._read_ahead(reader, next(ahead, None))
                    self._push(partial, self._piece(at))
                while len(partial) > 1:
                    (_, a), (_, b) = partial.pop(-2), partial.pop(-1)
                    partial.append((0, self._combined(a, b)))
                sink(partial[0][1])

    def _push(self, partial: list[tuple[int, Sequence[Storage]]], s: Sequence[Storage]) -> None:
        """Combine in pairs of equally many pieces: errors grow with the logarithm of their number."""
        rank = 0
        while partial and partial[-1][0] == rank:
            s = self._combined(partial.pop()[1], s)
            rank += 1
        partial.append((rank, s))

    def _sizes(self, at: Sequence[int]) -> tuple[bool, ...]:
        """For each level, whether piece `at` is its last and shorter than the others."""
        levels = zip(self.levels, at, strict=True)
        return tuple([k == level.count - 1 and level.total % level.size != 0 for level, k in levels])

    def _env(self, at: Sequence[int]) -> dict[str, int]:
        return {level.number.name: k for level, k in zip(self.levels, at, strict=True)}

    def _piece(self, at: Sequence[int]) -> Sequence[Storage]:
        v, env = self._variant(self._sizes(at)), self._env(at)
        memories: list[Any] = list(v.shared)
        for k, region in v.regions.items():
            memories[k] = self._loaded(region, env)
        out = v.plan.run(memories, [env[x.name] for x in v.sig.variables])
        for region in v.regions.values():
            part = region.bytes(env)
            part.file.check()
            part.file.release(part.begin, part.begin + part.nbytes)
        return out

    def _loaded(self, region: _Region, env: dict[str, int]) -> Memory:
        stored = region.storage(env)
        if isinstance(stored, Storage):
            return lent_to(stored, self.device) or moved_to(stored, self.device).memory
        return from_numpy(stored, region.leaf.dtype, self.device).memory

    def _read_ahead(self, reader: ReadAhead, at: Sequence[int] | None) -> None:
        """Have what the next piece needs read while this one is computed."""
        if at is not None:
            env = self._env(at)
            for region in self._variant(self._sizes(at)).regions.values():
                part = region.bytes(env)
                reader.want(part.file, part.begin, part.begin + part.nbytes)

    def _variant(self, last: tuple[bool, ...]) -> _Variant:
        if last not in self._variants:
            self._variants[last] = self._planned([s.piece(last) for s in self.splits])
        return self._variants[last]

    def _planned(self, pieces: Sequence[Node]) -> _Variant:
        places: dict[Node, _Region] = {}
        instead = dict(self.known)
        for piece in pieces:
            for n, leaf in regions(piece, self.terms.is_source, self.known).items():
                if n is leaf or n in instead:
                    continue
                assert isinstance(n.attrs, Box)
                shape = tuple([s for s in n.shape if isinstance(s, int)])
                instead[n] = buffer(n.shape, n.dtype, None, None)
                places[instead[n]] = _Region(leaf, n.attrs.start, n.attrs.step, shape)
        nodes = rebuilt(pieces, instead)
        # a leaf is nothing to compute
        nodes = [apply(Op.CONTIGUOUS, (n,)) if n in places or n.storage is not None else n for n in nodes]
        sig = signature(nodes)
        shared = [
            None if n in places else memory_on(n, s, self.device)
            for n, s in zip(sig.leaves, sig.storages, strict=True)
        ]
        found = {k: places[n] for k, n in enumerate(sig.leaves) if n in places}
        return _Variant(plan_for(sig, self.device), sig, found, shared)

    def _combined(self, a: Sequence[Storage], b: Sequence[Storage]) -> Sequence[Storage]:
        return [self._two(k, x, y) for k, (x, y) in enumerate(zip(a, b, strict=True))]

    def _two(self, k: int, a: Storage, b: Storage) -> Storage:
        """Two partial results of split `k` as one."""
        if k not in self._combine:
            x, y = (buffer(a.shape, a.dtype, None, None) for _ in range(2))
            node = apply(COMBINE[self.splits[k].target.op], (x, y))
            sig = signature([node])
            self._combine[k] = plan_for(sig, self.device), sig
        (out,) = self._combine[k][0].run([a.memory, b.memory])
        return out
