from __future__ import annotations

from collections import Counter
from dataclasses import replace

from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.expr import Expr, Load, ScalarCall
from weft.ir.kernel.algorithm import ItemValue
from weft.ir.kernel.schedule import At, Kernel, Nest, Online
from weft.ir.kernel.transforms.arguments import one_of, reducing_loops, reductions
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import empty, find, find_value, serial
from weft.ir.kernel.transforms.inline import map_exprs
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class OnlineReduce(Transform):
    """A sum weighted by exp(x - m), m the maximum of x over the same axis, runs beside the maximum in one loop.

        m = max j: x(j);  s = sum j: exp(x(j) - m) * v(j)
        ->  for jo:  m' = max(m, max ji: x);  s = s * exp(m - m') + sum ji: exp(x - m') * v;  m = m'

    While m runs, exp(x - m) uses its value so far; the factor exp(m - m') makes good for it (Milakov & Gimelshein
    2018, arXiv:1805.02867). Reassociates; a weight that is rounded to a narrower float is so before it is corrected.
    `loop` is the leader's loop over the axis, `own` the follower's loop of the same extent, which it replaces. Needs:
    both reduce at the same place, over as many steps of the same axis; the leader is a MAX; every use of it in the
    follower, and in the values between, has the form exp(x - m), as a factor; the leader's axes are the follower's
    first, their loops inside the shared one; nobody else reads the leader there. What the follower reads and nobody
    has computed before the leader is to be computed in the shared loop then (`ComputeAt`).
    """

    leader: str
    follower: str
    loop: str
    own: str

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> OnlineReduce | None:
        leader, follower = one_of(pick, reductions(k, Op.MAX)), one_of(pick, reductions(k, Op.ADD))
        if leader is None or follower is None:
            return None
        loop, own = (one_of(pick, reducing_loops(k, v)) for v in (leader, follower))
        return None if loop is None or own is None else cls(leader.name, follower.name, loop, own)

    def check(self, k: Kernel) -> Refusal | None:
        leader, follower = find_value(k, self.leader), find_value(k, self.follower)
        if isinstance(leader, Refusal):
            return leader
        if isinstance(follower, Refusal):
            return follower
        if leader.reduce is None or leader.reduce.op is not Op.MAX:
            return Refusal(f"{self.leader} is no maximum")
        if follower.reduce is None or follower.reduce.op is not Op.ADD:
            return Refusal(f"{self.follower} is no sum")
        a, b = find(k, self.loop), find(k, self.own)
        if isinstance(a, Refusal):
            return a
        if isinstance(b, Refusal):
            return b
        ln, fn = k.nests[self.leader], k.nests[self.follower]
        if ln.loop(self.loop) is None or fn.loop(self.own) is None or not a.reduce or not b.reduce:
            return Refusal(
                f"{self.loop} and {self.own} are not reducing loops of {self.leader} and {self.follower}"
            )
        if a.extent != b.extent or ln.at != fn.at or fn.online is not None or ln.online is not None:
            return Refusal(
                f"{self.leader} and {self.follower} do not run over the same steps at the same place"
            )
        refusal = (
            empty(k, self.follower)
            or serial(k, b)
            or (None if a.kind is b.kind else Refusal(f"{self.loop} is {a.kind.value}"))
        )
        if refusal is not None:
            return refusal
        if any(not s.reduce for s in ln.loops[: ln.depth(self.loop)]):
            return Refusal(f"{self.loop} is inside a loop of {self.leader} that does not reduce")
        if _rows(follower, fn, len(leader.axes)) != _rows(leader, ln, len(leader.axes)):
            return Refusal(f"the first axes of {self.follower} are not those of {self.leader}")
        if not _same_axis(k, leader, follower, self.loop, self.own):
            return Refusal(f"{self.loop} and {self.own} do not step along the same axis alike")
        if not _weighted(k, follower, leader):
            return Refusal(f"{self.follower} is not weighted by exp(x - {self.leader})")
        return None

    def apply(self, k: Kernel) -> Kernel:
        ln, fn = k.nests[self.leader], k.nests[self.follower]
        shared, own = ln.loop(self.loop), fn.loop(self.own)
        assert shared is not None and own is not None
        k = _safe(k.rebind({own.var: shared.var}), self.leader)
        nest = k.nests[self.follower]
        loops = tuple(s for s in nest.loops if s.var != own.var)
        at = At(self.leader, self.loop)
        return k.with_nest(
            self.follower, replace(nest, loops=loops, at=at, online=Online(self.leader, self.loop))
        )


