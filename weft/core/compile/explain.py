"""weft.explain: the kernels that computing tensors, or calling a function, will take."""
# Tests: tests/core/execute/test_explanation.py, tests/core/compile/test_explain.py

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal, cast

from weft.autograd.context import context
from weft.core.args.handle import describe, value_of
from weft.core.args.modes import numerics as numerics_mode
from weft.core.args.structure import tensors_in
from weft.core.compile.asked_devices import limit_of, mesh_of
from weft.core.compile.compiled_function import CompiledFunction
from weft.core.execute import meshes
from weft.core.execute.explanation import Explanation, explain_nodes
from weft.core.sharding.device_mesh import DeviceMesh
from weft.errors import ArgumentError
from weft.ir.graph import Node, buffer, toposort
from weft.ir.lines import Lines, noting
from weft.ir.ops import Op
from weft.ir.placement import is_mesh
from weft.ir.rewrite import rebuilt


def explain(
    *what: Any,
    time: bool = False,
    devices: DeviceMesh | Sequence[Any] | str | None = None,
    memory: int | Mapping[str, int] | None = None,
    numerics: Literal["free", "same"] | None = None,
) -> Explanation:
    """The kernels that computing tensors together will take, or those of a call of a function.

        weft.explain(x @ w, x.sum())                 nothing is computed
        weft.explain(x @ w, time=True)               computed a few times, with a clock at every kernel
        weft.explain(step, x, y)                     step = weft.compile(f): the call step(x, y), made twice
        weft.explain(f, x, y)                        the tensors that f(x, y) returns, with the lines of the program
        weft.explain(f, x, y, devices="cuda:*")      as computed over these devices, without moving anything

    Tensors stay unrealized. A compiled function is called, once to trace it and once with the clock, so what it
    updates is updated twice; any other function once. Printing the result shows each kernel's schedule, why its fusion
    ended where it did, and, where it was timed: its rates, the share of what the machine does at best (measured once
    and kept in the cache folder), and which limit that is. `weft.explain(...)[0].show("loops", "assembly")` shows a
    kernel itself.

    With `devices`, as for `weft.compile`, also within `memory` bytes of each and with sums as `numerics` says, layouts
    are chosen for all that the tensors are computed from, and the explanation says which and why, what the devices
    exchange, the memory of each, and a predicted timeline. ArgumentError where a tensor is on a mesh already, or for a
    compiled function: that has its own `devices`.
    """
    first = getattr(what[0], "_compiled", what[0]) if what else None
    if devices is None and (memory is not None or numerics is not None):
        raise ArgumentError("explain: memory= and numerics= are for work over several devices: give devices=")
    if isinstance(first, CompiledFunction):
        if devices is not None:
            raise ArgumentError(
                "explain: a compiled function has devices of its own: weft.compile(f, devices=...)"
            )
        function = cast("CompiledFunction[..., Any]", first)
        return function.explain(*what[1:])
    if devices is not None and time:
        raise ArgumentError(
            "explain: kernels are timed on one device; with devices= their times are predicted"
        )
    mesh = None if devices is None else mesh_of("explain", devices)
    noted = (noting() or Lines()).noted() if callable(first) else nullcontext()
    # what is computed in a mode is built in it
    with noted, nullcontext() if numerics is None else numerics_mode(numerics):
        tensors = _returned(first, what[1:]) if callable(first) else what
        nodes = [value_of("explain", t).node for t in tensors]
        if mesh is None:
            return explain_nodes(nodes, time)
        return _over(nodes, mesh, limit_of("explain", memory, mesh))


def _returned(function: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
    """The tensors that a call returns."""
    result = function(*arguments)
    found = tensors_in(result)
    if not found:
        raise ArgumentError(f"explain: {describe(function)} returns no tensor, but {describe(result)}")
    return found


def _over(nodes: Sequence[Node], mesh: DeviceMesh, limit: int | None) -> Explanation:
    """The explanation of nodes as they would be computed over a mesh."""
    todo = list(dict.fromkeys(n for n in nodes if n.storage is None))
    leaves = [n for n in toposort(todo, stop_at_storage=True) if n.op is Op.BUFFER or n.storage is not None]
    if any(is_mesh(n.device) for n in [*todo, *leaves]):
        raise ArgumentError(
            "explain: devices= is for tensors on one device; these are on a mesh, which says where"
        )
    root = mesh.root
    layouts, _ = meshes.layouts_for(todo, leaves, [], root, limit, not context().pinned)
    there = {n: buffer(n.shape, n.dtype, root.name, None) for n in leaves}
    given = {there[n]: layout for n, layout in zip(leaves, layouts, strict=True)}
    with meshes.searched(limit):
        return explain_nodes(rebuilt(todo, there), layouts=given)
