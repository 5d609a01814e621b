"""torch.distributed's functions of process groups, for a group of one: every collective is what it is for one.

Programs that are written for several processes run as they are, alone. More than one process is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from weft import settings
from weft.core.args.handle import Handle, describe
from weft.core.args.modes import no_grad
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError
from weft.lazy_dataclass import dataclass

__all__ = [
    "Backend", "GroupMember", "ProcessGroup", "ReduceOp", "Work", "all_gather", "all_gather_into_tensor",
    "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single", "barrier", "broadcast",
    "broadcast_object_list", "destroy_process_group", "gather", "gather_object", "get_backend",
    "get_global_rank", "get_group_rank", "get_process_group_ranks", "get_rank", "get_world_size", "group",
    "init_process_group", "irecv", "is_available", "is_backend_available", "is_gloo_available",
    "is_initialized", "is_mpi_available", "is_nccl_available", "is_torchelastic_launched", "isend",
    "monitored_barrier", "new_group", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
    "scatter_object_list", "send",
]  # fmt: skip


class ReduceOp(Enum):
    """The reduction of several processes' values to one; the value itself where there is one process."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7
    PREMUL_SUM = 8


class Backend(str):
    """The name of what carries messages, in lower case."""

    UNDEFINED = "undefined"
    GLOO = "gloo"
    NCCL = "nccl"
    MPI = "mpi"

    def __new__(cls, name: str) -> Backend:
        return super().__new__(cls, name.lower())


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The group of this one process."""

    backend: str = Backend.GLOO

    def rank(self) -> int:
        """0"""
        return 0

    def size(self) -> int:
        """1"""
        return 1

    def name(self) -> str:
        """The name of the backend that was asked for."""
        return self.backend


class Work:
    """A collective that is over: what async_op=True gives."""

    def wait(self, timeout: Any = None) -> bool:
        """True at once."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True

    is_success = is_completed


class GroupMember:
    """torch's names for the group of all processes, and for none."""

    WORLD: ProcessGroup | None = None
    NON_GROUP_MEMBER = -100


group = GroupMember
_NAMES = ("gloo", "nccl", "mpi", "ucc", "xccl", "undefined", "fake")


def is_available() -> bool:
    """True: there is a group of one process."""
    return True


def is_initialized() -> bool:
    """True where init_process_group was called."""
    return GroupMember.WORLD is not None


def is_gloo_available() -> bool:
    """True: what programs ask for on a CPU is taken."""
    return True


def is_nccl_available() -> bool:
    """False: there are no messages between GPUs."""
    return False


is_mpi_available = is_ucc_available = is_xccl_available = is_nccl_available


def is_backend_available(backend: str) -> bool:
    """True where a backend of this name is there."""
    return backend.lower() == Backend.GLOO


def is_torchelastic_launched() -> bool:
    """True where a launcher of several processes started this one."""
    return settings.launched_by_torchrun()