def _safe(k: Kernel, leader: str) -> Kernel:
    """exp(x - m) with m at least the lowest finite number: where all so far is -inf, the weight is 0, not NaN."""

    def clamped(e: Expr) -> Expr | None:
        if (
            isinstance(e, ScalarCall)
            and e.op is Op.EXP
            and isinstance(d := e.args[0], ScalarCall)
            and d.op is Op.SUB
        ):
            m = d.args[1]
            if isinstance(m, Load) and m.source == leader:
                lowest = ex.Const(m.dtype, -dtypes.LARGEST[m.dtype])
                return ex.call(Op.EXP, ex.call(Op.SUB, d.args[0], ex.call(Op.MAX, m, lowest)))
        return None

    items = tuple(map_exprs(i, clamped) if isinstance(i, ItemValue) else i for i in k.algorithm.items)
    return replace(k, algorithm=replace(k.algorithm, items=items))


def running(e: Expr, leader: str) -> bool:
    """The expression is the leader, or the leader kept finite; by no other limit, of which `scale` does not know."""
    match e:
        case ScalarCall(op=Op.MAX, args=(m, ex.Const(value=lowest))) if lowest == -dtypes.LARGEST.get(
            e.dtype, 0
        ):
            e = m
        case _:
            pass
    return isinstance(e, Load) and e.source == leader


def _rows(item: ItemValue, nest: Nest, count: int) -> list[tuple[object, object]]:
    """Region of the first axes: where it starts and how large it is."""
    return list(zip(nest.origin[:count], nest.size[:count], strict=True))


def _same_axis(k: Kernel, leader: ItemValue, follower: ItemValue, loop: str, own: str) -> bool:
    """The loops stand for the same part of a reduced axis: equal steps of axes of equal extent, or one of the axes
    counts the steps themselves."""
    from weft.ir.index import coefficient

    def step(item: ItemValue, name: str) -> set[tuple[int | None, object]]:
        nest = k.nests[item.name]
        spec = nest.loop(name)
        assert spec is not None and item.reduce is not None
        out: set[tuple[int | None, object]] = set()
        for a in item.reduce.axes:
            c = coefficient(nest.bind[a.var], spec.var)
            if c != 0:
                out.add((c, a.extent))
        return out

    a, b = step(leader, loop), step(follower, own)
    return len(a) == 1 and len(b) == 1 and (a == b or 1 in (next(iter(a))[0], next(iter(b))[0]))


def _weighted(k: Kernel, follower: ItemValue, leader: ItemValue) -> bool:
    """Every path from the follower's expression to the leader goes through one factor exp(x - leader)."""
    values = {i.name: i for i in k.algorithm.items if isinstance(i, ItemValue)}

    def factors(e: Expr) -> Counter[Expr]:
        """The factors of the product, and how often each occurs; shared parts are looked at once."""
        times, found = Counter({e: 1}), Counter[Expr]()
        for x in reversed(list(ex.walk([e], into_indices=False))):
            match x:
                case _ if x not in times:
                    pass
                case ScalarCall(op=Op.MUL):
                    for a in x.args:
                        times[a] += times[x]
                case ScalarCall(op=Op.WHERE, args=(_, inside, ex.Const(value=0))):
                    times[inside] += times[x]  # a guard with 0 outside adds nothing
                case _:
                    found[x] = times[x]
        return found

    def uses(e: Expr, seen: frozenset[str]) -> bool:
        for x in ex.walk([e]):
            if isinstance(x, Load):
                if x.source == leader.name:
                    return True
                inner = values.get(x.source)
                if inner is not None and x.source not in seen and uses(inner.expr, seen | {x.source}):
                    return True
        return False

    def weight(e: Expr) -> bool:
        match e:
            case ScalarCall(op=Op.EXP):
                d = e.args[0]
                return (
                    isinstance(d, ScalarCall)
                    and d.op is Op.SUB
                    and running(d.args[1], leader.name)
                    and not uses(d.args[0], frozenset())
                )
            case ScalarCall(op=Op.CAST) if e.dtype.is_float and e.args[0].dtype.is_float:
                return weight(
                    e.args[0]
                )  # rounded: as far off, relative to the weight, before the factor as after it
            case ScalarCall(op=Op.WHERE, args=(condition, x, ex.Const(value=0))):
                return not uses(condition, frozenset()) and weight(x)
            case Load() if e.source in values:
                v = values[e.source]
                return product(v.expr) if v.reduce is None or v.reduce.op is Op.ADD else False
            case _:
                return False

    def product(e: Expr) -> bool:
        used = [(f, n) for f, n in factors(e).items() if uses(f, frozenset())]
        return len(used) == 1 and used[0][1] == 1 and weight(used[0][0])

    return product(follower.expr)
