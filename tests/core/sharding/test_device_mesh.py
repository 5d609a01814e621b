"""DeviceMesh: devices in a grid, and some of its dimensions."""

from __future__ import annotations

import pickle

import pytest

import weft
from weft.distributed import DeviceMesh, init_device_mesh
from weft.errors import ArgumentError, DeviceError


def test_a_mesh_is_the_first_devices_of_a_kind() -> None:
    mesh = init_device_mesh("dummy", (2, 2), mesh_dim_names=("dp", "tp"))
    assert mesh.devices == ("dummy:0", "dummy:1", "dummy:2", "dummy:3")
    assert (mesh.shape, mesh.ndim, mesh.size(), mesh.size("tp"), mesh.size(0)) == ((2, 2), 2, 4, 2, 2)
    assert mesh.mesh_dim_names == ("dp", "tp")
    assert mesh.device_type == "dummy"
    assert mesh.mesh.tolist() == [[0, 1], [2, 3]]
    assert repr(mesh) == "DeviceMesh(dp=2, tp=2; dummy:0, dummy:1, dummy:2, dummy:3)"


def test_devices_may_be_of_several_kinds() -> None:
    mesh = init_device_mesh(["cpu", weft.device("dummy:1")], (2,))
    assert mesh.devices == ("cpu:0", "dummy:1")
    assert mesh.device_type == "mesh"


def test_a_dimension_is_a_mesh_of_its_own() -> None:
    mesh = init_device_mesh("dummy", (2, 2), mesh_dim_names=("dp", "tp"))
    tp = mesh["tp"]
    assert (tp.shape, tp.mesh_dim_names, tp.name) == ((2,), ("tp",), mesh.name)
    assert mesh["dp", "tp"] == mesh
    assert tp != mesh["dp"]
    assert tp.mesh.tolist() == [0, 1]
    with pytest.raises(ArgumentError, match=r"no dimension 'pp': mesh:\d+ \(dp: 2, tp: 2\) has 'dp', 'tp'"):
        mesh["pp"]
    with pytest.raises(ArgumentError, match="in the order of"):
        mesh["tp", "dp"]


def test_devices_are_given_by_number() -> None:
    mesh = DeviceMesh("dummy", [[3, 1]], mesh_dim_names=("a", "b"))
    assert mesh.devices == ("dummy:3", "dummy:1")
    assert mesh.shape == (1, 2)


def test_one_process_has_no_place_in_the_mesh() -> None:
    mesh = init_device_mesh("dummy", (2,))
    assert mesh.get_rank() == 0
    with pytest.raises(ArgumentError, match="one process drives all devices"):
        mesh.get_local_rank()


def test_a_mesh_is_the_same_after_pickling() -> None:
    mesh = init_device_mesh("dummy", (2, 2), mesh_dim_names=("dp", "tp"))
    assert pickle.loads(pickle.dumps(mesh["tp"])) == mesh["tp"]


@pytest.mark.parametrize(
    ("kind", "shape", "names", "text"),
    [
        ("dummy", (2, 0), None, "positive ints"),
        (["dummy:0"], (2,), None, r"needs 2 devices, got 1: dummy:0"),
        ("dummy", (2, 2), ("a",), "needs 2 different names"),
        ("dummy", (2, 2), ("a", "a"), "needs 2 different names"),
        (["dummy:0", "dummy:0"], (2,), None, "in a mesh once"),
        ("meta", (1,), None, "devices that compute"),
    ],
)
def test_what_is_no_mesh_is_refused(kind: object, shape: tuple[int, ...], names: object, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        init_device_mesh(kind, shape, mesh_dim_names=names)


def test_devices_that_are_not_there_are_named() -> None:
    with pytest.raises(
        DeviceError, match=r"a mesh of shape \(2, 4\) needs 8 devices: there is no device dummy:4"
    ):
        init_device_mesh("dummy", (2, 4))
    with pytest.raises(DeviceError, match="nothing"):
        init_device_mesh("nothing", (2,))
