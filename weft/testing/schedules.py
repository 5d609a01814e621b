"""Random legal schedules: whatever transforms apply, in any order. A backend must be right under all of them.

`random_schedule(draw, kernel, steps)` proposes transforms and applies those whose check passes; the result computes
what the kernel computed (up to the order of floating-point additions).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from weft.ir import expr as ex
from weft.ir.expr import Call, Const, Expr, Load
from weft.ir.kernel.algorithm import Value
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.across import Across
from weft.ir.kernel.transforms.base import Transform, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.factor import Factor
from weft.ir.kernel.transforms.hint import PrefetchNext, Stream
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
from weft.ir.kernel.transforms.stage import Arrange, Stage
from weft.ir.kernel.transforms.trim import Trim
from weft.ir.kernel.transforms.window import Window
from weft.ir.loops import Scope
from weft.ir.ops import Op

Draw = Callable[[st.SearchStrategy[Any]], Any]

KINDS: tuple[str, ...] = (
    "split", "split", "pad", "merge", "permute", "unroll", "vectorize", "bind", "compute_at", "compute_at",
    "inline", "stage", "arrange", "split_reduce", "merge_axes", "factor", "share", "online", "stream", "prefetch",
    "window", "order_reduce", "trim", "across", "partial_sums",
)  # fmt: skip


def random_schedule(draw: Draw, kernel: Kernel, steps: int = 12) -> Kernel:
    """`kernel` after up to `steps` random legal transforms."""
    for number in range(draw(st.integers(0, steps))):
        step = _propose(draw, kernel, number)
        if step is not None and step.check(kernel) is None:
            kernel = run(kernel, step)
    return kernel


def _propose(draw: Draw, k: Kernel, number: int) -> Transform | None:
    loops = [s.var.name for n in k.nests.values() for s in n.loops]
    items = [i.name for i in k.algorithm.items]
    values = [i for i in k.algorithm.items if isinstance(i, Value)]
    factor = st.sampled_from([1, 2, 3, 4, 5, 8])

    def one(of: list[Any]) -> Any:
        return draw(st.sampled_from(of))

    if not loops or not values:
        return None
    kind = draw(st.sampled_from(KINDS))
    loop: str = one(loops)
    value: Value = one(values)
    match kind:
        case "split":
            return Split(loop, draw(factor))
        case "pad":
            return Pad(loop, draw(factor))
        case "merge":
            return Merge(loop, one(loops))
        case "permute":
            item = one(items)
            return Permute(item, tuple(draw(st.permutations([s.var.name for s in k.nests[item].loops]))))
        case "unroll":
            return Unroll(loop)
        case "vectorize":
            return Vectorize(loop)
        case "across":
            return Across(loop)
        case "bind":
            return Bind(loop)
        case "compute_at":
            owner = k.owner(loop)
            assert owner is not None
            return ComputeAt(one(items), owner, loop, draw(st.sampled_from([Scope.LOCAL, Scope.REGISTER])))
        case "inline":
            return Inline(value.name)
        case "stage":
            parts = _parts(value.expr)
            return Stage(value.name, one(parts), f"stage{number}") if parts else None
        case "arrange":
            rank = len(value.axes)
            order = tuple(draw(st.permutations(range(rank))))
            return Arrange(value.name, Scope.LOCAL, order, tuple(draw(factor) for _ in range(rank)))
        case "split_reduce":
            axes = value.reduce.axes if value.reduce else ()
            if not axes:
                return None
            count = draw(st.sampled_from([0, 2, 3, 4]))
            axis: str = one([a.var.name for a in axes])
            others = [a.var.name for a in axes if a.var.name != axis]
            whole = tuple(n for n in others if draw(st.booleans()))
            return SplitReduce(value.name, axis, count, f"part{number}", draw(st.booleans()), whole)
        case "order_reduce":
            names = [a.var.name for a in value.reduce.axes] if value.reduce else []
            return OrderReduce(value.name, tuple(draw(st.permutations(names)))) if names else None
        case "window":
            parts = [e for e in ex.walk(value.exprs()) if isinstance(e, Load | Call)]
            return Window(value.name, one(parts), f"window{number}") if parts else None
        case "merge_axes":
            names = [a.var.name for a in value.axes]
            if len(names) < 2:
                return None
            at: int = draw(st.integers(0, len(names) - 2))
            return MergeAxes(value.name, names[at], names[at + 1])
        case "factor":
            return Factor(value.name, one([Op.DIV, Op.MUL]))
        case "share":
            item = one(items)
            axes = [a.var.name for a in k.algorithm.item(item).all_axes]
            if len(axes) < len(value.axes):
                return None
            return Share(item, value.name, tuple(draw(st.permutations(axes))[: len(value.axes)]))
        case "trim":
            return Trim(value.name, loop)
        case "partial_sums":
            return PartialSums(value.name, loop, tuple(draw(st.lists(factor, min_size=1, max_size=2))))
        case "stream":
            return Stream(one(items))
        case "prefetch":
            return PrefetchNext(one(items), loop, draw(st.sampled_from((1, 3))))
        case _:
            return OnlineReduce(value.name, one(values).name, loop, one(loops))


def _parts(e: Expr) -> list[Expr]:
    return [x for x in ex.walk([e], into_indices=False) if not isinstance(x, Const)]
