"""torch.distributed.device_mesh."""
# Tests: tests/core/sharding/test_device_mesh.py

from weft.core.sharding.device_mesh import DeviceMesh, init_device_mesh

__all__ = ["DeviceMesh", "init_device_mesh"]
