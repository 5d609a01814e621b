"""Edits of modules: attributes, members and hooks that are set or taken off, anywhere in the process.

What was made of modules as they were looks at them again only where there was an edit since: one comparison.
"""
# Tests: tests/core/execute/test_modules.py

from __future__ import annotations


class Edit:
    """A moment: of two looks at `latest` that give the same one, no module was edited in between."""

    __slots__ = ()


_latest = Edit()


def latest() -> Edit:
    """The last edit of any module."""
    return _latest


def note() -> None:
    """Say that a module is another one now: after it was changed."""
    global _latest
    _latest = Edit()
