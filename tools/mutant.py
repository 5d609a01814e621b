"""Runs pytest with another source for one module: python tools/mutant.py MODULE SOURCE PYTEST-ARGUMENTS...

The module's own file stays as it is, and no bytecode is read or written for it. What the tests start as other processes
imports the file itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, ModuleType

ROOT = Path(__file__).parents[1]


class Loader(SourceFileLoader):
    """Loads a module as if its file had another source."""

    def __init__(self, module: str, path: str, source: str) -> None:
        super().__init__(module, path)
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec", dont_inherit=True)


class Finder(MetaPathFinder):
    """Finds one module, to be loaded with another source."""

    def __init__(self, module: str, source: str) -> None:
        self.module, self.source = module, source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self.module else None
        if spec is not None and spec.origin is not None:
            spec.loader = Loader(fullname, spec.origin, self.source)
        return spec


def main(module: str, source: str, *arguments: str) -> int:
    """pytest's exit status."""
    sys.path.insert(0, str(ROOT))
    sys.meta_path.insert(0, Finder(module, Path(source).read_text(encoding="utf-8")))
    import pytest
    from hypothesis.configuration import set_hypothesis_home_dir

    with TemporaryDirectory(
        prefix="mutant-"
    ) as folder:  # examples that fail for a mutant say nothing of the file
        set_hypothesis_home_dir(folder)
        return int(
            pytest.main(["--assert=plain", *arguments])
        )  # to rewrite asserts, it would find the module


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