def _world(op: str, given: ProcessGroup | None = None) -> ProcessGroup:
    if GroupMember.WORLD is None:
        raise ArgumentError(
            f"{op}: Default process group has not been initialized, please make sure to call init_process_group."
        )
    return GroupMember.WORLD if given is None else given


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Any = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
) -> None:
    """Make the group of this one process. Sizes and ranks that are not given are those of the environment
    (WORLD_SIZE, RANK). ArgumentError for more than one process: weft runs in one."""
    if GroupMember.WORLD is not None:
        raise ArgumentError("init_process_group: trying to initialize the default process group twice!")
    size = world_size if world_size >= 0 else settings.world_size()
    place = rank if rank >= 0 else settings.rank()
    names = [part.rpartition(":")[2] for part in (backend or Backend.GLOO).lower().split(",")]
    if any(name not in _NAMES for name in names):
        raise ArgumentError(
            f"init_process_group: backend must be one of {', '.join(_NAMES)}, got {backend!r}"
        )
    if size != 1 or place != 0:
        raise ArgumentError(
            f"init_process_group: weft runs in one process, not as rank {place} of {size}; start the program without a "
            "launcher, or with one process"
        )
    GroupMember.WORLD = ProcessGroup(Backend(names[0]))


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Undo init_process_group."""
    if group is None or group is _world("destroy_process_group"):
        _world("destroy_process_group")
        GroupMember.WORLD = None


def get_rank(group: ProcessGroup | None = None) -> int:
    """0: there is one process."""
    return 0


def get_world_size(group: ProcessGroup | None = None) -> int:
    """1: there is one process."""
    return 1


def get_backend(group: ProcessGroup | None = None) -> Backend:
    """The backend that init_process_group was given."""
    return Backend(_world("get_backend", group).backend)


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """0"""
    return 0


def get_process_group_ranks(group: ProcessGroup | None = None) -> list[int]:
    """[0]"""
    _world("get_process_group_ranks", group)
    return [0]


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """The rank among all processes of a rank in a group."""
    return _only("get_global_rank", group_rank)


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """The rank in a group of a rank among all processes."""
    return _only("get_group_rank", global_rank)


def new_group(
    ranks: Sequence[int] | None = None, timeout: Any = None, backend: str | None = None, **options: Any
) -> ProcessGroup:
    """A group of ranks: of this one."""
    world = _world("new_group")
    for rank in [0] if ranks is None else ranks:
        _only("new_group", rank)
    return ProcessGroup(world.backend if backend is None else Backend(backend))


def _only(op: str, rank: int | None) -> int:
    """A rank, which has to be 0."""
    if rank not in (None, 0):
        raise ArgumentError(f"{op}: rank {rank} is not in the group, which has 1 process")
    return 0


def _one(op: str, items: Sequence[Any]) -> Any:
    """The entry of a list of one for each process."""
    if len(items) != 1:
        raise ArgumentError(f"{op}: needs a list of 1 entry, one for each process, got {len(items)}")
    return items[0]


def _done(async_op: bool) -> Work | None:
    return Work() if async_op else None


def _check(op: str, tensor: Any, group: ProcessGroup | None) -> None:
    _world(op, group)
    if not isinstance(tensor, Handle):
        raise DTypeError(f"{op}: expected a Tensor, got {describe(tensor)}")


def _into(op: str, output: Tensor, input: Tensor, group: ProcessGroup | None) -> None:
    _check(op, output, group)
    _check(op, input, group)
    with no_grad():
        output.copy_(input.detach().reshape(output.shape))


def all_reduce(
    tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """The tensor combined with those of all processes: as it is."""
    _check("all_reduce", tensor, group)
    return _done(async_op)


def reduce(
    tensor: Tensor, dst: int | None = None, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None,
    async_op: bool = False, group_dst: int | None = None,
) -> Work | None:  # fmt: skip
    """The tensor combined with those of all processes, in process dst: as it is."""
    _check("reduce", tensor, group)
    _only("reduce", dst if group_dst is None else group_dst)
    return _done(async_op)


def broadcast(
    tensor: Tensor, src: int | None = None, group: ProcessGroup | None = None, async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:  # fmt: skip
    """The tensor of process src in all: as it is."""
    _check("broadcast", tensor, group)
    _only("broadcast", src if group_src is None else group_src)
    return _done(async_op)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """The tensors of all processes, in the list's."""
    _into("all_gather", _one("all_gather", tensor_list), tensor, group)
    return _done(async_op)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """The tensors of all processes, in one."""
    _into("all_gather_into_tensor", output_tensor, input_tensor, group)
    return _done(async_op)


def gather(
    tensor: Tensor, gather_list: list[Tensor] | None = None, dst: int | None = None,
    group: ProcessGroup | None = None, async_op: bool = False, group_dst: int | None = None,
) -> Work | None:  # fmt: skip
    """The tensors of all processes, in the list's of process dst."""
    _only("gather", dst if group_dst is None else group_dst)
    _into("gather", _one("gather", gather_list or []), tensor, group)
    return _done(async_op)


