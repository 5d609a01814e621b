"""Placements as users name them, by torch's names: how a tensor lies along one dimension of a mesh.

mesh of ("dp": 2, "tp": 3)     [Shard(0), Replicate()]     rows in two halves over dp, the same ones over tp
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from weft.core.args.axes import is_int
from weft.errors import ArgumentError, DTypeError
from weft.ir import placement
from weft.ir.ops import Op
from weft.ir.placement import Layout, Mesh
from weft.lazy_dataclass import dataclass


class Placement:
    """Base of placements."""

    def is_shard(self, dim: int | None = None) -> bool:
        """True for a Shard, of that dimension where one is given."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """True for Replicate."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """True for Partial, of that reduction where one is given."""
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)


@dataclass(frozen=True, slots=True)
class Shard(Placement):
    """Consecutive blocks along dimension `dim`: of `sizes`, or of ceil(n / devices) elements, as torch.chunk makes."""

    dim: int
    sizes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not is_int(self.dim):
            raise DTypeError(f"Shard: the dimension must be an int, got {self.dim!r}")
        if self.sizes is not None:
            object.__setattr__(self, "sizes", tuple(self.sizes))

    def __repr__(self) -> str:
        return (
            f"Shard(dim={self.dim})" if self.sizes is None else f"Shard(dim={self.dim}, sizes={self.sizes})"
        )


@dataclass(frozen=True, slots=True)
class Replicate(Placement):
    """All of it on each device."""


@dataclass(frozen=True, slots=True)
class Partial(Placement):
    """A term of each element on each device: what sums over several devices leave behind before they are added up."""

    reduce_op: str = "sum"


_NAMES = {Op.ADD: "sum", Op.MUL: "product", Op.MAX: "max", Op.MIN: "min"}


def layout_for(
    op: str,
    placements: Sequence[Placement],
    shape: Sequence[int],
    mesh: Mesh,
    axes: Sequence[int],
    others: Layout,
) -> Layout:
    """The layout that puts `placements` on the axes of the mesh given by number, and leaves the others as they are."""
    given: list[object] = list(placements)
    if len(given) != len(axes):
        raise ArgumentError(
            f"{op}: needs a placement for each of the {len(axes)} dimensions of {described(mesh, axes)}, got {given}"
        )
    out = list(others)
    for axis, p in zip(axes, given, strict=True):
        out[axis] = _laid(op, p, shape, mesh, axis)
    return tuple(out)


def _laid(op: str, p: object, shape: Sequence[int], mesh: Mesh, axis: int) -> placement.Placement:
    match p:
        case Replicate():
            return placement.Replicate()
        case Shard(dim, sizes):
            at = dim + len(shape) if dim < 0 else dim
            if not 0 <= at < len(shape):
                raise ArgumentError(f"{op}: {p} is out of range for a tensor of shape {tuple(shape)}")
            if sizes is None:
                return placement.Shard(at)
            if len(sizes) != mesh.shape[axis] or sum(sizes) != shape[at] or min(sizes) < 0:
                raise ArgumentError(
                    f"{op}: {p} must part the {shape[at]} elements of dimension {at} of a tensor of shape "
                    f"{tuple(shape)} among {mesh.shape[axis]} devices of {described(mesh, (axis,))}"
                )
            return placement.Shard(at, tuple(accumulate(sizes)))
        case Partial():
            raise ArgumentError(
                f"{op}: a tensor cannot be asked to be {p}: computing leaves terms behind, and adds them up where they "
                "are read; ask for Shard or Replicate"
            )
        case _:
            raise DTypeError(f"{op}: expected Shard(dim) or Replicate(), got {p!r}")


def placements_of(layout: Layout) -> tuple[Placement, ...]:
    """A layout as users read it."""
    return tuple(map(_named, layout))


def _named(p: placement.Placement) -> Placement:
    match p:
        case placement.Shard(dim, bounds):
            if bounds is None:
                return Shard(dim)
            return Shard(dim, tuple([b - a for a, b in zip((0, *bounds), bounds, strict=False)]))
        case placement.Partial(op):
            return Partial(_NAMES[op])
        case _:
            return Replicate()


def described(mesh: Mesh, axes: Sequence[int] | None = None) -> str:
    """A mesh, or some of its dimensions, in words."""
    names = mesh.dim_names or tuple(map(str, range(len(mesh.shape))))
    which = range(len(mesh.shape)) if axes is None else axes
    return f"{mesh.name} ({', '.join(f'{names[a]}: {mesh.shape[a]}' for a in which)})"
