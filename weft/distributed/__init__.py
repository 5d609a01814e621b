"""torch.distributed: meshes of devices that this process drives, and process groups of this one process.

    mesh = weft.distributed.init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))

Tensors are laid out on meshes by `weft.distributed.tensor` and `weft.distributed.fsdp`. Programs that are written for
several processes run as they are, alone; more than one process is refused.
"""

from weft.core.sharding.device_mesh import DeviceMesh, init_device_mesh
from weft.distributed.processes import (
    Backend,
    GroupMember,
    ProcessGroup,
    ReduceOp,
    Work,
    all_gather,
    all_gather_into_tensor,
    all_gather_object,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    broadcast_object_list,
    destroy_process_group,
    gather,
    gather_object,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    init_process_group,
    irecv,
    is_available,
    is_backend_available,
    is_gloo_available,
    is_initialized,
    is_mpi_available,
    is_nccl_available,
    is_torchelastic_launched,
    isend,
    monitored_barrier,
    new_group,
    recv,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
    scatter_object_list,
    send,
)
from weft.distributed.processes import (
    get_node_local_rank as get_node_local_rank,
)
from weft.distributed.processes import (
    is_ucc_available as is_ucc_available,
)
from weft.distributed.processes import (
    is_xccl_available as is_xccl_available,
)

__all__ = [
    "Backend", "DeviceMesh", "GroupMember", "ProcessGroup", "ReduceOp", "Work", "all_gather",
    "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single",
    "barrier", "broadcast", "broadcast_object_list", "destroy_process_group", "gather", "gather_object",
    "get_backend", "get_global_rank", "get_group_rank", "get_process_group_ranks", "get_rank",
    "get_world_size", "group", "init_device_mesh", "init_process_group", "irecv", "is_available",
    "is_backend_available", "is_gloo_available", "is_initialized", "is_mpi_available", "is_nccl_available",
    "is_torchelastic_launched", "isend", "monitored_barrier", "new_group", "recv", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send",
]  # fmt: skip