def scatter(
    tensor: Tensor, scatter_list: list[Tensor] | None = None, src: int | None = None,
    group: ProcessGroup | None = None, async_op: bool = False, group_src: int | None = None,
) -> Work | None:  # fmt: skip
    """A tensor for each process from the list of process src."""
    _only("scatter", src if group_src is None else group_src)
    _into("scatter", tensor, _one("scatter", scatter_list or []), group)
    return _done(async_op)


def reduce_scatter(
    output: Tensor, input_list: list[Tensor], op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """A tensor for each process, combined from the lists of all."""
    _into("reduce_scatter", output, _one("reduce_scatter", input_list), group)
    return _done(async_op)


def reduce_scatter_tensor(
    output: Tensor, input: Tensor, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """A part for each process, combined from the tensors of all."""
    _into("reduce_scatter_tensor", output, input, group)
    return _done(async_op)


def all_to_all(
    output_tensor_list: list[Tensor], input_tensor_list: list[Tensor], group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """A tensor from each process to each."""
    output, given = _one("all_to_all", output_tensor_list), _one("all_to_all", input_tensor_list)
    _into("all_to_all", output, given, group)
    return _done(async_op)


def all_to_all_single(
    output: Tensor, input: Tensor, output_split_sizes: Any = None, input_split_sizes: Any = None,
    group: ProcessGroup | None = None, async_op: bool = False,
) -> Work | None:  # fmt: skip
    """A part from each process to each."""
    _into("all_to_all_single", output, input, group)
    return _done(async_op)


def all_gather_object(object_list: list[Any], obj: Any, group: ProcessGroup | None = None) -> None:
    """The objects of all processes, in the list."""
    _world("all_gather_object", group)
    _one("all_gather_object", object_list)
    object_list[0] = obj


def gather_object(
    obj: Any, object_gather_list: list[Any] | None = None, dst: int | None = None,
    group: ProcessGroup | None = None, group_dst: int | None = None,
) -> None:  # fmt: skip
    """The objects of all processes, in the list of process dst."""
    _only("gather_object", dst if group_dst is None else group_dst)
    all_gather_object([None] if object_gather_list is None else object_gather_list, obj, group)


def broadcast_object_list(
    object_list: list[Any], src: int | None = None, group: ProcessGroup | None = None, device: Any = None,
    group_src: int | None = None,
) -> None:  # fmt: skip
    """The objects of process src in all: as they are."""
    _world("broadcast_object_list", group)
    _only("broadcast_object_list", src if group_src is None else group_src)


def scatter_object_list(
    scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None = None,
    src: int | None = None, group: ProcessGroup | None = None, group_src: int | None = None,
) -> None:  # fmt: skip
    """An object for each process from the list of process src."""
    _world("scatter_object_list", group)
    _only("scatter_object_list", src if group_src is None else group_src)
    scatter_object_output_list[0] = _one("scatter_object_list", scatter_object_input_list or [])


def barrier(group: ProcessGroup | None = None, async_op: bool = False, device_ids: Any = None) -> Work | None:
    """Wait for all processes: for none."""
    _world("barrier", group)
    return _done(async_op)


def monitored_barrier(
    group: ProcessGroup | None = None, timeout: Any = None, wait_all_ranks: bool = False
) -> None:
    """Wait for all processes: for none."""
    _world("monitored_barrier", group)


def send(tensor: Tensor, dst: int | None = None, group: ProcessGroup | None = None, tag: int = 0) -> None:
    """Refused: there is no other process."""
    raise ArgumentError(
        "send: destination rank should not be the same as the rank of the current process, and there is no other"
    )


def recv(tensor: Tensor, src: int | None = None, group: ProcessGroup | None = None, tag: int = 0) -> int:
    """Refused: there is no other process."""
    raise ArgumentError("recv: there is no other process to receive from")


isend, irecv = send, recv
