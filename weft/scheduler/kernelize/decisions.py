"""Decisions of the kernelizer, as data: where a node is computed and stored, why, and the costs compared.

They are computed from a read-only view of a partition (`fusion`, `homes`), applied in one place (`Partition.apply`) and
logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import TypeAlias

from weft.ir.graph import Node
from weft.ir.index import Int, Var
from weft.lazy_dataclass import dataclass
from weft.scheduler.kernelize.cost import Comparison
from weft.scheduler.kernelize.groups import Group, Site


@dataclass(frozen=True, slots=True)
class Cut:
    """A fusion boundary: the reason why a node is stored.

    A cut is `forced` where the program asks for it, or where fusing is not possible (or not known to be); others
    follow from costs, those in `costs` where some were compared, and might be decided otherwise. `in_reader`: a
    kernel that reads the node may store it. `ends_online`: the kernels that read it hold no attention in one pass.
    """

    why: str
    forced: bool
    in_reader: bool = True
    costs: Comparison | None = None
    ends_online: bool = False


class Role(Enum):
    """The relation of a node to the group that stores it beside its own nodes."""

    READER = "a kernel that reads it"
    REDUCER = "the kernel of the reduction it is a function of"
    SIBLING = "a kernel over the same domain that reads the same tensor"


@dataclass(frozen=True, slots=True)
class Refused:
    """The reason why groups do not store a node."""

    groups: Sequence[Group]
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class FuseInto:
    """Fusion: the node is computed at `sites`, where it is read, and not stored. `prologues`: the groups around a
    product that compute it while staging an operand. `costs`: the comparisons that allow this."""

    sites: Sequence[Site]
    prologues: Sequence[Group] = ()
    costs: Sequence[Comparison] = ()


@dataclass(frozen=True, slots=True, eq=False)
class StoreIn:
    """A store beside others: `group` computes the node at `index`, over an output domain of `axes`, and stores it."""

    cut: Cut
    sites: Sequence[Site]
    group: Group
    role: Role
    index: tuple[Int, ...]
    axes: frozenset[Var]


@dataclass(frozen=True, slots=True, eq=False)
class ComputeRedundantly:
    """Recomputation of a scalar by every group that reads it; `home` also stores it."""

    cut: Cut
    sites: Sequence[Site]
    home: Group


@dataclass(frozen=True, slots=True, eq=False)
class NewGroup:
    """A store by a kernel made for it, since no other group could: see `refused`."""

    cut: Cut
    sites: Sequence[Site]
    refused: Sequence[Refused] = ()


@dataclass(frozen=True, slots=True, eq=False)
class LoopResult:
    """A store by the loop that the node is a result of."""

    cut: Cut
    sites: Sequence[Site]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceCopy:
    """A store by a copy from another device."""

    cut: Cut
    sites: Sequence[Site]


Stored: TypeAlias = StoreIn | ComputeRedundantly | NewGroup | LoopResult | DeviceCopy
Decision: TypeAlias = FuseInto | Stored


@dataclass(frozen=True, slots=True)
class Logged:
    """A decision about a node, as text. Kernels are numbered as they run, from 1.

    `action`: where the node is computed and stored; `why`: what ended its fusion, empty where it is fused; `forced`:
    whether costs had no say in that; `costs`: the costs compared, that of fusing first (see `cost.Cost`); `refused`:
    why other kernels do not store it.
    """

    node: str
    action: str
    why: str = ""
    forced: bool = False
    costs: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def __str__(self) -> str:
        ground = f": {self.why} ({'forced' if self.forced else 'by cost'})" if self.why else ""
        head = f"{self.node} {self.action}{ground}"
        return "\n".join([head, *(f"    {c}" for c in self.costs), *(f"    {r}" for r in self.refused)])


class DecisionLog(tuple[Logged, ...]):
    """Decisions as text, in their order: printed, each begins a line."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self))


Entry: TypeAlias = tuple[Node, Decision]


def decisions_by_group(log: Iterable[Entry], groups: Sequence[Group]) -> dict[Group, list[Logged]]:
    """For each group, the decisions about the nodes that it computes or stores."""
    entries = list(log)
    home = _homes(groups)
    out: dict[Group, list[Logged]] = {g: [] for g in groups}
    for (node, decision), text in zip(entries, describe(entries, groups), strict=True):
        for g in _involved(decision, home.get(id(node))):
            out[g].append(text)
    return out


def describe(log: Iterable[Entry], groups: Sequence[Group]) -> Iterator[Logged]:
    """Decisions as text; `groups` are the kernels in the order in which they run."""
    number = {g: k for k, g in enumerate(groups, 1)}
    homes = _homes(groups)

    def named(some: Iterable[Group]) -> str:
        found = sorted({number[g] for g in some})
        return f"kernel{'' if len(found) == 1 else 's'} {', '.join(map(str, found))}"

    for node, decision in log:
        home = homes.get(id(node))
        where = named(_involved(decision, home))
        if isinstance(decision, FuseInto):
            yield Logged(repr(node), f"fused into {where}", costs=tuple(map(str, decision.costs)))
            continue
        match decision:
            case StoreIn(role=role):
                action = f"stored by {where}, {role.value}"
            case ComputeRedundantly(home=first):
                action = f"computed in {where}, stored by {named([first])}"
            case NewGroup():
                action = f"stored by {where}, made for it"
            case LoopResult():
                action = f"stored by {where}, its loop"
            case DeviceCopy():
                action = "copied from another device"
        cut = decision.cut
        costs = () if cut.costs is None else (str(cut.costs),)
        reasons: dict[str, list[Group]] = {}
        for r in decision.refused if isinstance(decision, NewGroup) else ():
            reasons.setdefault(r.why, []).extend(r.groups)
        refused = tuple(f"not in {named(some)}: {why}" for why, some in reasons.items())
        yield Logged(repr(node), action, cut.why, cut.forced, costs, refused)


def _homes(groups: Iterable[Group]) -> dict[int, Group]:
    """The group that stores each node, by the node's id."""
    return {node: g for g in groups for node in g.stored}


def _involved(decision: Decision, home: Group | None) -> Iterable[Group]:
    """The groups that compute the node of a decision, or that store it."""
    match decision:
        case FuseInto(sites=sites) | ComputeRedundantly(sites=sites):
            return dict.fromkeys(s.group for s in sites)
        case _:
            return () if home is None else (home,)
