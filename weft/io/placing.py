"""map_location: on which device tensors of a file are made, in the forms that torch takes."""
# Tests: tests/io/test_torch_files.py

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from weft.core.execute import files
from weft.core.execute.devices import get_default_device
from weft.core.execute.run import device_name, named_device
from weft.errors import ArgumentError
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SavedElements:
    """A storage as a map_location function gets it: the function says where its elements are to go."""

    device: str

    def cpu(self) -> SavedElements:
        """To the CPU's memory."""
        return SavedElements("cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False) -> SavedElements:
        """To a GPU."""
        where = "cuda" if device is None else device
        return SavedElements(f"cuda:{where}" if isinstance(where, int) else str(where))

    def to(self, device: Any = None, non_blocking: bool = False) -> SavedElements:
        """To any device."""
        return SavedElements(str(named_device(device) or device))


def placing(op: str, map_location: Any, device: Any = None) -> Callable[[str], str | None]:
    """From where a storage was to where it goes: the full name of a device, or None for "disk".

    `map_location`: None for the default device, since tensors in files are at home nowhere; a device; a dict of
    devices by devices, which leaves others to the default; or a function of a `SavedElements` and where it was, which
    gives one back, or None for the default. `device`, the name of one, comes before it.
    """
    if device is not None:
        map_location = device
    if map_location is None:
        return lambda location: get_default_device().name
    if named_device(map_location) is not None:
        fixed = _full(op, map_location)
        return lambda location: fixed
    if isinstance(map_location, Mapping):
        table = {str(named_device(k) or k): v for k, v in cast("Mapping[Any, Any]", map_location).items()}

        def by_table(location: str) -> str | None:
            return _full(op, table[location]) if location in table else get_default_device().name

        return by_table
    if callable(map_location):
        function = cast("Callable[[SavedElements, str], Any]", map_location)

        def by_function(location: str) -> str | None:
            # on torch's side the elements are in the CPU's memory when the function is asked
            given = SavedElements("cpu")
            found = function(given, location)
            if found is None:
                return get_default_device().name
            return _full(op, found.device if isinstance(found, SavedElements) else found)

        return by_function
    return _refuse(op, map_location)


def _full(op: str, device: Any) -> str | None:
    name = named_device(device)
    if name is None:
        return _refuse(op, device)
    if files.is_disk(name):
        if name != "disk":
            raise ArgumentError(
                f"{op}: device={name!r} names a file; pass device='disk' to leave the tensors where they are"
            )
        return None
    return device_name(name)


def _refuse(op: str, device: Any) -> Any:
    raise ArgumentError(
        f"{op}: map_location must be a device, a dict of devices, a function or None, not {type(device).__name__}"
    )
