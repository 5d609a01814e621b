"""Switching the recording of operations for gradients: as context managers, decorators or calls."""

from __future__ import annotations

from contextlib import ContextDecorator, nullcontext
from typing import TYPE_CHECKING, Self

from weft.autograd import value

if TYPE_CHECKING:
    from weft.core.tensor import Tensor


class set_grad_enabled(ContextDecorator):  # noqa: N801  (torch's name)
    """Recording on or off: at once when called, and restored at the end when used as a context or decorator."""

    def __init__(self, mode: bool) -> None:
        self.mode = mode
        self._before = [value.grad_enabled()]
        value.set_grad_enabled(mode)

    def _recreate_cm(self) -> Self:
        value.set_grad_enabled(self._before[0])
        return type(self)(self.mode)

    def __enter__(self) -> Self:
        value.set_grad_enabled(self.mode)
        return self

    def __exit__(self, *error: object) -> None:
        value.set_grad_enabled(self._before[-1])


class _Mode(ContextDecorator):
    """Recording as `mode` says within the block; may be nested and reused."""

    mode: bool

    def __init__(self) -> None:
        self._before: list[bool] = []

    def __enter__(self) -> Self:
        self._before.append(value.grad_enabled())
        value.set_grad_enabled(self.mode)
        return self

    def __exit__(self, *error: object) -> None:
        value.set_grad_enabled(self._before.pop())


class no_grad(_Mode):  # noqa: N801  (torch's name)
    """No operation within is recorded: results do not require grad."""

    mode = False


class enable_grad(_Mode):  # noqa: N801  (torch's name)
    """Operations within are recorded, also inside `no_grad`."""

    mode = True


inference_mode = no_grad


def is_grad_enabled() -> bool:
    """True where operations are recorded."""
    return value.grad_enabled()


def variable(data: Tensor, requires_grad: bool = False, volatile: bool = False) -> Tensor:
    """torch's old Variable: the tensor, which asks for gradients if that is said."""
    return data.requires_grad_() if requires_grad else data


def detect_anomaly(mode: bool = True, check_nan: bool = True) -> nullcontext[None]:
    """A context, or a call, that changes nothing: what made a NaN is seen with `weft.explain` and at any result."""
    return nullcontext()
