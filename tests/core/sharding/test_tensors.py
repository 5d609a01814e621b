"""Tensors on meshes: laid out, asked for parts and the whole, computed with."""

from __future__ import annotations

import io

import numpy as np
import pytest

import weft
from weft.distributed import DeviceMesh, init_device_mesh
from weft.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from weft.errors import ArgumentError, DeviceError

A = np.arange(30, dtype=np.float32).reshape(5, 6) / 7


@pytest.fixture
def grid() -> DeviceMesh:
    return init_device_mesh("dummy", (2, 2), mesh_dim_names=("dp", "tp"))


@pytest.fixture
def line() -> DeviceMesh:
    return init_device_mesh("dummy", (3,), mesh_dim_names=("x",))


def on(mesh: DeviceMesh, *placements: object, data: np.ndarray = A) -> weft.Tensor:
    return distribute_tensor(weft.tensor(data), mesh, placements)


def test_a_laid_out_tensor_says_where_it_is(grid: DeviceMesh) -> None:
    x = on(grid, Shard(0), Shard(-1))
    assert x.placements == (Shard(0), Shard(1))
    assert x.device_mesh == grid
    assert (x.device, x.shape, x.dtype) == (grid.name, (5, 6), weft.float32)
    assert isinstance(x, DTensor)
    assert not isinstance(weft.tensor(A), DTensor)
    assert np.array_equal(x.numpy(), A)
    assert x.tolist() == A.tolist()
    assert x[1, 2].item() == A[1, 2]
    assert f"device='{grid.name}'" in repr(x)


@pytest.mark.parametrize(
    "placement", [Shard(0), Shard(1), Replicate(), Shard(0, (0, 4, 1)), Shard(1, (1, 2, 3))]
)
def test_each_device_has_its_part(line: DeviceMesh, placement: object) -> None:
    x = on(line, placement)
    parts = x.to_local()
    assert [p.device for p in parts] == list(line.devices)
    if isinstance(placement, Shard):
        assert np.array_equal(np.concatenate([p.numpy() for p in parts], placement.dim), A)
        sizes = [p.shape[placement.dim] for p in parts]
        assert sizes == list(placement.sizes or [2] * 3)[: len(sizes)] or sizes == [2, 2, 1]
    else:
        assert all(np.array_equal(p.numpy(), A) for p in parts)
    assert np.array_equal(x.to_local("dummy:1").numpy(), parts[1].numpy())
    assert np.array_equal(x.to_local(2).numpy(), parts[2].numpy())
    with pytest.raises(ArgumentError, match=r"'cpu' is not in mesh:\d+ \(x: 3\): dummy:0, dummy:1, dummy:2"):
        x.to_local("cpu")


def test_parts_are_put_together_again(line: DeviceMesh) -> None:
    parts = [weft.tensor(A[:1]), weft.tensor(A[1:4]), weft.tensor(A[4:])]
    x = DTensor.from_local(parts, line, [Shard(0, (1, 3, 1))])
    assert np.array_equal(x.numpy(), A)
    assert x.placements == (Shard(0, (1, 3, 1)),)
    with pytest.raises(ArgumentError, match=r"dummy:1 holds \(2, 6\), got \(3, 6\)|holds"):
        DTensor.from_local(parts, line, [Shard(0)])
    with pytest.raises(ArgumentError, match="needs 3 tensors, one for each device"):
        DTensor.from_local(parts[:2], line, [Shard(0)])


