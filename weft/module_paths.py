"""torch's module paths: `from weft.utils.data.sampler import Sampler` finds the module of weft that has it.

Programs import from many of torch's files. A package that stands for one of torch's says in a table which of weft's
modules each of its paths means; they are the same module objects, so every class exists once.
"""
# Tests: tests/test_torch_paths.py

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module


def offer_paths(package: str, paths: Mapping[str, str]) -> None:
    """Have `package`.path be the module that the table names, for each path; parents come first in the table."""
    for path, name in paths.items():
        full = f"{package}.{path}"
        module = sys.modules.setdefault(full, import_module(name))
        parent, _, last = full.rpartition(".")
        if not hasattr(sys.modules[parent], last):
            setattr(sys.modules[parent], last, module)
