"""Parallel programs that people write by hand, found without annotation on four devices, with what they exchange."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

import weft
from tests.scheduler.placing.test_layouts import HOME, S0, S1, R, mesh_of, stored
from weft.ir.calls import expand_calls
from weft.ir.graph import Node, buffer, toposort
from weft.ir.placement import Layout, Shard, boxes
from weft.ir.regions import boxes as bx
from weft.nn import functional as F
from weft.scheduler.placing.layouts import Chosen, Rates, choose
from weft.scheduler.placing.links import Links
from weft.scheduler.sharding.lower import lower
from weft.scheduler.sharding.online import Running

WORLD = 4
S2 = Shard(2)

Exchanges: TypeAlias = "Counter[tuple[str, tuple[Any, ...], float]]"
"""By op and shape of a tensor: of "terms" or "parts", the copies of all devices, and their bytes over its own."""


def found(
    results: Sequence[weft.Tensor],
    leaves: Sequence[weft.Tensor],
    updates: Mapping[int, int] | None = None,
    given: Mapping[int, Layout] | None = None,
    limit: int | None = None,
) -> tuple[list[Layout], Exchanges, Chosen]:
    """The layouts of the leaves, and the exchanges of the lowered graph. `updates`: results that replace leaves."""
    mesh = mesh_of(WORLD)
    made = expand_calls([t.value.node for t in (*results, *leaves)])
    nodes, own = made[: len(results)], made[len(results) :]
    chosen = choose(
        nodes, mesh, [Rates(1e13, 1e12)] * WORLD, Links.uniform(WORLD, 1000, 50e9),
        {own[k]: layout for k, layout in (given or {}).items()}, limit,
        [(nodes[new], own[old]) for new, old in (updates or {}).items()],
    )  # fmt: skip
    assert chosen.choice.gap < 1e-6
    shards: dict[Node, list[Node]] = {}
    for n in toposort(nodes, stop_at_storage=False):
        if n.storage is not None and n.device == HOME:
            held = zip(mesh.devices, boxes(chosen.layouts[n], n.shape, mesh), strict=True)
            shards[n] = [
                buffer(tuple(int(hi) - int(lo) for lo, hi in b), n.dtype, d, object()) for d, b in held
            ]
    lowered = lower(nodes, mesh, chosen.layouts, shards, chosen.splits)
    exchanges: Exchanges = Counter()
    sizes: Counter[tuple[str, tuple[Any, ...], bool, Node]] = Counter()
    times: Counter[tuple[str, tuple[Any, ...], bool, Node]] = Counter()
    for f in lowered.fetches:
        key = (f.node.op.symbol, tuple(f.node.shape), f.is_term, f.node)
        sizes[key] += bx.volume(f.box)
        times[key] += 1
    for key, count in times.items():
        symbol, shape, is_term, _ = key
        whole = sizes[key] / int(np.prod(shape))
        exchanges["terms" if is_term else "parts", (symbol, *shape), whole] += count
    return [chosen.layouts[n] for n in own], exchanges, chosen


def terms(*shape: int, whole: float, count: int = 12) -> Exchanges:
    return Counter({("terms", ("sum", *shape), whole): count})


def parts(*shape: int, whole: float, count: int = 12) -> Exchanges:
    return Counter({("parts", ("sum", *shape), whole): count})


def trained(loss: weft.Tensor, weights: Sequence[weft.Tensor]) -> list[weft.Tensor]:
    loss.backward()
    return [w.detach() - 0.1 * w.grad for w in weights]


def test_columns_and_then_rows_with_an_all_reduce_each_way() -> None:
    x = stored(64, 2048).requires_grad_()
    w = [stored(2048, 8192).requires_grad_(), stored(8192, 2048).requires_grad_()]
    y = (x @ w[0]).relu() @ w[1]
    new = trained((y * stored(64, 2048)).sum(), w)
    layouts, exchanges, _ = found([y, *new, x.grad], w, {1: 0, 2: 1})
    assert layouts == [(S1,), (S0,)]
    # of y, and of the gradient of x: terms of a part for each device; results lie in parts
    assert exchanges == terms(64, 2048, whole=3) + terms(64, 2048, whole=3)


def adam(limit: int | None) -> tuple[list[Layout], Exchanges, Chosen]:
    x, w = stored(65536, 256), [stored(256, 256).requires_grad_() for _ in range(2)]
    moments = [stored(256, 256) for _ in range(4)]
    ((x @ w[0]).relu() @ w[1]).square().mean().backward()
    m = [0.9 * a + 0.1 * p.grad for a, p in zip(moments, w, strict=False)]
    v = [0.99 * a + 0.01 * p.grad.square() for a, p in zip(moments[2:], w, strict=True)]
    new = [p.detach() - a / (b.sqrt() + 1e-8) for p, a, b in zip(w, m, v, strict=True)]
    updates = {k: k for k in range(6)}
    return found([*new, *m, *v], [*w, *moments, x], updates, limit=limit)


def test_batches_with_moments_and_then_weights_once_over_all_devices() -> None:
    layouts, exchanges, ample = adam(1 << 40)
    assert layouts[2:] == [(S0,)] * 5  # ZeRO-1 and 2 cost nothing: gradients arrive in parts
    assert [n for (kind, *_), n in exchanges.items() if kind == "terms"] == [24]  # both reduce-scattered
    assert layouts[1] == (R,)  # read forward and backward
    layouts, exchanges, tight = adam(ample.choice.nbytes[0] - 3 * 256 * 256)
    assert layouts == [(S0,)] * 7  # ZeRO-3
    assert exchanges == Counter(
        {("terms", ("sum", 256, 256), 3.0): 24, ("parts", ("buffer", 256, 256), 3.0): 24}
    )
    assert tight.choice.ns > ample.choice.ns


def test_a_vocabulary_in_parts_exchanges_a_few_numbers_for_each_row() -> None:
    x, w = stored(512, 256).requires_grad_(), stored(65536, 256).requires_grad_()
    loss = F.cross_entropy(x @ w.T, weft.tensor(np.arange(512)).realize())
    new = trained(loss, [w])
    layouts, exchanges, _ = found([loss, *new, x.grad], [w], {1: 0})
    assert layouts == [(S0,)]
    # the largest, the sum and the target's of each row, a sum of its gradient; and the gradient of x
    assert sum(exchanges.values()) == 12 * 5
    assert all(kind == "terms" for kind, *_ in exchanges)
    assert terms(512, 256, whole=3) <= exchanges


def test_experts_lie_on_devices_and_their_rows_go_all_to_all() -> None:
    rows, experts, width = 4096, 8, 256
    x, w = stored(rows, width), [stored(experts, width, 1024), stored(experts, 1024, width)]
    order = weft.tensor(np.random.default_rng(0).permutation(rows)).realize()
    mixed = x[order].reshape(experts, rows // experts, width)
    y = ((mixed @ w[0]).relu() @ w[1]).reshape(rows, width)[order]
    layouts, exchanges, _ = found([y], w)
    assert layouts == [(S0,), (S0,)]
    assert exchanges == parts(experts, rows // experts, width, whole=0.75)


def test_convolutions_exchange_the_rows_at_the_edges() -> None:
    x, w = stored(1, 16, 2048, 256), [stored(16, 16, 3, 3) for _ in range(2)]
    y = F.conv2d(F.conv2d(x, w[0], padding=1).relu(), w[1], padding=1)
    layouts, exchanges, _ = found([y], [x, *w], given={0: (S2,)})
    assert layouts[1:] == [(R,), (R,)]
    each = 6 / 2048  # a row for each side of three edges
    assert exchanges == Counter(
        {("parts", ("buffer", 1, 16, 2048, 256), each): 6, ("parts", ("sum", 1, 1, 16, 2048, 256), each): 6}
    )


def test_gradients_of_queries_keys_and_values_are_added_before_they_are_combined() -> None:
    # of 512 rows, the gradient goes by blocks, whose sums are combined one by one
    rows, width, heads = 256, 1024, 16
    x = stored(1, rows, width).requires_grad_()
    w = [stored(width, width).requires_grad_() for _ in range(4)]
    q, k, v = ((x @ m).reshape(1, rows, heads, width // heads).transpose(1, 2) for m in w[:3])
    y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, rows, width) @ w[3]
    new = trained((y * stored(1, rows, width)).sum(), w)
    given: dict[int, Layout] = {0: (S1,), 1: (S1,), 2: (S1,), 3: (S0,)}
    _, exchanges, _ = found([y, *new, x.grad], w, {1 + i: i for i in range(4)}, given)
    combined = Counter({key: n for key, n in exchanges.items() if key[0] == "terms"})
    forward, backward = (("terms", (op, 1, rows, width), 3.0) for op in ("sum", "add"))
    assert combined == Counter({forward: 12, backward: 12})  # one reduce-scatter each


def test_long_sequences_pass_keys_and_values_around_a_ring() -> None:
    q, k, v = (stored(1, 1, 8192, 64) for _ in range(3))
    y = F.scaled_dot_product_attention(q, k, v)
    _, exchanges, chosen = found([y], [q, k, v], given=dict.fromkeys(range(3), (S2,)))
    # three blocks of keys and of values for each device, one by one, beside the block before
    assert exchanges == Counter({("parts", ("buffer", 1, 1, 8192, 64), 3.0): 24})
    assert list(chosen.splits.values()) == [(Running(4, in_turns=True),)]
    (decision,) = [d for d in chosen.decisions if d.node in chosen.splits]
    at_once = next(ns for form, ns in decision.others if not form.split)
    moved = 2 * 3 / 4 * 8192 * 64 * 4 / 50e9 * 1e9
    assert at_once >= 0.9 * moved  # what a gather would have waited for


def test_a_short_query_has_states_of_blocks_combined() -> None:
    """Decoding with long keys and values in blocks: they stay; the maximum and the sums of each row are exchanged."""
    q = stored(1, 8, 1, 64)
    k, v = (stored(1, 8, 65536, 64) for _ in range(2))
    y = F.scaled_dot_product_attention(q, k, v)
    _, exchanges, chosen = found([y], [q, k, v], given={1: (S2,), 2: (S2,)})
    assert list(chosen.splits.values()) == [(Running(4, in_turns=False),)]
    assert exchanges == Counter({
        ("terms", ("reduce_max", 1, 8, 1), 3.0): 12,
        ("terms", ("sum", 1, 8, 1), 3.0): 12,
        ("terms", ("sum", 1, 8, 1, 64), 3.0): 12,
    })  # fmt: skip


def test_scores_that_somebody_else_reads_are_not_taken_in_blocks() -> None:
    q, k, v = (stored(1, 1, 1024, 64) for _ in range(3))
    p = (q @ k.transpose(2, 3)).softmax(3)
    _, _, chosen = found([p @ v, p], [q, k, v], given=dict.fromkeys(range(3), (S2,)))
    assert not any(isinstance(s, Running) for split in chosen.splits.values() for s in split)


def test_what_does_not_divide_is_found_as_well() -> None:
    x, w = stored(4097, 1024), stored(1024, 13)
    layouts, exchanges, _ = found([(x @ w).relu()], [x, w])
    assert layouts == [(S0,), (R,)] and not exchanges
