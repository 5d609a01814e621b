"""Meshes of devices, and layouts: which box of a tensor each device of a mesh holds.

    mesh = Mesh("mesh:0", ("dummy:0", ..., "dummy:5"), (2, 3))        x: (8, 5)

    (Shard(0), Shard(1))        the rows in 2 blocks, each of them    [0:4, 0:2]  [0:4, 2:4]  [0:4, 4:5]
                                in 3 by columns                       [4:8, 0:2]  [4:8, 2:4]  [4:8, 4:5]
    (Replicate(), Shard(0))     both rows of devices hold all: 3, 3 and 2 rows of x in each
    (Partial(), Replicate())    x is the sum of what the two rows of devices hold

A layout has one placement per axis of the mesh. Where several of these shard one axis of a tensor, they are nested from
left to right: each parts the blocks of those before it. A shard's bounds, if given, are where its blocks end; they are
kept as they are and never computed again, as sizes that do not divide have more than one answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from weft.ir.errors import IRError
from weft.ir.index import Int
from weft.ir.ops import COMBINE, Op
from weft.ir.regions.boxes import IndexBox, Interval
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Mesh:
    """Devices in a grid, in row-major order. `name` stands for all of them as the device of a node."""

    name: str
    devices: tuple[str, ...]
    shape: tuple[int, ...]
    dim_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if math.prod(self.shape) != len(self.devices) or not self.devices:
            raise IRError(f"{self.name} has {len(self.devices)} devices in a grid of {list(self.shape)}")
        if len(set(self.devices)) != len(self.devices):
            raise IRError(f"{self.name} has a device twice: {', '.join(self.devices)}")
        names = self.dim_names
        if names is not None and (len(names) != len(self.shape) or len(set(names)) != len(names)):
            raise IRError(f"{self.name} has {len(self.shape)} axes, which {names} do not name")

    def coordinates(self, k: int) -> tuple[int, ...]:
        """The place of device number k in the grid."""
        found: list[int] = []
        for n in reversed(self.shape):
            k, here = divmod(k, n)
            found.append(here)
        return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class Replicate:
    """Each device along an axis of the mesh holds all."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Devices along an axis of the mesh hold consecutive blocks along axis `dim`.

    `bounds`: where each block ends, counted from the beginning of what is parted; None: blocks of ceil(n / devices)
    elements, of which the last are shorter or empty, as torch.chunk makes them.
    """

    dim: int
    bounds: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Partial:
    """Each device along an axis of the mesh holds a term of every element: `op` combines them (ADD, MUL, MAX, MIN)."""

    op: Op = Op.ADD


@dataclass(frozen=True, slots=True)
class Free:
    """In what a COPY asks for: along this axis of the mesh the tensor may be laid out in any way."""


Placement: TypeAlias = Replicate | Shard | Partial | Free
Layout: TypeAlias = tuple[Placement, ...]


def is_mesh(device: str | None) -> bool:
    """True for the name of a mesh."""
    return device is not None and device.startswith("mesh:")


def blocks(shard: Shard, size: int, count: int) -> list[Interval]:
    """The block of each of `count` devices of an axis with `size` elements."""
    return [block_at(shard, size, count, k) for k in range(count)]


def block_at(shard: Shard, size: int, count: int, k: int) -> Interval:
    """Block number k of `blocks`."""
    if shard.bounds is None:
        each = -(-size // count)
        return Interval(min(each * k, size), min(each * (k + 1), size))
    ends = shard.bounds
    return Interval(min(ends[k - 1], size) if k else 0, size if k == count - 1 else min(ends[k], size))


def check(layout: Layout, shape: Sequence[Int], mesh: Mesh) -> None:
    """Raise an IRError where a tensor of this shape cannot be laid out so."""
    if len(layout) != len(mesh.shape):
        raise IRError(f"{len(layout)} placements for the {len(mesh.shape)} axes of {mesh.name}")
    parted: set[int] = set()
    for p, count in zip(layout, mesh.shape, strict=True):
        match p:
            case Shard(dim, bounds):
                if not 0 <= dim < len(shape):
                    raise IRError(f"{p} of a tensor with {len(shape)} axes")
                if bounds is not None:
                    ascends = all(a <= b for a, b in zip((0, *bounds), bounds, strict=False))
                    fits = dim in parted or bounds[-1:] == (shape[dim],)  # blocks of blocks differ in size
                    if len(bounds) != count or not ascends or not fits:
                        raise IRError(f"{p} does not part {shape[dim]} elements among {count} devices")
                parted.add(dim)
            case Partial(op) if op not in COMBINE.values():
                raise IRError(f"{op} does not combine partial results")
            case _:
                pass


def boxes(layout: Layout, shape: Sequence[Int], mesh: Mesh) -> list[IndexBox]:
    """The box of each device of the mesh; of a partial result, that of which it holds a term."""
    return [box_at(layout, shape, mesh, k) for k in range(len(mesh.devices))]


def box_at(layout: Layout, shape: Sequence[Int], mesh: Mesh, number: int) -> IndexBox:
    """The box of device number `number`."""
    sides = [Interval(0, n) for n in shape]
    for p, count, k in zip(layout, mesh.shape, mesh.coordinates(number), strict=True):
        if isinstance(p, Shard):
            first, end = sides[p.dim]
            if not isinstance(first, int) or not isinstance(end, int):
                raise IRError(f"{p} of an axis whose size {end} is known only when it runs")
            block = block_at(p, end - first, count, k)
            sides[p.dim] = Interval(first + block.lo, first + block.hi)
    return tuple(sides)
