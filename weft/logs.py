"""Loggers. `logging` is imported when something is first said: a process of which nothing is said does without it."""
# Tests: tests/test_architecture.py

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


def logger(name: str) -> logging.Logger:
    """The logger of a module, by the module's name."""
    import logging

    return logging.getLogger(name)
