"""Switching modes: the recording of operations for gradients, as context managers, decorators or calls; numerics."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, Literal, Self

from weft.autograd.context import change, context, switched
from weft.core.args.contexts import DecoratingContext
from weft.errors import ArgumentError
from weft.ir import numerics as pinning

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


class set_grad_enabled(DecoratingContext):  # noqa: N801  (torch's name)
    """Recording on or off: at once when called, and restored at the end when used as a context or decorator."""

    def __init__(self, mode: bool) -> None:
        self.mode = bool(mode)
        self._before = context().grad
        change(grad=self.mode)

    def clone(self) -> Self:
        return type(self)(self.mode)

    def __call__(self, function: Any) -> Any:
        change(grad=self._before)
        return super().__call__(function)

    def __enter__(self) -> Self:
        change(grad=self.mode)
        return self

    def __exit__(self, *error: object) -> None:
        change(grad=self._before)


class _Mode(switched, DecoratingContext):
    """Recording as `mode` says within the block; may be nested and reused. Given a function, its decorated form."""

    mode: bool

    def __new__(cls, function: Any = None) -> Any:
        return super().__new__(cls) if function is None else cls()(function)

    def __init__(self, function: None = None) -> None:
        super().__init__(grad=self.mode)

    def clone(self) -> Self:
        return type(self)()


class no_grad(_Mode):  # noqa: N801  (torch's name)
    """No operation within is recorded: results do not require grad."""

    mode = False


class enable_grad(_Mode):  # noqa: N801  (torch's name)
    """Operations within are recorded, also inside `no_grad`."""

    mode = True


class inference_mode(switched, DecoratingContext):  # noqa: N801  (torch's name)
    """As `no_grad`. With mode=False operations within are recorded, inside `no_grad` too, as in torch.

    Tensors made within are ordinary ones: they may be used for gradients afterwards.
    """

    def __new__(cls, mode: Any = True) -> Any:
        return super().__new__(cls) if isinstance(mode, bool) else cls()(mode)

    def __init__(self, mode: bool = True) -> None:
        super().__init__(grad=not mode, inference=mode)
        self.mode = mode

    def clone(self) -> Self:
        return type(self)(self.mode)


def is_inference_mode_enabled() -> bool:
    """True within `inference_mode`."""
    return context().inference


def is_grad_enabled() -> bool:
    """True where operations are recorded."""
    return context().grad


def variable(data: Tensor, requires_grad: bool = False, volatile: bool = False) -> Tensor:
    """torch's old Variable: the tensor, which asks for gradients if that is said."""
    return data.requires_grad_() if requires_grad else data


def detect_anomaly(mode: bool = True, check_nan: bool = True) -> nullcontext[None]:
    """A context, or a call, that changes nothing: what made a NaN is seen with `weft.explain` and at any result."""
    return nullcontext()


class numerics:  # noqa: N801  (reads as what it does)
    """Compute what is built and computed in the block so that its bits depend on values and lengths only: mode "same".

    Each sum of floats then has one order, which follows from the lengths of the axes that it reduces: a row of a batch
    gives the bits that it has alone, on any number of threads, whatever is computed beside it. "free", the default,
    takes the order that is fastest. It holds in this thread or task; `weft.compile(numerics="same")` is the same for a
    function. DeviceError where a device cannot keep to it: those whose kernels are grids of thread blocks.
    """

    __slots__ = ("_entered", "mode")

    def __init__(self, mode: Literal["free", "same"]) -> None:
        if mode not in ("free", "same"):
            raise ArgumentError(f"numerics: the mode must be 'free' or 'same', not {mode!r}")
        self.mode = mode
        self._entered: list[ExitStack] = []

    def __enter__(self) -> Self:
        same = self.mode == "same"
        # composed functions are run, not taken from what was recorded in the other mode
        fields: dict[str, bool] = {"pinned": True, "inline": True} if same else {"pinned": False}
        with ExitStack() as stack:
            stack.enter_context(switched(**fields))
            stack.enter_context(pinning.switched(same))
            self._entered.append(stack.pop_all())
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.pop().close()
