"""The devices there are, the one that new tensors are made on, and the number of threads of the CPU."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Self

from weft.autograd.context import change, context, default_device, enter
from weft.core.args.axes import is_int
from weft.core.args.contexts import DecoratingContext
from weft.core.args.handle import describe
from weft.core.execute import run
from weft.errors import ArgumentError, DTypeError
from weft.naming import is_own

if TYPE_CHECKING:
    from weft.backends.protocol import DeviceInfo
    from weft.backends.registry import DeviceStatus


class device(str, DecoratingContext):  # noqa: N801  (torch's name)
    """A device by its name: a string such as "cuda:0", with its parts. It need not be there until it is used.

        device = weft.device("cuda" if weft.cuda.is_available() else "cpu")
        with weft.device("dummy", 1):  # new tensors are made on that device
            ...

    It prints as it was named, "cpu" or "cuda:1", and equals every name of the same device: `weft.device("cpu")`, "cpu"
    and "cpu:0". `tensor.device` is one; of a tensor in a file it is "disk:PATH", of type "disk" and without an index.
    On the device "meta" tensors have shapes and dtypes, but no values. DeviceError for what is no device's name.
    """

    _index: int | None

    def __new__(cls, device: object = None, index: int | None = None, *, type: str | None = None) -> Self:
        """`device`, or `type`: a name, with or without the number, which `index` else gives; another `weft.device`; or
        a number among the GPUs."""
        given = type if device is None else device
        if is_int(given):
            given = f"cuda:{given}"
        if index is not None:
            if not is_int(index) or index < 0 or ":" in str(given):
                raise ArgumentError(f"device: expected a backend and a number, got {given!r} and {index!r}")
            given = f"{given}:{index}"
        name = run.named_device(given)
        if name is None:
            raise DTypeError(f"device: expected a name, such as 'cpu' or 'cuda:1', got {describe(given)}")
        self = super().__new__(cls, run.named_only(name))
        numbered = name.partition(":")[2] and not isinstance(given, device_class())
        self._index = int(name.partition(":")[2]) if numbered else getattr(given, "_index", None)
        return self

    @classmethod
    @lru_cache(64)
    def known(cls, name: str) -> Self:
        """The device of something that is there: the name is full and right."""
        self = super().__new__(cls, name)
        kind, _, number = name.partition(":")
        self._index = None if kind in ("cpu", "meta", "disk") or not number.isdecimal() else int(number)
        return self

    @property
    def name(self) -> str:
        """The whole, such as "cpu:0"."""
        return str.__str__(self)

    @property
    def type(self) -> str:
        """The backend, such as "cpu"; "disk" for a file."""
        return self.partition(":")[0]

    @property
    def index(self) -> int | None:  # pyright: ignore[reportIncompatibleMethodOverride]  (torch's name, not str's)
        """The number among the backend's devices, where it was said; None for the CPU that a tensor is on."""
        return self._index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return False
        return str.__eq__(self, other) or (":" not in other and str.__eq__(self, f"{other}:0"))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __enter__(self) -> Self:
        enter(devices=(*context().devices, run.device_name(self.name)))
        return self

    def __exit__(self, *error: object) -> None:
        change(devices=context().devices[:-1])

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (device.known if self.type == "disk" else device), (str(self),)

    def __repr__(self) -> str:
        if is_own():
            return f"weft.device({str(self)!r})"
        number = "" if self._index is None else f", index={self._index}"
        return f"device(type={self.type!r}{number})"

    def __str__(self) -> str:
        return self.name if self._index is not None or self.type == "disk" else self.type

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


def device_class() -> type[device]:
    """The class, where its name means an argument."""
    return device


class memory_limit(DecoratingContext):  # noqa: N801  (as the other contexts)
    """`with weft.memory_limit(nbytes):` what would bring the memory in use on a device above `nbytes` is refused.

    What does not fit is computed again when it is read, or spilled to the host or a file; where that does not suffice,
    a MemoryPlanError names what needs most, and the limit that would do. Without a device, the limit is the default
    device's; devices that share a pool share its limit. `memory_limit(None)` lifts it within the block. What is in use
    already stays.
    """

    def __init__(self, nbytes: int | None, device: str | None = None) -> None:
        if nbytes is not None and (not is_int(nbytes) or nbytes < 0):
            raise ArgumentError(f"memory_limit: needs a number of bytes or None, got {nbytes!r}")
        self.nbytes, self.device = nbytes, device
        self._before: list[tuple[str, int | None]] = []

    def __enter__(self) -> Self:
        name = default_device() if self.device is None else run.device_name(self.device)
        self._before.append((name, run.memory_limit(name)))
        run.set_memory_limit(name, self.nbytes)
        return self

    def __exit__(self, *error: object) -> None:
        run.set_memory_limit(*self._before.pop())


def devices() -> list[DeviceStatus]:
    """Every device of every installed backend; for a backend that cannot be used, why not and what to do."""
    from weft.backends.registry import statuses

    return statuses()


def set_num_threads(n: int) -> None:
    """Set the number of threads that the CPU backend runs kernels on."""
    if not is_int(n) or n < 1:
        raise ArgumentError(f"set_num_threads: needs a positive int, got {n!r}")
    run.set_num_threads(n)


def get_default_device() -> device:
    """The device on which new tensors are made."""
    return device.known(default_device())


def set_default_device(device: str | None) -> None:
    """New tensors are made on this device from now on, outside of `with weft.device(...)`; None undoes that."""
    run.set_default_device(device)


def get_num_threads() -> int:
    """The number of threads that the CPU backend uses."""
    return run.get_num_threads()


def has_values(device: str | None) -> bool:
    """False for the device "meta"; of the default one where None is given."""
    from weft.scheduler.realize import default_device

    return (device or default_device()) != run.META


def info_of(device: str | None) -> DeviceInfo:
    """The description of a device; of the default one where None is given."""
    from weft.backends.registry import open_device
    from weft.scheduler.realize import default_device

    return open_device(device or default_device()).info
