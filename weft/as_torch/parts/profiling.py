"""torch.profiler and torch.autograd.profiler: contexts that measure nothing. `weft.explain(x, time=True)` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ContextDecorator
from enum import Enum
from typing import Any, Self

from weft.as_torch.kinds import refuse
from weft.as_torch.record import record


class ProfilerActivity(Enum):
    """Activities that would be measured."""

    CPU, CUDA, XPU, MTIA, HPU, PrivateUse1 = range(6)


class ProfilerAction(Enum):
    """The action that a schedule has the profiler take in a step."""

    NONE, WARMUP, RECORD, RECORD_AND_SAVE = range(4)


class record_function(ContextDecorator):  # noqa: N801  (torch's name)
    """A name for what happens within."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name
        record.unused["torch.profiler.record_function"] += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class profile:  # noqa: N801  (torch's name)
    """A context that measures nothing. Asking it for what it measured is refused."""

    def __init__(self, *args: Any, on_trace_ready: Callable[[Any], Any] | None = None, **kwargs: Any) -> None:
        self.step_num = 0
        record.unused["torch.profiler.profile"] += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def start(self) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""

    def step(self) -> None:
        """Count a step."""
        self.step_num += 1

    def add_metadata(self, key: str, value: str) -> None:
        """Nothing."""

    add_metadata_json = add_metadata

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        refuse(
            f"torch.profiler.profile.{name}",
            "nothing was measured: weft.explain(x, time=True) times the kernels",
        )


class emit_nvtx(record_function):  # noqa: N801  (torch's name)
    """A context that does nothing."""

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        super().__init__("")


emit_itt = emit_nvtx


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, **kwargs: Any
) -> Callable[[int], ProfilerAction]:
    """A function that gives the action of a step."""

    def action(step: int) -> ProfilerAction:
        step -= skip_first
        cycle = wait + warmup + active
        if step < 0 or (repeat > 0 and step >= repeat * cycle):
            return ProfilerAction.NONE
        at = step % cycle
        if at < wait:
            return ProfilerAction.NONE
        if at < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if at < cycle - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[Any], None]:
    """A function that writes nothing: there is nothing to write."""
    return lambda prof: None


def supported_activities() -> Iterable[ProfilerActivity]:
    """The CPU."""
    return {ProfilerActivity.CPU}
