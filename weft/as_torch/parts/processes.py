"""torch.multiprocessing: Python's, with `spawn`. What is passed to a process is pickled; no memory is shared."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from typing import Any, Literal, cast

__all__ = [
    "ProcessContext", "ProcessException", "ProcessExitedException", "ProcessRaisedException", "SpawnContext",
    "get_all_sharing_strategies", "get_sharing_strategy", "set_sharing_strategy", "spawn", "start_processes",
]  # fmt: skip


class ProcessException(Exception):  # noqa: N818  (torch's name)
    """A process ended otherwise than by returning."""

    def __init__(self, msg: str, error_index: int = 0, pid: int = 0) -> None:
        super().__init__(msg)
        self.msg, self.error_index, self.pid = msg, error_index, pid


class ProcessRaisedException(ProcessException):
    """An exception ended a process."""


class ProcessExitedException(ProcessException):
    """A process ended with an exit code or by a signal."""


def _run(fn: Callable[..., Any], i: int, args: tuple[Any, ...]) -> None:
    fn(i, *args)


class ProcessContext:
    """Processes that were started together."""

    def __init__(self, processes: list[Any]) -> None:
        self.processes = processes

    def pids(self) -> list[int]:
        """The numbers that the system gave them."""
        return [int(p.pid) for p in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for all; whether all are done. ProcessException for the first that failed, after the others end."""
        for process in self.processes:
            process.join(timeout)
        failed = [i for i, p in enumerate(self.processes) if p.exitcode]
        if failed:
            process = self.processes[failed[0]]
            kind = ProcessRaisedException if process.exitcode == 1 else ProcessExitedException
            raise kind(
                f"process {failed[0]} terminated with exit code {process.exitcode}; see its message above", failed[0],
                int(process.pid),
            )  # fmt: skip
        return all(p.exitcode is not None for p in self.processes)


SpawnContext = ProcessContext


def start_processes(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: Literal["spawn", "fork", "forkserver"] = "fork",
    **kwargs: Any,
) -> ProcessContext | None:
    """fn(i, *args) in nprocs processes; waits for them, or gives them.

    They are forked where the system forks: a process that starts anew would not have weft in torch's place.
    """
    how: Any = "fork" if "fork" in multiprocessing.get_all_start_methods() else start_method
    context = cast("Any", multiprocessing).get_context(how)
    processes: list[Any] = [
        context.Process(target=_run, args=(fn, i, args), daemon=daemon) for i in range(nprocs)
    ]
    for process in processes:
        process.start()
    started = ProcessContext(processes)
    if not join:
        return started
    started.join()
    return None


def spawn(
    fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
    start_method: Any = "spawn",
) -> ProcessContext | None:  # fmt: skip
    """fn(i, *args) in nprocs processes: see start_processes."""
    return start_processes(fn, args, nprocs, join, daemon)


def get_all_sharing_strategies() -> set[str]:
    """One: nothing is shared."""
    return {"file_system"}


def get_sharing_strategy() -> str:
    """The one strategy."""
    return "file_system"


def set_sharing_strategy(new_strategy: str) -> None:
    """Nothing."""


def __getattr__(name: str) -> Any:
    """The attribute of Python's multiprocessing."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(multiprocessing, name)


def __dir__() -> Iterable[str]:
    return [*__all__, *dir(sys.modules["multiprocessing"])]


_Context = BaseContext
