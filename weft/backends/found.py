"""A backend whose driver lists devices by handles of its own."""
# Tests: tests/backends/opencl/test_blocks.py

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Generic, TypeVar

from weft.backends.protocol import Device
from weft.lazy_dataclass import dataclass

DeviceT = TypeVar("DeviceT", bound=Device)


@dataclass(slots=True, eq=False)
class FoundDevices(Generic[DeviceT]):
    """The backend `name`: the driver is asked once, by `find`, and devices are made when they are first wanted.

    `find` raises a DeviceError, with what to install, where there is no driver; it is then asked again next time.
    """

    name: str
    find: Callable[[], Sequence[Any]]
    make: Callable[[Any, int], DeviceT]
    _handles: Sequence[Any] = ()
    _devices: dict[int, DeviceT] = field(default_factory=dict[int, DeviceT])

    def count(self) -> int:
        """The number of devices that the driver lists."""
        return len(self._found())

    def device(self, index: int) -> DeviceT:
        """Device number `index`, the same object each time."""
        if index not in self._devices:
            self._devices[index] = self.make(self._found()[index], index)
        return self._devices[index]

    def _found(self) -> Sequence[Any]:
        if not self._handles:
            self._handles = self.find()
        return self._handles
