"""Functions recorded for sessions: run once on placeholders."""
# Tests: tests/sessions/test_session.py

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.autograd.context import default_device
from weft.core.args.handle import wrap_untracked
from weft.core.args.modes import no_grad
from weft.core.args.structure import Build, mapped
from weft.core.compile.recording import Left, Recording, record
from weft.core.execute import plans
from weft.core.execute.modules import Modules
from weft.errors import ArgumentError
from weft.ir.calls import expand_calls
from weft.ir.graph import Node, toposort
from weft.ir.index import Var
from weft.ir.ops import Op
from weft.ir.placement import is_mesh
from weft.ir.rewrite import over, rewritten
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.backends.protocol import Device, Memory
    from weft.core.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """The graph of a function. `leaves`: the placeholders of the tensors that it reads, by their numbers: those of the
    arguments come first, then those `captured`; `results`: the nodes of the tensors that it returns; `draws`: the words
    of generators, drawn once, so that what is drawn stays."""

    device: Device
    arguments: int
    captured: tuple[Tensor, ...]
    leaves: dict[int, Node]
    draws: dict[Node, Memory]
    results: tuple[Node, ...]
    order: tuple[Node, ...]
    variables: tuple[Var, ...]
    """The runtime variables that it was given for numbers."""
    build: Build
    modules: Modules
    """The modules, as the function read them."""


def recorded(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: Sequence[Tensor],
    variables: Sequence[Var],
) -> Template:
    """The graph of a call. ArgumentError for a function that does more than compute results from tensors."""
    # of its own, as an argument may also be a tensor that the function has from elsewhere, which stays that one
    given = {id(t): wrap_untracked(t.value) for t in tensors}
    args, kwargs = mapped((args, kwargs), lambda t: given[id(t)])
    with no_grad():
        r = record(fn, args, kwargs, list(given.values()), whole=False)
    if isinstance(r, Left):
        where = "; ".join(map(str, r.breaks))
        raise ArgumentError(
            f"session: the function's graph ends where values are read ({where}); use weft.where instead of if, or "
            "make sessions of the parts before and after"
        )
    _refuse_effects(r)
    results = rewritten(expand_calls([r.values[k].node for k in r.results]), _uncopied)
    order = tuple(toposort(results))
    used = set(order)
    for n in order:
        if not all(isinstance(i, int) for i in n.shape):
            raise ArgumentError(
                f"session: a Variable gives a tensor the shape {n.shape}; it can say where elements are, as in "
                "x[:, t], and not how many"
            )
    device = plans.open_device(_device(order))
    return Template(
        device=device,
        arguments=r.arguments,
        captured=tuple(r.captured),
        leaves={k: v.node for k, v in r.placeholders.items() if v.node in used},
        draws={n: plans.memory_of(np.array(g.words(count), np.uint32), device) for g, n, count in r.draws},
        results=tuple(results),
        order=order,
        variables=tuple(variables),
        build=r.build,
        modules=r.modules,
    )


def _uncopied(n: Node, inputs: tuple[Node, ...]) -> Node:
    """Leave copies of what is on no device out: constants, positions, what is made of them are where they are used."""
    return inputs[0] if n.op is Op.COPY and inputs[0].device is None else over(n, inputs)


def _refuse_effects(r: Recording) -> None:
    """ArgumentError where a call changes tensors: a run that computes a part of it cannot."""
    if r.set_grads or r.grads_read:
        raise ArgumentError(
            "session: the function reads or sets gradients, which change from call to call; use weft.compile"
        )
    if r.rebinds:
        raise ArgumentError(
            "session: the function writes to tensors that it did not make (batch norm while training, a counter, "
            "x += 1 on an argument), and a run that computes a part cannot; call eval() on the module, or return the "
            "new value"
        )


def _device(order: Sequence[Node]) -> str:
    """The one device of a graph."""
    names = {n.device for n in order if n.device is not None}
    if len(names) > 1 or any(n.op is Op.COPY for n in order) or any(map(is_mesh, names)):
        shown = ", ".join(sorted(names))
        raise ArgumentError(f"session: tensors are on several devices ({shown}); move them to one")
    return names.pop() if names else default_device()
