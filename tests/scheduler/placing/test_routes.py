"""Routes between layouts are the shortest, and end where they should."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from weft.errors import ArgumentError
from weft.ir.ops import Op
from weft.ir.placement import Layout, Mesh, Partial, Placement, Replicate, Shard, boxes
from weft.scheduler.placing.links import Collective, Links
from weft.scheduler.placing.routes import Move, Routes, block_ends

R, S0, S1, P = Replicate(), Shard(0), Shard(1), Partial()


def mesh_of(*shape: int) -> Mesh:
    return Mesh("mesh:0", tuple(f"dummy:{k}" for k in range(int(np.prod(shape)))), shape)


def routes(*shape: int, latency: float = 1000, bandwidth: float = 1e9) -> Routes:
    mesh = mesh_of(*shape)
    return Routes(mesh, Links.uniform(len(mesh.devices), latency, bandwidth))


def all_layouts(rank: int, axes: int, *more: Placement) -> list[Layout]:
    return list(itertools.product([R, P, *(Shard(d) for d in range(rank)), *more], repeat=axes))


@pytest.mark.parametrize("links", ["uniform", "islands"])
def test_a_detour_is_never_shorter(links: str) -> None:
    mesh = mesh_of(2, 3)
    of = {
        "uniform": Links.uniform(6, 500, 1e9),
        "islands": Links.islands([3, 3], (100, 9e9), (4000, 1e9)),
    }[links]
    uneven = Shard(0, (1, 2, 8))
    layouts = [(a, b) for a, b in all_layouts(2, 2, uneven) if a != uneven]
    layouts = [x for x in layouts if x != (S0, uneven)]
    d = Routes(mesh, of).distances((8, 5), 4, layouts, layouts)
    assert np.isfinite(d).all()
    assert (np.diagonal(d) == 0).all()
    assert (d[:, None, :] <= d[:, :, None] + d[None, :, :] + 1e-9).all()


def test_each_pair_has_the_collective_that_is_known_for_it() -> None:
    def kinds(source: Placement, target: Placement) -> list[Collective | Move]:
        return [hop.kind for hop in routes(4).route((64, 64), 4, (source,), (target,))]

    assert kinds(P, R) == [Collective.ALL_REDUCE]
    assert kinds(P, S0) == [Collective.REDUCE_SCATTER]
    assert kinds(S0, R) == [Collective.ALL_GATHER]
    assert kinds(S0, S1) == [Collective.ALL_TO_ALL]
    assert kinds(R, S1) == [Move.SLICE]
    assert kinds(R, P) == [Move.TERM]
    assert kinds(S0, Shard(0, (1, 2, 3, 64))) == [Move.P2P]
    assert kinds(P, P) == []


def test_slow_links_get_what_fast_ones_have_reduced() -> None:
    mesh = mesh_of(4, 4)
    r = Routes(mesh, Links.islands([4] * 4, (1000, 100e9), (1000, 1e9)))
    (hop,) = r.route((4096, 4096), 4, (P, P), (R, R))
    assert (hop.kind, hop.axes, hop.way.algorithm) == (Collective.ALL_REDUCE, (0, 1), "hierarchical")
    hops = r.route((4096, 4096), 4, (P, P), (S1, S0))
    assert [(h.kind, h.axes) for h in hops] == [
        (Collective.REDUCE_SCATTER, (1,)),
        (Collective.REDUCE_SCATTER, (0,)),
    ]
    assert hops[1].nbytes == hops[0].nbytes // 4


def test_small_all_reduces_over_both_axes_are_one() -> None:
    (hop,) = routes(4, 4).route((4,), 4, (P, P), (R, R))
    assert (hop.kind, hop.axes) == (Collective.ALL_REDUCE, (0, 1))


def test_the_outer_of_nested_shards_is_not_gathered_alone() -> None:
    hops = routes(2, 3).route((12,), 4, (S0, S0), (R, S0))
    assert [h.kind for h in hops] != [Collective.ALL_GATHER]
    assert hops[-1].layout == (R, S0)


def test_hops_lead_from_layout_to_layout_and_add_up_to_the_distance() -> None:
    r = routes(2, 3)
    layouts = all_layouts(2, 2)
    d = r.distances((7, 6), 4, layouts, layouts)
    for (i, a), (j, b) in itertools.product(enumerate(layouts), repeat=2):
        hops = r.route((7, 6), 4, a, b)
        assert (hops[-1].layout if hops else a) == b
        assert sum(h.ns for h in hops) == pytest.approx(d[i, j])


def test_boxes_of_all_devices_are_those_of_each() -> None:
    for mesh in (mesh_of(2, 3), mesh_of(7), mesh_of(2, 2, 2)):
        bounds = (1, 5, 11) if mesh.shape == (2, 3) else None
        for layout in all_layouts(2, len(mesh.shape)):
            layout = (*layout[:-1], Shard(1, bounds)) if bounds and S1 not in layout else layout
            for shape in ((8, 11), (3, 11)):
                ends = block_ends(layout, shape, mesh.shape)
                wanted = [[(s.lo, s.hi) for s in box] for box in boxes(layout, shape, mesh)]
                assert ends.tolist() == [[list(s) for s in box] for box in wanted], (layout, shape)


def test_direct_exchanges_count_what_is_lacking() -> None:
    hops = routes(4, latency=0).route((64,), 1, (Shard(0, (8, 16, 24, 64)),), (S0,))
    assert [(h.kind, h.nbytes) for h in hops] == [(Move.P2P, 16)]


def test_terms_of_two_operations_have_no_meaning_together() -> None:
    with pytest.raises(ArgumentError, match="two operations"):
        routes(2, 2).route((4,), 4, (Partial(), Partial(Op.MAX)), (R, R))


def test_terms_of_one_operation_become_those_of_another_by_way_of_the_whole() -> None:
    hops = routes(2).route((4,), 4, (Partial(Op.MAX),), (P,))
    assert [h.kind for h in hops] == [Collective.ALL_REDUCE, Move.TERM]


def test_uneven_blocks_wait_for_the_largest() -> None:
    r = routes(4, latency=0)
    (hop,) = r.route((64,), 1, (Shard(0, (1, 2, 3, 64)),), (R,))
    assert hop.ns == 63  # what the devices with one element lack; in equal parts, 48
