"""DeviceMesh: devices in a grid whose dimensions have names, driven by this one process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn, cast

import numpy as np

from weft.core.args.axes import is_int
from weft.core.args.handle import Handle
from weft.core.execute import meshes
from weft.core.execute.run import to_numpy
from weft.core.sharding.placements import described
from weft.errors import ArgumentError, DeviceError, DTypeError
from weft.ir.placement import Mesh


class DeviceMesh:
    """Devices in a grid. `mesh["tp"]` is its dimension of that name: placements on it leave the other dimensions alone.

        mesh = weft.distributed.init_device_mesh("dummy", (2, 2), mesh_dim_names=("dp", "tp"))
        weights = distribute_tensor(weights, mesh["tp"], [Shard(0)])   # over tp; the same over dp

    A program sees whole tensors and drives all devices of the mesh, so it has no rank of its own among them.
    """

    def __init__(
        self, device_type: str, mesh: Any, *, mesh_dim_names: Sequence[str] | None = None, **options: Any
    ) -> None:
        """`mesh`: the numbers of the devices of that type, in an array of any shape."""
        given: Any = to_numpy(mesh.value.node) if isinstance(mesh, Handle) else mesh
        numbers = cast("np.ndarray[Any, np.dtype[Any]]", np.asarray(given))
        if numbers.dtype.kind not in "iu" or not numbers.size:
            raise DTypeError(f"DeviceMesh: needs the numbers of devices, got {mesh!r}")
        found = made("DeviceMesh", [f"{device_type}:{k}" for k in numbers.reshape(-1).tolist()],
                     numbers.shape or (1,), mesh_dim_names)  # fmt: skip
        self._set(found, tuple(range(len(found.shape))))

    def _set(self, root: Mesh, axes: tuple[int, ...]) -> None:
        self.root, self.axes = root, axes

    @classmethod
    def of(cls, root: Mesh, axes: Sequence[int] | None = None) -> DeviceMesh:
        """A mesh, or some of its dimensions by number."""
        self = cls.__new__(cls)
        self._set(root, tuple(range(len(root.shape))) if axes is None else tuple(axes))
        return self

    @property
    def name(self) -> str:
        """The name by which the mesh is a device, such as "mesh:0"."""
        return self.root.name

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the whole mesh, in row-major order."""
        return self.root.devices

    @property
    def device_type(self) -> str:
        """The kind of the devices; "mesh" where there are several."""
        kinds = {name.partition(":")[0] for name in self.devices}
        return kinds.pop() if len(kinds) == 1 else "mesh"

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """The names of the dimensions."""
        names = self.root.dim_names
        return None if names is None else tuple([names[a] for a in self.axes])

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of devices along each dimension."""
        return tuple([self.root.shape[a] for a in self.axes])

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.axes)

    def size(self, mesh_dim: int | str | None = None) -> int:
        """The number of devices, or of those along one dimension, given by number or name."""
        if mesh_dim is None:
            return math.prod(self.shape)
        return self.root.shape[self.axis("size", mesh_dim)]

    @property
    def mesh(self) -> Any:
        """The places of the devices among those of the whole mesh, as a tensor of the mesh's shape."""
        from weft.core.layout.creation import tensor

        whole = np.arange(len(self.devices)).reshape(self.root.shape)
        return tensor(whole[tuple([slice(None) if a in self.axes else 0 for a in range(whole.ndim)])])

    def axis(self, op: str, which: int | str) -> int:
        """The number, among the axes of the whole mesh, of a dimension given by number or name."""
        if isinstance(which, str):
            names = self.mesh_dim_names or ()
            if which not in names:
                have = f"has {', '.join(map(repr, names))}" if names else "has no names: give mesh_dim_names"
                raise ArgumentError(
                    f"{op}: there is no dimension {which!r}: {described(self.root, self.axes)} {have}"
                )
            return self.axes[names.index(which)]
        if not is_int(which) or not -self.ndim <= which < self.ndim:
            raise ArgumentError(f"{op}: {which!r} is no dimension of {described(self.root, self.axes)}")
        return self.axes[which]

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        """The dimensions of these names, which keep their order in the mesh."""
        wanted = (names,) if isinstance(names, str) else tuple(names)
        axes = [self.axis("DeviceMesh", name) for name in wanted]
        if axes != sorted(set(axes)):
            raise ArgumentError(
                f"DeviceMesh: {wanted} must name dimensions once, in the order of {self.mesh_dim_names}"
            )
        return DeviceMesh.of(self.root, axes)

    def get_rank(self) -> int:
        """0: one process drives all devices."""
        return 0

    def get_local_rank(self, mesh_dim: int | str | None = None) -> NoReturn:
        """Refused: one process drives all devices, and has no place among them."""
        raise ArgumentError(
            "DeviceMesh: one process drives all devices of the mesh and has no rank among them; make the whole batch, "
            "and lay it out with distribute_tensor(batch, mesh, [Shard(0)])"
        )

    get_coordinate = get_group = get_all_groups = get_local_rank

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and (self.root, self.axes) == (other.root, other.axes)

    def __hash__(self) -> int:
        return hash((self.root, self.axes))

    def __repr__(self) -> str:
        names = self.mesh_dim_names or tuple(map(str, self.axes))
        sizes = ", ".join(f"{name}={n}" for name, n in zip(names, self.shape, strict=True))
        return f"DeviceMesh({sizes}; {', '.join(self.devices)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.devices, self.root.shape, self.root.dim_names, self.axes)


