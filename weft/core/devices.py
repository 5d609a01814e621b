"""Which devices there are, which one new tensors are made on, and how many threads the CPU uses."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Self

from weft.core import run
from weft.core.axes import is_int
from weft.core.contexts import DecoratingContext
from weft.errors import ArgumentError

if TYPE_CHECKING:
    from weft.backends.registry import DeviceStatus


class device(str, DecoratingContext):  # noqa: N801  (torch's name)
    """A device by its full name: a string such as "cpu:0", with its parts. DeviceError if there is none such.

        device = weft.device("cuda" if weft.cuda.is_available() else "cpu")
        with weft.device("dummy", 1):  # new tensors are made on that device
            ...

    `tensor.device` is one; of a tensor in a file it is "disk:PATH", of type "disk" and without an index.
    """

    def __new__(cls, device: object, index: int | None = None) -> Self:
        """`device`: a name, with or without the number, which `index` else gives; or another `weft.device`."""
        if index is not None:
            if not is_int(index) or index < 0 or ":" in str(device):
                raise ArgumentError(f"device: expected a backend and a number, got {device!r} and {index!r}")
            device = f"{device}:{index}"
        return super().__new__(cls, run.device_name(device))

    @classmethod
    @lru_cache(64)
    def known(cls, name: str) -> Self:
        """The device of something that is there: the name is full and right."""
        return super().__new__(cls, name)

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
        """The number among the backend's devices."""
        number = self.partition(":")[2]
        return int(number) if number.isdecimal() else None

    def __enter__(self) -> Self:
        run.push_device(self.name)
        return self

    def __exit__(self, *error: object) -> None:
        run.pop_device()

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return device.known, (self.name,)

    def __repr__(self) -> str:
        return f"weft.device({self.name!r})"

    def __str__(self) -> str:
        return self.name


class memory_limit(DecoratingContext):  # noqa: N801  (as the other contexts)
    """`with weft.memory_limit(nbytes):` what would bring the memory in use on a device above `nbytes` is refused.

    A MemoryPlanError names what needs most. Without a device, the limit is the default device's. `memory_limit(None)`
    lifts it within the block. What is in use already stays.
    """

    _limits: ClassVar[dict[str, int | None]] = {}

    def __init__(self, nbytes: int | None, device: str | None = None) -> None:
        if nbytes is not None and (not is_int(nbytes) or nbytes < 0):
            raise ArgumentError(f"memory_limit: needs a number of bytes or None, got {nbytes!r}")
        self.nbytes, self.device = nbytes, device
        self._before: list[tuple[str, int | None]] = []

    def __enter__(self) -> Self:
        name = run.default_device() if self.device is None else run.device_name(self.device)
        self._before.append((name, self._limits.get(name)))
        self._set(name, self.nbytes)
        return self

    def __exit__(self, *error: object) -> None:
        self._set(*self._before.pop())

    def _set(self, name: str, nbytes: int | None) -> None:
        self._limits[name] = nbytes
        run.set_memory_limit(name, nbytes)


def devices() -> list[DeviceStatus]:
    """Every device of every installed backend; for a backend that cannot be used, why not and what to do."""
    from weft.backends.registry import statuses

    return statuses()


def set_num_threads(n: int) -> None:
    """How many threads the CPU backend runs kernels on."""
    if not is_int(n) or n < 1:
        raise ArgumentError(f"set_num_threads: needs a positive int, got {n!r}")
    run.set_num_threads(n)


def get_default_device() -> str:
    """The device on which new tensors are made."""
    return run.default_device()


def set_default_device(name: str) -> None:
    """New tensors are made on this device from now on, outside of `with weft.device(...)`."""
    run.set_default_device(name)


def get_num_threads() -> int:
    """How many threads the CPU backend uses."""
    return run.get_num_threads()
