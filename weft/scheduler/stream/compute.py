"""The values of a graph that are computed in pieces, and their order.

A value is a candidate where it is small and something that it is computed from is not, and where it is a result that
is itself large. What each of its pieces needs whole (the mean, where a variance is summed) is computed before, in
pieces of its own if need be.

The rule: files are computed from in pieces when they, with the results, are larger than half of the memory that is
left; a piece then takes an eighth of it, at most 64 MiB. A value that no axis splits is computed at once: a device that
reads the mapped file itself does so, another one refuses with a MemoryPlanError when the file does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.backends import registry
from weft.backends.protocol import Borrower, Device, Memory
from weft.backends.storage import Storage
from weft.errors import MemoryPlanError
from weft.ir.calls import expand_calls
from weft.ir.graph import Node, apply, buffer, toposort
from weft.ir.ops import Op
from weft.ir.rewrite import rebuilt
from weft.scheduler import realize
from weft.scheduler.signature import signature
from weft.scheduler.stream.pieces import Pieces
from weft.scheduler.stream.split import Kind, PieceLoops, Terms, choose, nbytes, reach, together

MOST_PIECE_BYTES = 64 << 20
LEAST_PIECE_BYTES = 1 << 16


def is_source(node: Node) -> bool:
    """True where the node is a leaf in a file."""
    return node.op is Op.BUFFER and node.device is None and node.storage is not None


def needed(nodes: Sequence[Node], leaves: Sequence[Node], device: Device) -> bool:
    """True where the files among the leaves, with the results, are too large to be used at once."""
    return needed_for(nodes, [n for n in dict.fromkeys(leaves) if is_source(n)], device)


def needed_for(nodes: Sequence[Node], files: Sequence[Node], device: Device) -> bool:
    """The same with the leaves that are in files, or stand for them."""
    if not files or not _is_known([*nodes, *files]):
        return False
    return sum(map(nbytes, (*files, *nodes))) > registry.available_bytes(device) // 2


def compute(nodes: Sequence[Node], device: Device) -> list[Storage]:
    """The values of nodes without runtime variables, computed in pieces as far as their graph allows."""
    return _Job(device).values(nodes)


def write(node: Node, device: Device, sink: Callable[[memoryview], object]) -> bool:
    """Give the bytes of a value to `sink`, in order, if it can and need be computed in pieces: it is large, or computed
    from large files. False, with nothing done, otherwise."""
    (node,) = expand_calls([node])
    order = toposort([node])
    if node.storage is not None or any(n.op is Op.COPY for n in order) or not _is_known(order):
        return False
    job = _Job(device)
    large = nbytes(node) > job.left // 4 or needed([node], order, device)
    split = (
        choose(node, job.terms, rows_only=True) if large and nbytes(node) > job.terms.piece_bytes else None
    )
    if split is None or not job.can(split):
        return False
    job.run([split], lambda found: sink(device.read(found[0].memory, found[0].nbytes)))
    return True


def _is_known(order: Sequence[Node]) -> bool:
    return all(isinstance(s, int) for n in order for s in n.shape)


class _Job:
    """The computation of one call. Nodes are shared with other threads, so values that were computed on the way
    replace them in graphs of the job's own."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.left = registry.available_bytes(device)
        size = min(MOST_PIECE_BYTES, max(LEAST_PIECE_BYTES, self.left // 8))
        self.terms = Terms(size, is_source, isinstance(device, Borrower))
        self._at_once: list[Node] = []  # what could not be split

    def values(self, nodes: Sequence[Node]) -> list[Storage]:
        try:
            known: dict[Node, Node] = {}
            if _is_known(toposort(nodes)):
                for group in _independent(self._targets(nodes)):
                    found = self._streamed(rebuilt(group, known))
                    for target, stored in zip(group, found, strict=True):
                        if stored is not None:
                            known[target] = self._leaf(stored)
            now = rebuilt(nodes, known)
            todo = [n for n in dict.fromkeys(now) if n.storage is None]
            made: list[Storage] = realize.planned(signature(todo), self.device) if todo else []
            values = dict(zip(todo, made, strict=True))
            return [values[n] if n.storage is None else n.storage for n in now]
        except MemoryPlanError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: MemoryPlanError) -> MemoryPlanError:
        if not self._at_once:
            return error
        names = ", ".join(map(repr, dict.fromkeys(self._at_once)))
        return MemoryPlanError(
            f"{error.message}; no axis splits {names} into pieces that need less of the files"
        )

    def _leaf(self, stored: Storage) -> Node:
        return buffer(stored.shape, stored.dtype, self.device.info.name, stored)

    def _targets(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes to compute in pieces, inputs before users."""
        small = self.terms.piece_bytes
        order = toposort(nodes)
        heavy: set[Node] = set()
        for n in order:
            if n.storage is not None or not n.inputs:
                if is_source(n) and nbytes(n) > small:
                    heavy.add(n)
            elif n.op is Op.SHRINK and self._picks(n):
                if reach(n) > small:
                    heavy.add(n)
            elif any(i in heavy for i in self._read(n)):
                heavy.add(n)
        found: set[Node] = set()
        asked = set(nodes)
        stack, seen = [n for n in asked if n in heavy and n.storage is None], set(nodes)
        while stack:
            n = stack.pop()
            inputs = [i for i in self._read(n) if i in heavy]
            if (nbytes(n) > small and n in asked) or any(nbytes(i) > small for i in inputs):
                found.add(n)
            else:
                fresh = [i for i in inputs if i not in seen]
                seen.update(fresh)
                stack.extend(fresh)
        return [n for n in order if n in found]

    def _read(self, n: Node) -> Sequence[Node]:
        """The inputs of which much is read: a device that reads files itself picks rows from them."""
        return n.inputs[1:] if n.op is Op.GATHER and self._picks(n) else n.inputs

    def _picks(self, n: Node) -> bool:
        """True where a GATHER or SHRINK reads no more of a file than what it gives."""
        return self.terms.borrows and is_source(n.inputs[0])

    def _streamed(self, targets: Sequence[Node]) -> list[Storage | None]:
        """Values computed in pieces into memory; None for what cannot be, or need not. Files that several of them are
        reduced from are read once."""
        found: list[Storage | None] = [None] * len(targets)
        groups: list[dict[int, PieceLoops]] = []
        for k, target in enumerate(targets):
            split = choose(target, self.terms) if target.storage is None else None
            if split is None or not self.can(split):
                self._at_once.append(target)
            elif any(level.kind is Kind.ROWS for level in split.levels):
                found[k] = self._rounded(self._assembled(split), target)
            else:
                _join(groups, k, split)
        for group in groups:
            parts: list[Sequence[Storage]] = []
            self.run(list(group.values()), parts.append)
            for k, stored in zip(group, parts[0], strict=True):
                found[k] = self._rounded(stored, targets[k])
        return found

    def _rounded(self, stored: Storage, target: Node) -> Storage:
        """The value that was summed in f32, in its own dtype."""
        if stored.dtype is target.dtype:
            return stored
        narrow = [apply(Op.CAST, (self._leaf(stored),), None, None, target.dtype)]
        return realize.planned(signature(narrow), self.device)[0]

    def _assembled(self, split: PieceLoops) -> Storage:
        """Parts of the result, put one after the other."""
        target, at = split.target, 0
        shape = tuple([s for s in target.shape if isinstance(s, int)])
        stored = Storage(self.device, self._room(target), target.dtype, shape)

        def put(found: Sequence[Storage]) -> None:
            nonlocal at
            (s,) = found
            self.device.write(stored.memory, self.device.read(s.memory, s.nbytes), at)
            at += s.nbytes

        self.run([split], put)
        return stored

    def can(self, split: PieceLoops) -> bool:
        """True where what the pieces need whole is neither the value itself nor too large to be kept."""
        return all(n is not split.target and nbytes(n) <= self.left // 4 for n in split.whole)

    def _room(self, target: Node) -> Memory:
        try:
            return self.device.allocate(nbytes(target))
        except MemoryError as error:
            raise MemoryPlanError(
                f"the result {target!r} does not fit: {error}; write it to a file with .to('disk:PATH'), piece by piece"
            ) from error

    def run(self, splits: Sequence[PieceLoops], sink: Callable[[Sequence[Storage]], object]) -> None:
        """Compute what all pieces need, and the pieces."""
        whole = list(dict.fromkeys(n for s in splits for n in s.whole))
        found = realize.values_of(whole, signature(whole), self.device) if whole else []
        known = {n: self._leaf(s) for n, s in zip(whole, found, strict=True)}
        Pieces(splits, known, self.terms, self.device, self.left // 4).run(sink)


def _independent(targets: Sequence[Node]) -> list[list[Node]]:
    """Neighbours of which none is computed from another, as groups."""
    groups: list[list[Node]] = []
    for target in targets:
        below = set(toposort([target]))
        if groups and below.isdisjoint(groups[-1]):
            groups[-1].append(target)
        else:
            groups.append([target])
    return groups


def _join(groups: list[dict[int, PieceLoops]], k: int, split: PieceLoops) -> None:
    """Value `k` into the first group whose pieces it can have, else into one of its own."""
    files = _files(split)
    for group in groups:
        first = next(iter(group.values()))
        both = together(first, split) if _files(first) == files else None
        if both is not None:
            same = {i: together(both[1], s) for i, s in group.items()}
            if all(pair is not None for pair in same.values()):
                group.update({i: pair[1] for i, pair in same.items() if pair is not None})
                group[k] = both[1]
                return
    groups.append({k: split})


def _files(split: PieceLoops) -> set[Node]:
    """The leaves that a value is computed from."""
    return {n for n in toposort([split.target]) if is_source(n)}
