"""Devices that are registered under the names of others: nothing that was kept by these names reaches them."""

from __future__ import annotations

from typing import Any

import weft
from weft import nn
from weft.backends import registry
from weft.distributed import init_device_mesh
from weft.distributed.tensor import Shard, distribute_tensor
from weft.scheduler import meshes
from weft.testing import farm


def test_devices_of_an_old_name_have_nothing_of_those_before() -> None:
    """Equal constants are one node, graphs on meshes are kept by names, and so is what was compiled."""
    held: list[weft.Tensor] = []
    alone = weft.compile(lambda: weft.ones(5, 5, device="farm:0") @ weft.ones(5, 5, device="farm:0"))
    over = weft.compile(lambda x: (x @ x.T).relu() + weft.ones(1))
    for speeds in ([1, 1], [1, 1], [1, 5]):
        with farm(2, speeds=speeds) as made:
            zeros = weft.zeros(4, 4, device="farm:0")
            held += [zeros, zeros + 1, alone()]
            assert [x.sum().item() for x in held[-3:]] == [0.0, 16.0, 125.0]
            mesh = init_device_mesh(made.names, (2,))
            x = distribute_tensor(weft.ones(64, 8), mesh, [Shard(0)])
            held += [over(x), over(x)]
            for y in held[-2:]:
                assert y.full_tensor().numpy().sum() == 36864
            assert held[-3].value.node.storage.device is made.device(0)
            assert all(d.clock.launches for d in made.devices)
            assert meshes._templates
        assert not meshes._templates, "which were chosen for what those devices were"


def test_layouts_follow_devices_that_were_registered_anew() -> None:
    blocks: list[Any] = []
    for speeds in ([1, 1], [1, 5]):
        with farm(2, speeds=speeds) as made:
            layer = nn.Linear(64, 64)
            forward = weft.compile(lambda x, layer=layer: layer(x).relu(), devices=made.names)
            for _ in range(3):
                forward(weft.ones(512, 64))
            assert forward.chosen is not None
            blocks.append(forward.chosen.decisions[0].form.layout[0])
    assert blocks[0].bounds is None
    assert blocks[1].bounds[0] < 128


def test_a_mesh_is_described_as_its_devices_are_now() -> None:
    for flops in (1e9, 3e9):
        with farm(2, flops=flops) as made:
            mesh = init_device_mesh(made.names, (2,))
            assert registry.open_device(mesh.root.name).info.flops == 2 * flops
