"""Values are computed, data goes in and out, devices are chosen: through the scheduler and the backends."""
# Tests: tests/core/execute/test_changes.py

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.autograd import passed
from weft.autograd.context import configured_device, context, set_default
from weft.core.args.handle import describe, recent_tensors
from weft.core.execute import changes, tracing
from weft.errors import DTypeError
from weft.ir import dtypes, graph
from weft.ir.dtypes import DType
from weft.ir.graph import Node, Shape
from weft.ir.ops import Op
from weft.ir.placement import is_mesh

if TYPE_CHECKING:
    import numpy as np

    from weft.autograd.value import Value
    from weft.backends.deferred import HostBytes
    from weft.backends.protocol import Device
    from weft.backends.storage import Storage
    from weft.ir.index import Var
    from weft.ir.template import GraphTemplate
    from weft.scheduler.signature import Held
    from weft.scheduler.sized import Blocks, SizedTemplate
    from weft.scheduler.spent import Spent

    Array: TypeAlias = np.ndarray[Any, Any]


def realize(
    nodes: Sequence[Node],
    held: Held | None = None,
    along: Sequence[Node] = (),
    spent: Spent | None = None,
) -> Mapping[Node, Storage]:
    """Compute the nodes: afterwards each has storage, but for constants, whose values are returned: their nodes are the
    whole process's, and keep none. Those that `held` gives of the nodes on the way are kept too, where that takes
    little memory. With them, in the same plan, the nodes of `along` are computed if that is possible. They may be
    computed over leaves that are `spent`."""
    pending = [n for n in nodes if n.storage is None]
    now = context()
    if now.trace is not None or now.watch is not None:
        pending = tracing.computable(pending)
    if not pending:
        return _NOTHING
    if along:
        constants = computed([*pending, *along], held, spent)
        if constants is not None:
            return constants
    try:
        constants = _scheduler()(pending, None, held, spent)
    except BaseException as error:
        changes.failed(pending, error)
        raise
    changed = changes.mine.changed
    if changed and len(changed) != changes.mine.left:
        changes.settle()
    return constants


_NOTHING: Mapping[Node, Storage] = {}


def computed(
    nodes: Sequence[Node], held: Held | None = None, spent: Spent | None = None
) -> Mapping[Node, Storage] | None:
    """As `realize`, for nodes some of which nobody asked for; None where they cannot be computed, which is no news: who
    asks for them is told."""
    try:
        constants = _scheduler()(nodes, None, held, spent)
    except (RuntimeError, MemoryError, OSError, ValueError):
        return None
    if len(changes.mine.changed) != changes.mine.left:
        changes.settle()
    return constants


@cache
def _scheduler() -> Callable[..., Mapping[Node, Storage]]:
    """The function that computes nodes. Imported when first needed, and not looked up each time; no finalizer
    that computes runs while the modules are half there."""
    from weft.ir.garbage import not_collected

    with not_collected():
        from weft.scheduler.realize import realize

    return realize


def stored(node: Node) -> Storage:
    """The value of a node, computed if need be. Leaves a trace; ArgumentError where there is no value to come."""
    storage = node.storage
    if storage is None:
        constants = realize([node])
        storage = node.storage or constants.get(node)
    if storage is None:
        tracing.need_value(node)
        constants = realize([node])
        storage = node.storage or constants.get(node)
    return storage  # pyright: ignore[reportReturnType]  # what has no value was refused


def value_of(node: Node) -> Storage:
    """As `stored`, without the node's keeping what is computed for this."""
    if node.storage is not None or tracing.current() is not None:
        return stored(node)
    if is_mesh(node.device) or any(n.op is Op.COPY and n.storage is None for n in graph.toposort([node])):
        return stored(node)
    from weft.scheduler.realize import evaluate

    return evaluate([node], {})[0]


def to_numpy(node: Node) -> Array:
    """The value of a node, computed if need be; read-only where it is the device's own memory."""
    return stored(node).numpy()


