"""The state of the default generator before a function that is run again, or that must not draw: also in a trace."""

from __future__ import annotations

from typing import Any

from weft.core.execute import tracing
from weft.core.functions.random import default_generator


def random_state() -> Any:
    """The state of the default generator: what `restore` goes back to, in a trace and after it."""
    trace = tracing.current()
    if trace is None:
        return default_generator.get_state()
    draws = trace.draws.get(id(default_generator))
    return tracing.TracedState(trace, 0 if draws is None else draws.count)


def after_trace(state: Any) -> Any:
    """A state from `random_state` as one of the generator's, if it is of a trace that was left since."""
    if not isinstance(state, tracing.TracedState) or not state.trace.left:
        return state
    seed, drawn = state.trace.random_state
    return seed, drawn + state.count


def restore(state: Any) -> None:
    """Go back to a state from `random_state`."""
    trace = tracing.current()
    if trace is None:
        default_generator.set_state(after_trace(state))
        return
    draws = trace.draws.get(id(default_generator))
    if draws is not None:
        draws.count = state.count
