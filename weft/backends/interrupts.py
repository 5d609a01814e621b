"""Ctrl-C that waits: between two launches of a run that updates memory in place."""
# Tests: tests/optim/test_steps.py

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from weft.backends.protocol import Memory


class shielded:  # noqa: N801  (reads as what it does)
    """Within the block SIGINT is noted; its handler is called at the end. Only where one of the memories is given
    twice, that is, is updated in place, and in the main thread, where Python calls handlers: about 2 us."""

    __slots__ = ("_handler", "_noted")

    def __init__(self, memories: Sequence[Memory]) -> None:
        self._handler: Any = None
        self._noted: FrameType | None = None
        if (
            len(set(map(id, memories))) < len(memories)
            and threading.current_thread() is threading.main_thread()
        ):
            handler = signal.getsignal(signal.SIGINT)
            self._handler = handler if callable(handler) else None

    def __enter__(self) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._note)

    def __exit__(self, *error: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            if self._noted is not None:
                self._handler(signal.SIGINT, self._noted)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = frame
