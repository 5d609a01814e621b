"""Inspection of the namespace: what it offers."""

from __future__ import annotations

from typing import Any

from weft.array_api.data_types import isdtype
from weft.autograd.context import default_device
from weft.core.args.defaults import get_default_dtype
from weft.core.execute import devices, run
from weft.ir.dtypes import (
    DType,
    bool_,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)


class Info:
    """Capabilities, devices and dtypes of the namespace."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean indexing and data-dependent shapes work; NumPy, which shows results, has 64 axes."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """The device of new arrays."""
        return default_device()

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        """The dtypes of Python numbers and of indices."""
        return {"real floating": get_default_dtype(), "integral": int64, "indexing": int64}

    def devices(self) -> list[str]:
        """The devices that can be used here."""
        return [d.name for d in devices.devices() if d.info is not None]

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The standard's dtypes of a kind that a device has, by name."""
        every = {
            "bool": bool_, "int8": int8, "int16": int16, "int32": int32, "int64": int64, "uint8": uint8,
            "uint16": uint16, "uint32": uint32, "uint64": uint64, "float32": float32, "float64": float64,
        }  # fmt: skip
        there = set(every.values())
        if device is not None:
            name = run.device_name(device)
            there &= next(d.info.dtypes for d in devices.devices() if d.name == name and d.info is not None)
        return {n: d for n, d in every.items() if d in there and (kind is None or isdtype(d, kind))}


def __array_namespace_info__() -> Info:  # noqa: N807  (the standard's name)
    """The Info of the namespace: capabilities, devices, dtypes."""
    return Info()
