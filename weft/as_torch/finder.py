"""The import hook: `import torch` and all below it mean the room's modules, and torch counts as installed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from os import PathLike
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from weft.as_torch.modules import TorchModule
from weft.as_torch.parts.version import TORCH_VERSION
from weft.as_torch.record import record
from weft.as_torch.tables import TABLE

_HOME = Path(__file__).parent


class TorchDistribution(Distribution):
    """The package "torch" as importlib.metadata sees it."""

    def read_text(self, filename: str) -> str | None:
        """The text of one of the files that say what is installed; None for others."""
        return {
            "METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {TORCH_VERSION}\n",
            "top_level.txt": "torch\n",
            "RECORD": "",
        }.get(filename)

    def locate_file(self, path: str | PathLike[str]) -> Any:
        """The path that a file would have."""
        return _HOME / path


class TorchFinder(MetaPathFinder, Loader):
    """Finds torch's modules in the room. What the room lacks is not found, even where torch itself is installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of one of torch's modules; None for modules of others, and for what the room lacks."""
        if fullname.partition(".")[0] != "torch":
            return None
        if fullname not in TABLE:
            if not _looks_again():
                record.missing[fullname] += 1
            return None
        spec = ModuleSpec(fullname, self, origin=str(_HOME / "__init__.py"), is_package=True)
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module: names are found when they are asked for."""
        return TorchModule(spec.name, f"{spec.name}, as weft offers it.")

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is run."""

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        """torch, where it is asked for by name, or all that is installed."""
        name = None if context is None else context.name
        if name is None or name == "torch":
            yield TorchDistribution()


def _looks_again() -> bool:
    """True for `from torch.x import name`, which asks the module afterwards."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_name == "_handle_fromlist":
            return True
        frame = frame.f_back
    return False


FINDER = TorchFinder()


def loaded() -> list[str]:
    """The names of torch's modules in sys.modules."""
    return [name for name in sys.modules if name.partition(".")[0] == "torch"]