def test_gradients_of_a_part_are_those_of_its_elements(line: DeviceMesh) -> None:
    x = on(line, Shard(0)).requires_grad_()
    (x.to_local(1) * 3).sum().backward()
    assert np.array_equal(x.grad.numpy(), np.where(np.arange(5)[:, None] // 2 == 1, 3, 0) * np.ones((5, 6)))


def test_tensors_are_laid_out_anew(grid: DeviceMesh) -> None:
    x = on(grid, Shard(0), Replicate())
    y = x.redistribute(placements=[Replicate(), Shard(1)])
    assert y.placements == (Replicate(), Shard(1))
    z = distribute_tensor(y, grid["dp"], [Shard(0)])  # the other dimension stays
    assert z.placements == (Shard(0), Shard(1))
    assert all(np.array_equal(t.numpy(), A) for t in (x, y, z))


def test_the_whole_is_an_ordinary_tensor(grid: DeviceMesh) -> None:
    whole = (on(grid, Shard(1), Shard(0)) * 2).full_tensor()
    assert whole.device == "cpu:0"
    assert np.array_equal((whole + weft.tensor(A)).numpy(), A * 2 + A)


def test_wishes_are_kept_anywhere_in_a_computation(grid: DeviceMesh) -> None:
    x = on(grid, Replicate(), Replicate())
    y = weft.shard(x * 2, "dp", "tp")
    z = weft.shard(y + 1, ("dp", "tp"))
    assert y.placements == (Shard(0), Shard(1))
    assert z.placements == (Shard(0), Shard(0))
    assert np.array_equal(z.numpy(), A * 2 + 1)
    assert weft.shard(weft.tensor(A), None, "tp", mesh=grid).placements == (Replicate(), Shard(1))


def test_wishes_that_conflict_name_both_sides(grid: DeviceMesh) -> None:
    x = on(grid, Replicate(), Replicate())
    with pytest.raises(
        ArgumentError, match=r"dimensions 0 and 1 .* cannot both lie along mesh:\d+ \(dp: 2\)"
    ):
        weft.shard(x, "dp", "dp")
    with pytest.raises(ArgumentError, match="3 dimensions are named, but the tensor has shape"):
        weft.shard(x, None, None, "dp")
    with pytest.raises(ArgumentError, match="must be in the order of"):
        weft.shard(x, ("tp", "dp"))
    with pytest.raises(ArgumentError, match=r"no dimension 'pp': .* has 'dp', 'tp'"):
        weft.shard(x, "pp")
    with pytest.raises(ArgumentError, match="the tensor is on cpu:0, on no mesh"):
        weft.shard(weft.tensor(A), "dp")


def test_gradients_flow_through_layouts(grid: DeviceMesh) -> None:
    plain = weft.tensor(A, requires_grad=True)
    x = distribute_tensor(plain * 2, grid, [Shard(0), Replicate()])
    y = weft.shard(x * x, None, "tp")
    y.full_tensor().sum().backward()
    assert plain.grad.device == "cpu:0"
    assert np.allclose(plain.grad.numpy(), 8 * A)


def test_a_gradient_lies_as_its_tensor_does(grid: DeviceMesh) -> None:
    w = distribute_tensor(weft.tensor(A, requires_grad=True), grid["tp"], [Shard(0)])
    assert w.is_leaf and w.requires_grad
    (on(grid, Shard(0), Replicate()) * w).sum().backward()
    assert w.grad.placements == w.placements == (Replicate(), Shard(0))
    assert np.allclose(w.grad.numpy(), A)


def test_what_is_changed_in_place_stays_where_it_is(grid: DeviceMesh) -> None:
    x = on(grid, Shard(0), Shard(1))
    x += 1
    x[2] = 0
    x.mul_(on(grid, Replicate(), Replicate()))
    expected = A + 1
    expected[2] = 0
    assert x.placements == (Shard(0), Shard(1))
    assert np.allclose(x.numpy(), expected * A)
    x.copy_(weft.tensor(A))
    assert x.placements == (Shard(0), Shard(1))
    assert np.array_equal(x.numpy(), A)


def test_a_parameter_stays_a_leaf_and_gradients_pass_through_what_takes_its_values(grid: DeviceMesh) -> None:
    w = on(grid, Shard(0), Shard(1)).requires_grad_()
    with weft.no_grad():
        w.copy_(on(grid, Replicate(), Shard(0)))
    assert w.is_leaf and w.requires_grad and w.placements == (Shard(0), Shard(1))
    x = on(grid, Replicate(), Shard(0))
    x.copy_(w)
    assert not x.is_leaf and x.placements == (Replicate(), Shard(0))
    (x * 2).sum().backward()
    assert w.grad.full_tensor().tolist() == np.full(A.shape, 2.0).tolist()


def test_ordinary_tensors_meet_those_on_a_mesh_without_dimensions_only(line: DeviceMesh) -> None:
    x = on(line, Shard(0))
    scale = weft.tensor(3.0, requires_grad=True)
    (x * scale).sum().backward()
    assert np.isclose(scale.grad.item(), A.sum())
    assert np.allclose(weft.where(x > 1, x, weft.tensor(0.0)).numpy(), np.where(A > 1, A, 0))
    with pytest.raises(
        DeviceError, match=r"add: tensors are on mesh:\d+ and cpu:0; .*distribute_tensor.*full_tensor"
    ):
        x + weft.tensor(A)
    with pytest.raises(DeviceError, match="matmul: tensors are on cpu:0 and mesh"):
        weft.tensor(A.T) @ x


def test_tensors_on_different_meshes_do_not_meet(line: DeviceMesh, grid: DeviceMesh) -> None:
    x, y = on(line, Shard(0)), on(grid, Shard(0), Replicate())
    with pytest.raises(DeviceError, match="tensors are on"):
        x + y
    with pytest.raises(
        ArgumentError, match=r"on mesh:\d+ \(x: 3\), the layout is for mesh:\d+ \(dp: 2, tp: 2\)"
    ):
        distribute_tensor(x, grid, [Shard(0), Replicate()])
    assert np.array_equal(x.to(grid.name).numpy(), A)


def test_a_tensor_elsewhere_has_no_placements() -> None:
    with pytest.raises(ArgumentError, match="placements: the tensor is on cpu:0, on no mesh"):
        _ = weft.tensor(A).placements
    with pytest.raises(ArgumentError, match="full_tensor"):
        weft.tensor(A).full_tensor()


def test_partial_layouts_are_not_for_the_asking(line: DeviceMesh) -> None:
    with pytest.raises(ArgumentError, match="cannot be asked to be Partial"):
        on(line, Replicate()).redistribute(placements=[Partial()])


def test_a_mesh_is_a_device_for_new_tensors(line: DeviceMesh) -> None:
    x = weft.ones(4, 2, device=line.name)
    assert x.placements == (Replicate(),)
    with weft.device(line.name):
        y = weft.arange(3)
    assert y.device == line.name
    assert weft.tensor([1, 2]).to(line).tolist() == [1, 2]
    assert weft.zeros_like(on(line, Shard(0))).tolist() == [[0.0] * 6] * 5


def test_random_numbers_are_the_same_wherever_they_are_drawn(line: DeviceMesh) -> None:
    def drawn(x: weft.Tensor) -> np.ndarray:
        weft.manual_seed(3)
        dropped = weft.nn.functional.dropout(x, 0.5)
        return np.concatenate([dropped.numpy(), weft.rand_like(x).numpy()])

    expected = drawn(weft.tensor(A))
    assert np.array_equal(drawn(on(line, Shard(0))), expected)
    assert np.array_equal(drawn(on(line, Shard(1))), expected)


def test_saved_tensors_are_whole(line: DeviceMesh) -> None:
    file = io.BytesIO()
    weft.save({"x": on(line, Shard(0))}, file)
    file.seek(0)
    assert np.array_equal(weft.load(file, map_location="cpu")["x"].numpy(), A)


def test_a_compiled_function_takes_tensors_on_a_mesh(line: DeviceMesh) -> None:
    @weft.compile
    def f(x: weft.Tensor, w: weft.Tensor) -> weft.Tensor:
        w += 1
        return (x @ w.T).relu()

    for placement in (Shard(0), Shard(1), Shard(0)):
        w = on(line, placement)
        y = f(on(line, Shard(0)), w)
        assert np.allclose(y.numpy(), A @ (A + 1).T, rtol=1e-5)
        assert w.placements == (placement,)


def test_sizes_need_not_divide_and_may_be_less_than_the_devices(grid: DeviceMesh) -> None:
    x = on(grid, Shard(0), Shard(0), data=A[:1])
    assert [p.shape[0] for p in x.to_local()] == [1, 0, 0, 0]
    assert np.allclose((x.T @ x).numpy(), A[:1].T @ A[:1])
    assert np.allclose((x + 1).sum(0).numpy(), A[0] + 1)


def test_vmap_keeps_wishes(line: DeviceMesh) -> None:
    x = on(line, Shard(0))
    y = weft.vmap(lambda row: weft.shard(row * 2, "x"))(x)
    assert y.placements == (Shard(1),)
    assert np.array_equal(y.numpy(), A * 2)
