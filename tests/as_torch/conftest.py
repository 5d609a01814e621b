"""weft in torch's place within a test, whether or not torch itself is loaded in this process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest


def _of_torch() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "torch"]


@pytest.fixture
def torch() -> Iterator[Any]:
    """The room's torch; afterwards torch is what it was before."""
    hidden = {name: sys.modules.pop(name) for name in _of_torch()}
    try:
        as_torch = importlib.import_module("weft.as_torch")
        with as_torch.in_place():
            yield importlib.import_module("torch")
    finally:
        for name in _of_torch():
            del sys.modules[name]
        sys.modules.update(hidden)
