"""Functions recorded for sessions: run once on placeholders."""
# Tests: tests/sessions/test_session.py

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.autograd.context import default_device
from weft.core.args.modes import no_grad
from weft.core.args.structure import Build
from weft.core.compile.recording import Left, Recording, record
from weft.core.execute import plans
from weft.errors import ArgumentError
from weft.ir.calls import expand_calls
from weft.ir.graph import Node, toposort
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.backends.protocol import Device, Memory
    from weft.core.execute.tracing import Modal
    from weft.core.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """The graph of a function. `leaves`: the placeholders of tensors by their numbers, those of the arguments first,
    then those `captured`; `results`: the nodes of the tensors that it returns; `draws`: the words of generators."""

    device: Device
    arguments: int
    captured: tuple[Tensor, ...]
    leaves: dict[int, Node]
    draws: dict[Node, Memory]
    results: tuple[Node, ...]
    order: tuple[Node, ...]
    build: Build
    modes: tuple[tuple[Modal, bool], ...]

    def is_current(self) -> bool:
        """True while modules train, or not, as they did when they were recorded."""
        return all(module.training is training for module, training in self.modes)


def recorded(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[Tensor]
) -> Template:
    """The graph of a call. ArgumentError for a function that no graph stands for: see `_refused`."""
    with no_grad():
        r = record(fn, args, kwargs, tensors, whole=True)
    assert not isinstance(r, Left)
    _refused(r)
    values = expand_calls([r.values[k].node for k in r.results])
    leaves = {k: v.node for k, v in r.placeholders.items()}
    order = tuple(toposort(values))
    device = plans.open_device(_device(order))
    draws = {node: plans.memory_of(np.array(g.words(count), np.uint32), device) for g, node, count in r.draws}
    return Template(
        device,
        r.arguments,
        tuple(r.captured),
        {k: n for k, n in leaves.items() if n in order},
        draws,
        tuple(values),
        order,
        r.build,
        tuple(r.modes),
    )


def _refused(r: Recording) -> None:
    """ArgumentError where a call does more than compute results: a run that computes a part would do it again, or
    not."""
    if r.set_grads or r.grads_read:
        raise ArgumentError(
            "session: the function reads or sets gradients, which change from call to call; compile it instead"
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
    if len(names) > 1 or any(n.op is Op.COPY for n in order):
        raise ArgumentError(
            f"session: tensors are on several devices ({', '.join(sorted(names))}); move them to one"
        )
    return names.pop() if names else default_device()