def _again(
    devices: Sequence[str], shape: Sequence[int], names: Sequence[str] | None, axes: Sequence[int]
) -> DeviceMesh:
    """A mesh that was pickled."""
    return DeviceMesh.of(meshes.make(devices, shape, names), axes)


def init_device_mesh(
    device_type: str | Sequence[str],
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Any = None,
) -> DeviceMesh:
    """Devices in a grid: the first so many of a kind ("dummy", "cuda"), or a list of devices, of any kinds.

        init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
        init_device_mesh(["cpu", "opencl:0"], (2,))

    ArgumentError where number and shape do not fit, DeviceError for a device that is not there.
    """
    shape = tuple(mesh_shape)
    if isinstance(device_type, str):
        names = [f"{device_type}:{k}" for k in range(math.prod(n for n in shape if is_int(n)))]
    else:
        names = [getattr(d, "name", d) for d in cast("Sequence[Any]", device_type)]
    return DeviceMesh.of(made("init_device_mesh", names, shape, mesh_dim_names))


def made(op: str, devices: Sequence[str], shape: Sequence[int], names: Sequence[str] | None) -> Mesh:
    """The mesh, once all is well."""
    if not shape or not all(is_int(n) and n > 0 for n in shape):
        raise ArgumentError(f"{op}: the shape of a mesh must be positive ints, got {tuple(shape)}")
    if len(devices) != math.prod(shape):
        raise ArgumentError(
            f"{op}: a mesh of shape {tuple(shape)} needs {math.prod(shape)} devices, got {len(devices)}: "
            f"{', '.join(devices)}"
        )
    if names is not None and (len(names) != len(shape) or len(set(names)) != len(names)):
        raise ArgumentError(
            f"{op}: a mesh of shape {tuple(shape)} needs {len(shape)} different names, got {tuple(names)}"
        )
    if len(set(devices)) != len(devices):
        raise ArgumentError(f"{op}: a device may be in a mesh once, got {', '.join(devices)}")
    if any(d.partition(":")[0] in ("mesh", "meta", "disk") for d in devices):
        raise ArgumentError(f"{op}: a mesh is made of devices that compute, got {', '.join(devices)}")
    try:
        return meshes.make(devices, shape, names)
    except DeviceError as error:
        raise DeviceError(
            f"{op}: a mesh of shape {tuple(shape)} needs {len(devices)} devices: {error.message}"
        ) from error


__all__ = ["DeviceMesh", "init_device_mesh"]
