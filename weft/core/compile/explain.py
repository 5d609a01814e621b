"""weft.explain: the kernels that computing tensors, or calling a compiled function, will take."""
# Tests: tests/core/execute/test_explanation.py

from __future__ import annotations

from typing import Any, cast

from weft.core.args.handle import value_of
from weft.core.compile.compiled_function import CompiledFunction
from weft.core.execute.explanation import Explanation, explain_nodes


def explain(*what: Any, time: bool = False) -> Explanation:
    """The kernels that computing tensors together will take, or those of a call of a compiled function.

        weft.explain(x @ w, x.sum())                 nothing is computed
        weft.explain(x @ w, time=True)               computed a few times, with a clock at every kernel
        weft.explain(step, x, y)                     step = weft.compile(f): the call step(x, y), made twice

    Tensors stay unrealized. A compiled function is called, once to trace it and once with the clock, so what it
    updates is updated twice. Printing the result shows each kernel's schedule, why its fusion ended where it did, and,
    where it was timed: its rates, the share of what the machine does at best (measured once and kept in the cache
    folder), and which limit that is. `weft.explain(...)[0].show("loops", "assembly")` shows a kernel itself.
    """
    first = getattr(what[0], "_compiled", what[0]) if what else None
    if isinstance(first, CompiledFunction):
        function = cast("CompiledFunction[..., Any]", first)
        return function.explain(*what[1:])
    return explain_nodes([value_of("explain", t).node for t in what], time)
