"""Loops in basic plans: the pieces of a body, whose kernels read and write rows of tensors of any number of rows.

    h = tanh(p0[step, i] + p1[step, i])      rows0, rows1, n0: sizes; step: the loop's own variable
    y0[step + 1, i] = h

So loops of any length share their programs, as other pieces do.
"""
# Tests: tests/scheduler/test_basic.py

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from weft.ir.errors import IRError
from weft.ir.graph import Node, elements
from weft.ir.index import Int, Var, high, low, substitute
from weft.ir.kernel.algorithm import Algorithm, Param
from weft.ir.loop_body import Body, LoopNode
from weft.lazy_dataclass import dataclass
from weft.scheduler.basic.cut import Piece, Pieces, pieces
from weft.scheduler.basic.kernels import BasicKernel, Kernels, Key, key_of
from weft.scheduler.kernelize.copying import copying
from weft.scheduler.kernelize.loops import Row, in_rows, into_row, scan_of
from weft.scheduler.kernelize.spec import KernelSpec, ScanSpec

MOST_STEPS = 1 << 24
"""Steps, at most, of loops that share programs."""

MOST_ROWS = MOST_STEPS + 1
"""Rows of their tensors, at most: a history has one more than there are steps."""

WHY = ("a loop makes it",)


@dataclass(frozen=True, slots=True, eq=False)
class BasicLoop:
    """A loop, and its kernels."""

    spec: ScanSpec
    kernels: tuple[BasicKernel, ...]


def kernels_of(cut: Pieces, keys: Sequence[Key], kernels: Kernels) -> Iterator[BasicKernel | BasicLoop]:
    """The kernels of all pieces, which have these keys, and the loops among them, in order."""
    loops: dict[tuple[Body, tuple[Node, ...]], list[Piece]] = {}
    for p in cut.pieces:
        if isinstance(p.root.attrs, LoopNode):
            loops.setdefault((p.root.attrs.body, p.root.inputs), []).append(p)
    for piece, key in zip(cut.pieces, keys, strict=True):
        if not isinstance(piece.root.attrs, LoopNode):
            yield from kernels.of(piece, key, cut.homes)
            continue
        results = loops.pop((piece.root.attrs.body, piece.root.inputs), ())
        if results:
            own = _Shared(kernels)
            spec = scan_of(tuple([p.root for p in results]), WHY, own)
            kernels.need([k.algorithm for k in own.made])
            yield BasicLoop(spec, tuple(own.made))


def inner(cut: Pieces) -> set[Key]:
    """The keys of pieces in the bodies of loops."""
    bodies = {p.root.attrs.body for p in cut.pieces if isinstance(p.root.attrs, LoopNode)}
    found: set[Key] = set()
    for body in bodies:
        of_body = pieces((*body.nexts, *body.outs))
        if of_body is not None:
            found |= {*map(key_of, of_body.pieces), *inner(of_body)}
    return found


class _Shared:
    """The kernels of one loop; `made`: those that its steps run."""

    counted = False

    def __init__(self, around: Kernels) -> None:
        self.around = around
        self.body: dict[KernelSpec, BasicKernel] = {}
        """The kernels on tensors of the body."""
        self.made: list[BasicKernel] = []

    def kernelize(self, nodes: Sequence[Node], buffers: int) -> list[KernelSpec | ScanSpec]:
        """The kernels of the body's pieces."""
        cut = pieces(nodes)
        if cut is None:
            raise IRError("the body of a loop is computed on one device", "plan")
        keys = tuple(map(key_of, cut.pieces))
        specs: list[KernelSpec | ScanSpec] = []
        for k in kernels_of(cut, keys, Kernels(self.around.device, Counter(keys), whole=True)):
            specs.append(k.spec)
            if isinstance(k, BasicLoop):
                self.made += k.kernels
            else:
                self.body[k.spec] = k
        return specs

    def rowed(
        self, spec: KernelSpec, rows: Mapping[str, Sequence[Row]], step: Var
    ) -> tuple[KernelSpec, list[tuple[int, int]]]:
        """The kernel with parameters in rows; what it shares with others has them in rows of any number."""
        of_body = self.body[spec]
        own, order = in_rows(spec.algorithm, rows, step)
        if high(step) > MOST_STEPS or any(high(r.count or 0) > MOST_ROWS for of in rows.values() for r in of):
            general, sizes = in_rows(of_body.algorithm, rows, step)[0], {}
        else:
            general, sizes = _in_any_rows(of_body.algorithm, rows, step)
        made = KernelSpec(
            own, spec.reads, spec.writes, spec.inplace, spec.why, spec.flops, spec.bytes, spec.decisions
        )
        self.made.append(BasicKernel(made, general, {**of_body.sizes, **sizes}))
        return made, order

    def begun(self, carry: Node, history: Node, body: Body) -> KernelSpec:
        """The kernel that copies what a carry starts from into its history."""
        own = into_row(carry, history, body)
        size = elements(carry.shape)
        if low(size) < 1 or high(body.length) > MOST_STEPS:
            self.made.append(BasicKernel(own, own.algorithm, {}))
            return own
        sizes: dict[Var, Int] = {
            Var("n0", 1, MOST_STEPS): size,
            Var("rows0", 1, MOST_ROWS): body.length + 1,
            Var("first0", 0, MOST_STEPS): body.first,
        }
        n, rows, first = sizes
        target = Param("y0", carry.dtype, (rows, n), True)
        general = copying("load", carry.dtype, n, target, (first,))
        self.made.append(BasicKernel(own, general, {v.name: value for v, value in sizes.items()}))
        return own


def _in_any_rows(
    a: Algorithm, rows: Mapping[str, Sequence[Row]], step: Var
) -> tuple[Algorithm, dict[str, Int]]:
    """The algorithm with parameters in rows, of which there may be any number, and these numbers by variable."""
    steps = {step: Var(step.name, 0, MOST_STEPS)}
    counts: dict[str, Int] = {}

    def anywhere(row: Row) -> Row:
        if row.count is None:
            return row
        count = Var(f"rows{len(counts)}", 1, MOST_ROWS)
        counts[count.name] = row.count
        return Row(substitute(row.at, steps), count)

    general = {name: [anywhere(r) for r in of] for name, of in rows.items()}
    return in_rows(a, general, steps[step])[0], counts
