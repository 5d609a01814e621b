"""Watchers of the operations that NumPy computes on the host: `python -m weft run` lists them at the end."""
# Tests: tests/as_torch/test_run.py

from __future__ import annotations

from collections.abc import Callable

_watchers: list[Callable[[str], None]] = []


def watch(watcher: Callable[[str], None]) -> None:
    """Have the function called with the name of each operation that is computed on the host."""
    if watcher not in _watchers:
        _watchers.append(watcher)


def note(op: str) -> None:
    """Tell those who want to know."""
    for watcher in _watchers:
        watcher(op)