def fit_together(nodes: Sequence[Node]) -> bool:
    """True where there is ample memory for what is not computed yet of these nodes, on each device."""
    from weft.backends.registry import available_bytes, open_device
    from weft.ir.graph import elements
    from weft.ir.index import high

    wanted: dict[str, int] = {}
    for n in nodes:
        if n.storage is None:
            name = n.device or configured_device()
            wanted[name] = wanted.get(name, 0) + high(elements(n.shape)) * n.dtype.itemsize
    return all(nbytes <= available_bytes(open_device(name)) // 4 for name, nbytes in wanted.items())


def is_little(node: Node) -> bool:
    """True where a node's value takes no more memory than a piece: an eighth of what its device has left."""
    from weft.backends.registry import available_bytes, open_device
    from weft.ir.graph import elements
    from weft.ir.index import high

    nbytes = high(elements(node.shape)) * node.dtype.itemsize
    return nbytes <= available_bytes(open_device(node.device or configured_device())) // 8


def written_in_pieces(node: Node, sink: Callable[[memoryview], object]) -> bool:
    """Give the bytes of a value that is too large for memory to `sink`, piece by piece. False, with nothing done, for
    one that is computed at once."""
    if node.storage is not None or (tracing.current() is not None and tracing.is_traced(node)):
        return False
    from weft.backends.registry import open_device
    from weft.scheduler import stream

    return stream.write(node, open_device(node.device or configured_device()), sink)


def realize_value(value: Value, constants: Mapping[Node, Storage] = _NOTHING) -> None:
    """Compute what `value` stands for, unless that is among `constants`, what `realize` gave. Without a history, it
    lets go of what it was computed from. A constant is a leaf with memory of its own from here on."""
    node = value.node
    storage = node.storage
    if storage is None:
        storage = constants.get(node)
        if storage is None:
            storage = realize([node]).get(node) or node.storage
    if storage is None or node.op is _BUFFER:
        return
    if (node.storage is None or not passed.has_history(value)) and value.node is node:
        value.node = graph.in_memory(node, storage)


_BUFFER = Op.BUFFER

PINNED_BYTES = 1 << 28
"""The bytes of new leaves after which what they are read for is computed: until then it keeps them in memory."""


def from_numpy(array: Array, device: str) -> Node:
    """A leaf with a copy of `array` in the memory of `device`. The dtype must be one of weft's."""
    from weft.backends.registry import open_device
    from weft.backends.storage import from_numpy as store

    dtype = dtypes.from_numpy(array.dtype)
    if device == META:
        return valueless(tuple(array.shape), dtype)
    recent_tensors.pinned += array.nbytes
    if recent_tensors.pinned > PINNED_BYTES:
        recent_tensors.pinned, recent_tensors.reads_much = 0, True
        recent_tensors.look()
    return graph.buffer(tuple(array.shape), dtype, device, store(array, dtype, open_device(device)))


def deferred(
    shape: tuple[int, ...], dtype: DType, device: str, source: HostBytes | Callable[[], memoryview]
) -> Node:
    """A leaf whose bytes are those of `source`, or what it returns, when they are first used: the device borrows them,
    or gets a copy."""
    from weft.backends.deferred import DeferredStorage, HostBytes
    from weft.backends.registry import open_device

    given = source if isinstance(source, HostBytes) else HostBytes(source)
    storage = DeferredStorage(open_device(device), dtype, shape, given)
    return graph.buffer(shape, dtype, device, storage)


def host_array(node: Node) -> Array | None:
    """The value of a node if it is there already and in memory that the host can read; None otherwise."""
    storage = node.storage
    if storage is None or not storage.device.info.host_memory:
        return None
    return storage.numpy()


def named_device(x: object) -> str | None:
    """The name that a name, or a `weft.device`, stands for; None for anything else."""
    name = x if isinstance(x, str) else None if isinstance(x, DType | PathLike) else getattr(x, "name", None)
    return name if isinstance(name, str) else None


def device_name(device: object) -> str:
    """The full name of a device ("cpu" is "cpu:0"), given by name or as a `weft.device`. DeviceError when it is
    malformed or there is no such device."""
    name = named_device(device)
    if name is None:
        raise DTypeError(f"expected the name of a device, such as 'cpu' or 'cuda:1', got {describe(device)}")
    from weft.backends.registry import canonical, open_device

    full = canonical(name)
    if full != META:
        open_device(full)
    return full


META = "meta:0"
"""The device of tensors that have a shape and a dtype, but no values."""


def valueless(shape: Shape, dtype: DType) -> Node:
    """A leaf on the device "meta"."""
    return graph.buffer(shape, dtype, META, None)


def named_only(device: str) -> str:
    """The full name of a device that need not be there. DeviceError for one that is malformed, or of no known kind."""
    from weft.backends.registry import NAMES, canonical, open_device

    full = canonical(device)
    if full.partition(":")[0] not in NAMES:
        open_device(full)
    return full


def set_default_device(name: str | None) -> None:
    """New tensors are made on this device where no context says otherwise, on the configured one for None: in this
    thread; from the main thread, in all that set none of their own."""
    set_default("device", "" if name is None else device_name(name))


def synchronize() -> None:
    """Wait until everything that was started on any open device is done."""
    for device in _opened_devices()():
        device.synchronize()


@cache
def _opened_devices() -> Callable[[], Sequence[Device]]:
    """As `_scheduler`: not imported before it is needed, and not looked up each time."""
    from weft.backends.registry import opened_devices

    return opened_devices


def memory_limit(name: str) -> int | None:
    """The number of bytes that may be in use on a device, if somebody has said so."""
    from weft.backends import registry

    return registry.limit_set(registry.open_device(name))


def set_memory_limit(name: str, nbytes: int | None) -> None:
    """Set how many bytes may be in use on a device; None for what it has."""
    from weft.backends import registry

    registry.set_memory_limit(name, nbytes)


def set_num_threads(n: int) -> None:
    """Set the number of threads that the CPU backend uses from now on."""
    from weft.backends.cpu.device import CpuDevice
    from weft.backends.registry import open_device

    device = open_device("cpu:0")
    assert isinstance(device, CpuDevice)
    device.runtime.set_threads(n)


def get_num_threads() -> int:
    """The number of threads that the CPU backend uses."""
    from weft.backends.cpu.device import CpuDevice
    from weft.backends.registry import open_device

    device = open_device("cpu:0")
    assert isinstance(device, CpuDevice)
    return device.runtime.pool.threads


def learned_template(
    templates: Sequence[GraphTemplate],
    variables: Sequence[tuple[tuple[int, ...], Var]],
    halves: bool,
    blocks: Blocks | None = None,
) -> SizedTemplate | None:
    """The template of which these are those for the values of the variables; None where there is none."""
    from weft.scheduler.sized import learned

    return learned(templates, variables, halves, blocks)


def blocks_in(templates: Sequence[GraphTemplate], columns: Sequence[tuple[int, ...]]) -> list[Blocks]:
    """Blocks that an axis is filled up to in all of these templates."""
    from weft.scheduler.sized import blocks_in

    return blocks_in(templates, columns)
