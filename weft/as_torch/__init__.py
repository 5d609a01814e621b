"""weft in torch's place: after `import weft.as_torch`, `import torch` and all below it mean weft.

    import weft.as_torch  # before the first import of torch
    import torch.nn.functional as F  # weft.nn.functional

or, for a program as it is, `python -m weft run PROGRAM [ARGS]`, which lists at the end what the program missed.

torch itself is never imported. `torch` has weft's public names and the room's: stand-ins for what programs import and
rarely call (torch.fx, torch.jit, torch.hub ...), which change nothing where nothing is to be done, and else raise
`NotOffered` when they are called. What neither has is an AttributeError or ImportError, by which many programs choose.
The room keeps these names out of weft's own.
"""
# Tests: tests/as_torch/test_room.py

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from weft.as_torch.finder import FINDER, loaded
from weft.as_torch.kinds import NotOffered
from weft.as_torch.record import Record, record
from weft.naming import OWN, call_it

__all__ = ["NotOffered", "Record", "in_place", "install", "record", "uninstall"]


def install() -> None:
    """Have `import torch` mean weft; ImportError where torch itself is loaded already."""
    if FINDER in sys.meta_path:
        return
    if loaded():
        raise ImportError(
            "weft.as_torch: torch itself is loaded in this process already; import weft.as_torch before anything that "
            "imports torch, or run the program by `python -m weft run`"
        )
    sys.meta_path.insert(0, FINDER)
    call_it("torch")


def uninstall() -> None:
    """Take the room out again: `import torch` means torch. What was imported from the room stays what it is."""
    if FINDER in sys.meta_path:
        sys.meta_path.remove(FINDER)
        call_it(OWN)
        for name in loaded():
            del sys.modules[name]


@contextmanager
def in_place() -> Generator[Record]:
    """A context in which `import torch` means weft; gives the record of what is missed in it."""
    install()
    record.clear()
    try:
        yield record
    finally:
        uninstall()


install()
