"""The table of torch's modules: what of weft is behind each, and what names the room adds to it, by kind.

One table for each kind of module; a path that has children is a module, too, if only an empty one.
"""
# Tests: tests/as_torch/test_room.py

from __future__ import annotations

from collections.abc import Mapping

from weft.as_torch.kinds import Names
from weft.as_torch.tables.compilers import COMPILERS
from weft.as_torch.tables.devices import DEVICES
from weft.as_torch.tables.layers import LAYERS
from weft.as_torch.tables.numbers import NUMBERS
from weft.as_torch.tables.processes import PROCESSES
from weft.as_torch.tables.tools import TOOLS

__all__ = ["TABLE"]


def _with_parents(table: Mapping[str, Names]) -> dict[str, Names]:
    found = dict(table)
    for path in table:
        while path := path.rpartition(".")[0]:
            found.setdefault(path, Names())
    return found


TABLE: Mapping[str, Names] = _with_parents(
    {**NUMBERS, **LAYERS, **TOOLS, **COMPILERS, **DEVICES, **PROCESSES}
)
"""Path of torch's -> its names."""
