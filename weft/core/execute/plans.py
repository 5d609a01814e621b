"""Plans that are run many times: what `compile` needs of the scheduler and the backends."""
# Tests: tests/core/compile/test_compile.py, tests/core/execute/test_files.py

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from weft.backends.resting import CellMemory, RestingStorage
from weft.backends.resting import in_place as in_place
from weft.backends.resting import place_of as place_of
from weft.errors import MemoryPlanError
from weft.ir import dtypes
from weft.ir.graph import Node

if TYPE_CHECKING:
    import numpy as np

    from weft.backends.protocol import Device, Memory
    from weft.backends.storage import Storage
    from weft.ir.placement import Layout
    from weft.scheduler.invariants import Split
    from weft.scheduler.mesh_plans import MeshPlan, SharedPlan
    from weft.scheduler.parts.plan import PartsPlan
    from weft.scheduler.plan import Plan
    from weft.scheduler.signature import Signature

R = TypeVar("R")


def open_device(name: str) -> Device:
    """The device of that full name."""
    from weft.backends.registry import open_device

    return open_device(name)


def is_bound_later(nodes: Sequence[Node]) -> bool:
    """True where the nodes depend on runtime variables."""
    from weft.scheduler.signature import signature

    return bool(signature(nodes).variables)


def in_files(nodes: Sequence[Node]) -> bool:
    """True where leaves are in files."""
    from weft.scheduler.signature import signature

    return signature(nodes).homeless


def in_pieces(nodes: Sequence[Node], files: Sequence[Node], device: str) -> bool:
    """True where the nodes have to be computed in pieces, from files larger than memory."""
    from weft.scheduler.stream import needed_for

    return needed_for(nodes, files, open_device(device))


def plan(
    nodes: Sequence[Node], device: Device, state: Mapping[int, Node], dynamic: bool
) -> tuple[Plan, Signature]:
    """The plan for the nodes, and their signature. Node k may take the memory of the leaf `state[k]`. `dynamic`: it may
    be one for all sizes."""
    from weft.scheduler.realize import plan_for
    from weft.scheduler.signature import signature

    sig = signature(nodes)
    return plan_for(sig, device, state, dynamic, stays=True), sig


def within_memory(
    sig: Signature,
    device: Device,
    state: Mapping[int, Node],
    refused: MemoryPlanError,
    start: Callable[[Plan, frozenset[int]], R],
    movable: Callable[[], tuple[Mapping[int, Storage], int]],
) -> R:
    """The result of `start` for a plan within the memory that is left, for a graph whose plan was `refused`: some
    values are computed again, or spilled, and some of the leaves `movable` rest in a slower pool between runs, which
    `start` is told. These, and the bytes that a run takes beside the plan's, are asked for once nothing is left of
    what was refused. MemoryPlanError where there is none."""
    from weft.scheduler.pools.within import State, attempted, freed
    from weft.scheduler.realize import replaced

    def beside() -> tuple[int, State]:
        found, copied = movable()
        there = [freed(device, s.nbytes) for s in found.values() if not rests(s)]
        return -copied, State(tuple(sorted(found)), sum(there))

    return attempted(sig, device, replaced(sig, state), refused, lambda f: start(f.plan, f.rests), beside)


def room_for(sizes: Sequence[int], device: Device) -> int:
    """The bytes that a pool counts for memories of these sizes."""
    from weft.scheduler.pools.within import allocated

    return sum([allocated(device, n) for n in sizes])


def rests(storage: Storage | None) -> bool:
    """True for elements that rest in a slower pool."""
    return isinstance(storage, RestingStorage) and storage.rests


def laid_to_rest(storages: Sequence[Storage]) -> list[RestingStorage]:
    """The elements in the slower pool. MemoryPlanError where that has no room."""
    from weft.scheduler.pools.slow import laid_to_rest

    try:
        return laid_to_rest(storages)
    except MemoryError as error:
        total = sum([s.nbytes for s in storages])
        raise MemoryPlanError(
            f"{len(storages)} tensors of state, {total:,} bytes, have to rest in a slower pool: {error}"
        ) from error


def bytes_at(memory: Memory, device: Device) -> memoryview:
    """The value in memory of a device, or in the cell that stands for it."""
    return memory.cell.get() if isinstance(memory, CellMemory) else device.read(memory, memory.nbytes)


def new_memory(device: Device, data: memoryview) -> Memory:
    """Bytes in new memory. MemoryPlanError where there is none."""
    try:
        memory = device.allocate(data.nbytes)
    except MemoryError as error:
        raise MemoryPlanError(
            f"{data.nbytes:,} bytes of state that others see have to be copied: {error}"
        ) from error
    device.write(memory, data)
    return memory


def new_cell(device: Device, data: memoryview) -> Memory:
    """Bytes of a device in a cell of their own in the slower pool. MemoryPlanError where that has no room."""
    from weft.scheduler.pools.slow import reserve

    try:
        (cell,) = reserve(device.info, [data.nbytes])
    except MemoryError as error:
        raise MemoryPlanError(f"{data.nbytes:,} bytes have to rest in a slower pool: {error}") from error
    cell.put(data)
    return CellMemory(cell, data.nbytes)


def over_devices(nodes: Sequence[Node]) -> tuple[PartsPlan, Signature] | None:
    """The plan of parts for nodes that need several devices, and their signature; None where leaves are in files."""
    from weft.scheduler.parts.found import parts_plan
    from weft.scheduler.signature import signature

    sig = signature(nodes)
    return None if sig.homeless else (parts_plan(sig), sig)


def over_meshes(
    nodes: Sequence[Node], layouts: Mapping[Node, Layout]
) -> tuple[MeshPlan | SharedPlan, Signature] | None:
    """The plan for nodes on meshes, whose leaves without values will lie as `layouts` say, and their signature; None
    where leaves are in files."""
    from weft.scheduler.mesh_plans import plan_for

    return plan_for(nodes, layouts)


def learn(nodes: Sequence[Node], device: Device, state: Mapping[int, Node]) -> None:
    """Have the next nodes that are like these but for their sizes get a plan for all sizes."""
    from weft.scheduler.realize import learn
    from weft.scheduler.signature import signature

    learn(signature(nodes), device, state)


def split(nodes: Sequence[Node], staying: Collection[Node], device: Device) -> Split | None:
    """The nodes in two parts: what depends on the leaves `staying` alone and is worth keeping, and the rest."""
    from weft.scheduler.invariants import split

    return split(nodes, staying, device.info)


def memory_on(leaf: Node, stored: Storage, device: Device) -> Memory:
    """The leaf's value in memory that `device` can read."""
    from weft.scheduler.realize import memory_on

    return memory_on(leaf, stored, device)


def check_unchanged(leaves: Sequence[Node]) -> None:
    """FileError where a file has changed that one of the leaves is in."""
    from weft.scheduler.realize import check_unchanged

    check_unchanged(leaves)


def memory_of(array: np.ndarray[Any, Any], device: Device) -> Memory:
    """New memory on `device` with what is in the array."""
    from weft.backends.storage import from_numpy

    return from_numpy(array, dtypes.from_numpy(array.dtype), device).memory


def turns(plan: Plan) -> int:
    """The number of runs after which a plan of its own pays, for a graph that shares one; 0 for those that do not."""
    from weft.scheduler.families import turns

    return turns(plan)


def is_slow(plan: Plan) -> bool:
    """True where a plan that is shared takes so long that one of its own pays now."""
    from weft.scheduler.families import is_slow

    return is_slow(plan)
