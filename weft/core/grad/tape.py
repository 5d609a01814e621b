"""The step that a tensor was recorded as a result of, for programs that walk the tape: torch's `grad_fn`."""
# Tests: tests/core/surface/test_overrides.py

from __future__ import annotations

from typing import Any

from weft.autograd.value import Value
from weft.core.execute import watched


class GradFn:
    """One step of the history: `name()` is torch's way to name it, `next_functions` are the steps it was computed from.

    Steps are the primitive ops that weft records, which are others than torch's where a function is made of several.
    """

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def name(self) -> str:
        """Such as "MulBackward0"."""
        op = self.value.op
        return f"{'' if op is None else op.symbol.title().replace('_', '')}Backward0"

    @property
    def next_functions(self) -> tuple[tuple[GradFn | None, int], ...]:
        """For each input its step and 0; None for one that needs no gradient."""
        return tuple([(step_of(x) if x.needs_grad else None, 0) for x in self.value.inputs])

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that the step was applied to."""
        return self.value.inputs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GradFn) and other.value is self.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"<{self.name()}>"


class AccumulateGrad(GradFn):
    """The end of the history: gradients are added to `.grad` of the leaf `variable`."""

    __slots__ = ()

    def name(self) -> str:
        return "AccumulateGrad"

    @property
    def variable(self) -> Any:
        """The leaf; None where nobody holds it any more."""
        return watched.watcher(self.value)


def step_of(value: Value) -> GradFn:
    """The step that gives a value which needs a gradient."""
    return AccumulateGrad(value) if value.is_leaf else GradFn(value)
