"""Layouts that were chosen, kept on disk: a new process does not search again for the same graph, devices and links.

An entry has the cuts by their places in the graph, and forms by their number, as JSON. One that does not fit the graph,
cut for cut, counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from time import process_time
from typing import Any

from weft import disk_cache
from weft.ir.graph import Node, toposort
from weft.ir.ops import Op
from weft.ir.placement import Layout, Mesh, Partial, Replicate, Shard
from weft.scheduler.placing.layouts import Chosen, Decision, Form, Rates, choose
from weft.scheduler.placing.links import Links
from weft.scheduler.placing.problem import Choice
from weft.scheduler.sharding.lower import OneSplit
from weft.scheduler.sharding.online import Running
from weft.scheduler.signature import signature

MIN_NODES = 200
"""Nodes from which on it is worth looking on disk."""

MIN_SECONDS = 0.05
"""The processor time of a search from which on its result is kept."""


def chosen(
    nodes: Sequence[Node],
    mesh: Mesh,
    rates: Sequence[Rates],
    between: Links,
    given: Mapping[Node, Layout] | None = None,
    limit: int | None = None,
    updates: Sequence[tuple[Node, Node]] = (),
    reassociates: bool = True,
) -> Chosen:
    """Choose layouts as `choose` does: of what was chosen before, the same again."""
    order = toposort(nodes)
    if len(order) < MIN_NODES:
        return choose(nodes, mesh, rates, between, given, limit, updates, reassociates)
    place = {n: k for k, n in enumerate(order)}
    laid = sorted((place[n], repr(layout)) for n, layout in (given or {}).items() if n in place)
    parts = mesh.shape, list(rates), laid, limit, [(place[a], place[b]) for a, b in updates], reassociates
    key = disk_cache.digest(
        "layouts 1", disk_cache.compiler(), signature(nodes).digest(), repr(parts),
        between.latency_ns.tobytes(), between.ns_per_byte.tobytes(),
    )  # fmt: skip
    known = _read(disk_cache.get("layouts", key), order)
    if known is not None:
        return known
    begin = process_time()
    found = choose(nodes, mesh, rates, between, given, limit, updates, reassociates)
    if process_time() - begin >= MIN_SECONDS:
        disk_cache.put("layouts", key, _written(found, place))
    return found


def _written(found: Chosen, place: Mapping[Node, int]) -> bytes:
    """The entry: rows of (place, op, shape, form, ns, other forms with what they would add)."""
    number: dict[Form, int] = {}

    def of(form: Form) -> int:
        return number.setdefault(form, len(number))

    rows = [
        (place[d.node], d.node.op.name, d.node.shape, of(d.form), d.ns, [(of(f), ns) for f, ns in d.others])
        for d in found.decisions
    ]
    forms = [([_text(p) for p in f.layout], [_text(s) for s in f.split]) for f in number]
    c = found.choice
    choice = [int(k) for k in c.options], float(c.ns), float(c.bound_ns), [int(n) for n in c.nbytes]
    return json.dumps({"forms": forms, "rows": rows, "choice": choice}).encode()


def _read(data: bytes | None, order: Sequence[Node]) -> Chosen | None:
    """The choice that an entry has for the graph; None where it does not fit."""
    if data is None:
        return None
    decisions: list[Decision] = []
    try:
        entry: dict[str, Any] = json.loads(data)
        pairs: list[tuple[list[Any], list[Any]]] = entry["forms"]
        rows: list[tuple[int, str, list[int], int, float, list[tuple[int, float]]]] = entry["rows"]
        forms = [Form(tuple([_placement(p) for p in f]), tuple([_split(p) for p in s])) for f, s in pairs]
        for at, op, shape, form, ns, others in rows:
            n = order[at]
            if n.op.name != op or list(n.shape) != shape:
                return None
            decisions.append(Decision(n, forms[form], ns, tuple([(forms[f], more) for f, more in others])))
        options, total, bound, nbytes = entry["choice"]
        choice = Choice(tuple(options), total, bound, tuple(nbytes))
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return Chosen(
        {d.node: d.form.layout for d in decisions},
        {d.node: d.form.split for d in decisions if d.form.split},
        tuple(decisions),
        choice,
    )


def _text(p: Any) -> list[Any]:
    match p:
        case Shard(dim, bounds):
            return ["shard", dim, bounds]
        case Partial(op):
            return ["partial", op.name]
        case Running(dim, in_turns):
            return ["running", dim, in_turns]
        case Replicate():
            return ["replicate"]
        case None:
            return ["whole"]
        case _:
            raise TypeError(f"{p!r} is no form of a cut")


def _placement(text: list[Any]) -> Replicate | Shard | Partial:
    match text:
        case ["replicate"]:
            return Replicate()
        case ["shard", dim, bounds]:
            return Shard(dim, None if bounds is None else tuple(bounds))
        case ["partial", op]:
            return Partial(Op[op])
        case _:
            raise ValueError(f"{text} is no placement")


def _split(text: list[Any]) -> OneSplit:
    match text:
        case ["whole"]:
            return None
        case ["running", dim, in_turns]:
            return Running(dim, in_turns)
        case _:
            found = _placement(text)
            if isinstance(found, Replicate):
                raise ValueError(f"{text} is no split")
            return found
