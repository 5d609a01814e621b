"""torch.distributed.tensor: tensors on meshes of devices.

    mesh = init_device_mesh("dummy", (4,))
    x = distribute_tensor(weft.randn(8, 3), mesh, [Shard(0)])     two rows on each device
    (x @ w).full_tensor()

Every tensor function takes them; those that are not on a mesh are not touched.
"""

from weft.core.sharding.device_mesh import DeviceMesh, init_device_mesh
from weft.core.sharding.placements import Partial, Placement, Replicate, Shard
from weft.core.sharding.tensors import distribute_tensor
from weft.distributed.tensor.dtensor import DTensor, empty, full, ones, rand, randn, zeros
from weft.distributed.tensor.modules import distribute_module

__all__ = [
    "DTensor", "DeviceMesh", "Partial", "Placement", "Replicate", "Shard", "distribute_module", "distribute_tensor",
    "empty", "full", "init_device_mesh", "ones", "rand", "randn", "zeros",
]  # fmt: skip
