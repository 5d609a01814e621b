"""Meshes as devices: "mesh:0" stands for several devices, and its memory is in parts, one on each of them."""
# Tests: tests/backends/mesh/test_device.py

from __future__ import annotations

from weft.backends.mesh.device import MESHES, MeshBackend


def open_backend() -> MeshBackend:
    """The entry point of the backend: the meshes that this process has made."""
    return MESHES
