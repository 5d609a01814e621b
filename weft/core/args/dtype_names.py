"""The names of torch's dtypes that no tensor has here; see NamedDType."""
# Tests: tests/core/tensor/test_types.py

from __future__ import annotations

from typing import Any

from weft.ir.dtypes import NAMED

_OTHER_NAMES = {"cfloat": "complex64", "cdouble": "complex128", "chalf": "complex32"}


def __getattr__(name: str) -> Any:
    found = NAMED.get(_OTHER_NAMES.get(name, name))
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
