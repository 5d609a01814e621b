"""Tests of core run on the real path: kernels on the CPU. Those that ask for `reference` see what the graphs mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from weft.backends.registry import open_device
from weft.backends.storage import Storage, from_numpy
from weft.core.execute import run
from weft.ir import dtypes
from weft.ir.graph import Node
from weft.testing.reference import evaluate


def _realize(
    nodes: Sequence[Node], held: object = None, along: Sequence[Node] = (), spent: object = None
) -> Mapping[Node, Storage]:
    pending = [n for n in nodes if n.storage is None]
    constants: dict[Node, Storage] = {}  # shared by the whole process: their values are not stored
    for node, array in zip(pending, evaluate(pending), strict=True):
        device = open_device(node.device or "cpu:0")
        storage = from_numpy(array.astype(dtypes.to_numpy(node.dtype)), node.dtype, device)
        if node.device is None:
            constants[node] = storage
        else:
            node.storage = storage
    return constants


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute with the reference instead of kernels."""
    monkeypatch.setattr(run, "realize", _realize)
