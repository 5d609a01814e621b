"""torch.distributed.fsdp: parameters, gradients and an optimizer's moments each once over the devices of a mesh.

A parameter lies along the mesh by its first dimension. A gradient is laid out as its parameter is, and so is what an
optimizer keeps for it; where the whole is needed it is gathered, and let go of.
Source: Rajbhandari et al. 2020, "ZeRO", arXiv:1910.02054.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from weft.core.args.structure import mapped
from weft.core.sharding.device_mesh import DeviceMesh
from weft.core.sharding.placements import Placement, Replicate, Shard
from weft.core.sharding.tensors import distribute_tensor
from weft.core.tensor.tensor import Tensor
from weft.distributed.tensor.modules import lay_out, on_mesh
from weft.errors import ArgumentError

__all__ = ["fully_shard"]

M = TypeVar("M")


def fully_shard(
    module: M,
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[Tensor], Shard | None] | None = None,
    **options: Any,
) -> M:
    """The module, with its parameters in blocks over the devices of a mesh of one dimension; of two: over those of the
    second, the same along the first.

    Inputs that are on no mesh are laid out by rows over all of them, so that each device computes a part of the batch.
    `shard_placement_fn(parameter)` may say another dimension. What lies along another dimension of the mesh already
    (tensor parallelism) stays so. When the whole of a parameter is kept is the planner's choice: torch's
    `reshard_after_forward` and its policies are taken and mean nothing here.
    """
    if not isinstance(mesh, DeviceMesh):
        raise ArgumentError(
            f"fully_shard: needs mesh=, as init_device_mesh makes, got {mesh!r}: without one nothing is sharded"
        )
    if mesh.ndim > 2:
        raise ArgumentError(f"fully_shard: needs a mesh of one or two dimensions, got {mesh}")
    along = mesh
    own = cast("Any", module)
    sharded: set[int] = set()

    def place(name: str, t: Tensor) -> Sequence[Placement] | None:
        if id(t) in sharded or (on_mesh(t) and getattr(t, "_fully_sharded", None) == along):
            return None
        sharded.add(id(t))
        t.__dict__["_fully_sharded"] = along
        chosen = None if shard_placement_fn is None or id(t) not in parameters else shard_placement_fn(t)
        block: Placement = Replicate() if not t.ndim or id(t) not in parameters else chosen or Shard(0)
        return [*[Replicate()] * (along.ndim - 1), block]

    parameters = {id(p) for p in own.parameters()}
    for submodule in own.modules():
        lay_out(submodule, along, place)

    def before(m: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return mapped(args, by_rows), mapped(kwargs, by_rows)

    def by_rows(t: Tensor) -> Tensor:
        if on_mesh(t):
            return t
        return distribute_tensor(t, along, [Shard(0) if t.ndim else Replicate()] * along.ndim)

    own.register_forward_pre_hook(before, with_kwargs=True)
    return module
