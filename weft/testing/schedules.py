"""Random legal schedules: whatever transforms apply, in any order. A backend must be right under all of them.

`random_schedule(pick, kernel, steps)` proposes transforms and applies those whose check passes; the result computes
what the kernel computed (up to the order of floating-point additions). What is chosen is for `pick` to say:
`picked_by(data.draw)` in a property of Hypothesis, `random.Random(seed).choice` for schedules that are always the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from weft.ir import expr as ex
from weft.ir.kernel.algorithm import ItemValue, readers, reads
from weft.ir.kernel.schedule import Kernel, initial
from weft.ir.kernel.transforms.across import Across
from weft.ir.kernel.transforms.arguments import items, loops, values
from weft.ir.kernel.transforms.base import Pick, Transform, run
from weft.ir.kernel.transforms.clip import Clip
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.compute_first import ComputeFirst
from weft.ir.kernel.transforms.distribute import Distribute
from weft.ir.kernel.transforms.dot_bytes import DotBytes
from weft.ir.kernel.transforms.extend import Extend
from weft.ir.kernel.transforms.factor import Factor
from weft.ir.kernel.transforms.hint import PrefetchNext, PrefetchOutput, PrefetchShares, Stream
from weft.ir.kernel.transforms.inline import Inline
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.merge import Merge
from weft.ir.kernel.transforms.merge_axes import MergeAxes
from weft.ir.kernel.transforms.online import OnlineReduce
from weft.ir.kernel.transforms.order_reduce import OrderReduce
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.partial_sums import PartialSums
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.share import Share
from weft.ir.kernel.transforms.split import Split
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.kernel.transforms.stage import Arrange, PadRows, Stage
from weft.ir.kernel.transforms.tensorize import Tensorize
from weft.ir.kernel.transforms.trim import Trim
from weft.ir.kernel.transforms.window import Window
from weft.ir.loops import LoopKind
from weft.ir.ops import Op
from weft.testing.kernels import CASES, Case, byte_sums

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[Any]], Any]

KINDS: tuple[type[Transform], ...] = (
    Split, Split, ComputeAt, ComputeAt, Across, Arrange, Bind, Clip, ComputeFirst, Distribute, DotBytes, Extend, Factor,
    Inline, Merge, MergeAxes, OnlineReduce, OrderReduce, Pad, PadRows, PartialSums, Permute, PrefetchNext,
    PrefetchOutput, PrefetchShares, Share, SplitReduce, Stage, Stream, Tensorize, Trim, Unroll, Vectorize, Window,
)  # fmt: skip
"""The transforms that are proposed, each as often as it stands here."""


def picked_by(draw: Draw) -> Pick:
    """Choices that Hypothesis makes, and makes smaller."""

    def pick(among: Sequence[T], /) -> T:
        return draw(st.sampled_from(among))

    return pick


def _with_offset() -> Case:
    """Matrix products with 0.5 added to each element of the second factor."""
    case = CASES["matmul"]
    value, *rest = case.algorithm.items
    assert isinstance(value, ItemValue)
    x, y = reads(value)
    offset = ex.call(Op.ADD, y, ex.const(y.dtype, 0.5))
    items = (replace(value, expr=ex.call(Op.MUL, x, offset)), *rest)
    return Case(
        replace(case.algorithm, items=items),
        lambda arrays: case.reference({**arrays, y.source: arrays[y.source] + np.float32(0.5)}),
    )


def starts() -> dict[str, tuple[Case, Kernel]]:
    """Kernels to begin with: the initial ones, and some in which transforms apply that random steps seldom prepare."""
    softmax, matmul = (initial(CASES[name].algorithm) for name in ("softmax", "matmul"))
    weights = run(softmax, Stage("total", values(softmax)[1].expr, "weights"))
    rows = run(softmax, Permute("top", ("j", "i")))
    panels = run(matmul, *(Stage("c", load, f"panel_{load.source}") for load in reads(values(matmul)[0])))
    threads = run(panels, Bind("i", LoopKind.THREAD), Unroll("j"))
    offset_case = _with_offset()
    byte_case = byte_sums(2, 1, 1, 2, 4)
    lanes = run(initial(byte_case.algorithm), Permute("dot", ("i", "r2", "k", "l")), Vectorize("l"))
    return {
        **{name: (case, initial(case.algorithm)) for name, case in CASES.items()},
        "softmax with weights": (CASES["softmax"], weights),
        "softmax by columns": (CASES["softmax"], rows),
        "matmul in threads": (CASES["matmul"], threads),
        "matmul with an offset": (offset_case, initial(offset_case.algorithm)),
        "products of bytes in lanes": (byte_case, lanes),
    }


def random_schedule(pick: Pick, kernel: Kernel, steps: int = 12) -> Kernel:
    """`kernel` after up to `steps` random legal transforms."""
    for _ in range(pick(range(steps + 1))):
        if not loops(kernel) or not values(kernel):
            break
        step = pick(KINDS).propose(kernel, pick)
        if step is not None and step.check(kernel) is None:
            kernel = _completed(run(kernel, step)) or kernel
    return kernel


def _completed(k: Kernel) -> Kernel | None:
    """`k` with what online sums read computed in the loop that they run in, unless it is before; None where it cannot
    be."""
    order = items(k)
    for name in reversed(order):
        for reader in readers(k.algorithm, name):
            for around, count in k.path(reader.name):
                if k.nests[name].at == k.nests[around].at and order.index(name) > order.index(around):
                    step = ComputeAt(name, around, k.nests[around].loops[count - 1].var.name)
                    if step.check(k) is not None:
                        return None
                    k = run(k, step)
    return k
