"""A CUDA device without a GPU: the backend itself over an emulated driver."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weft.backends import registry
from weft.backends.cuda import device as devices
from weft.backends.cuda.device import CudaBackend
from weft.backends.cuda.driver import Driver


def load(name: str) -> Any:
    """A module beside this file (test folders are no packages)."""
    spec = importlib.util.spec_from_file_location(f"cuda_{name}", Path(__file__).parent / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
    if not hasattr(module, "__loaded__"):
        spec.loader.exec_module(module)
        module.__loaded__ = True  # type: ignore[attr-defined]
    return module


@pytest.fixture(scope="session")
def cuda_module() -> Callable[[str], Any]:
    """Loads a helper beside this file by name."""
    return load


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The driver under "cuda:0", which executes the PTX that the backend compiles; products on warps unless asked."""
    monkeypatch.setenv("WEFT_WGMMA", "0")
    driver = load("emulated").EmulatedDriver()
    assert driver.cuInit(0) == (0,)
    monkeypatch.setattr(devices, "open_driver", lambda: Driver(driver))
    monkeypatch.setattr(registry, "_backends", {**registry._backends, "cuda": CudaBackend()})
    monkeypatch.setattr(registry, "_devices", dict(registry._devices))
    yield driver
