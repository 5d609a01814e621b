"""Stages of a pipeline: what each layer takes on each device, and the layers at which to go to the next one."""
# Tests: tests/nn/test_pipeline.py

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.autograd.reverse import gradients
from weft.autograd.value import Value
from weft.core.args.handle import describe, wrap
from weft.errors import DTypeError
from weft.ir.calls import expand_calls
from weft.ir.graph import Node, buffer
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor
    from weft.scheduler.placing.pipeline import Layer

KEPT_FOR_WEIGHTS = 4
"""The times that a trained weight takes: itself, its gradient, and two moments of an optimizer."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers `first` to `end` - 1 on a device; where the cut was chosen, the nanoseconds that a microbatch takes there,
    and about how many bytes the stage needs while it is trained, or used."""

    device: str
    first: int
    end: int
    ns: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages in their order, and the nanoseconds that a step of all microbatches takes, as predicted."""

    stages: tuple[Stage, ...]
    ns: float


def cut(
    layers: Sequence[Callable[[Any], Any]],
    weights: Sequence[Sequence[Value]],
    example: Value,
    names: Sequence[str],
    microbatches: int,
    limits: Mapping[str, int],
) -> Stages:
    """The stages that take the least time, on as many of the devices as are worth it, in their order.

    `example`: a microbatch, of which shape and dtype matter. `weights`: those of each layer. `limits`: bytes of
    devices. MemoryPlanError where no cut fits.
    """
    from weft.backends.registry import open_device
    from weft.scheduler.placing.layouts import described
    from weft.scheduler.placing.pipeline import cut

    devices = [open_device(name) for name in names]
    costs = costs_of(layers, weights, example, names)
    _, links = described(devices)
    room = [limits.get(d.info.name, d.info.memory_bytes) for d in devices] if limits else None
    found = cut(costs, links, microbatches, room, keeps_all=True)
    firsts = (0, *found.ends)
    stages = [
        Stage(
            names[s], first, end,
            sum(c.forward_ns[s] + (c.backward_ns[s] if c.backward_ns else 0.0) for c in costs[first:end]),
            found.nbytes[s],
        )
        for s, (first, end) in enumerate(zip(firsts, found.ends, strict=False))
    ]  # fmt: skip
    return Stages(tuple(stages), found.ns)


def costs_of(
    layers: Sequence[Callable[[Any], Any]],
    weights: Sequence[Sequence[Value]],
    example: Value,
    names: Sequence[str],
) -> list[Layer]:
    """The layers' times, measured once for the machine or stated by devices, and the bytes of each."""
    from weft.scheduler.keeping import nbytes
    from weft.scheduler.placing.pipeline import Layer

    trains = any(w.needs_grad for of in weights for w in of)
    found: list[Layer] = []
    given = example.node
    for number, (layer, own) in enumerate(zip(layers, weights, strict=True)):
        home = own[0].node.device if own else given.device  # where the layer can be called
        x = Value(buffer(given.shape, given.dtype, home, None), trains and number > 0)
        y = _result(number, layer, wrap(x))
        learned = [w for w in own if w.needs_grad]
        ahead, back = _times([y.node], names), tuple[float, ...]()
        if y.needs_grad:
            seed = Value(buffer(y.shape, y.dtype, y.node.device, None))
            wanted = [*learned, *([x] if x.needs_grad else [])]
            made = gradients([y], [seed], wanted, create_graph=False)
            both = _times([y.node, *[g.node for g in made.values()]], names)
            back = tuple([max(0.0, b - a) for a, b in zip(ahead, both, strict=True)])
        elif trains:
            back = (0.0,) * len(names)
        held = sum(nbytes(w.node) for w in own) + (KEPT_FOR_WEIGHTS - 1) * sum(
            nbytes(w.node) for w in learned
        )
        stays = _written([y.node]) if trains else 0
        if trains and not number:
            stays += nbytes(x.node)  # of later ones, what is sent to them
        found.append(Layer(ahead, back, held, stays, nbytes(y.node)))
        given = y.node
    return found


def _result(number: int, layer: Callable[[Any], Any], x: Tensor) -> Value:
    found = layer(x)
    value = getattr(found, "value", None)
    if not isinstance(value, Value):
        raise DTypeError(
            f"Pipeline: layer {number} ({describe(layer)}) gives {describe(found)}: layers of a pipeline take a tensor "
            "and give one"
        )
    return value


def _times(nodes: Sequence[Node], names: Sequence[str]) -> tuple[float, ...]:
    """The nanoseconds of computing nodes on each device."""
    from weft.scheduler.placing.trials import measured

    made = [n for n in expand_calls(nodes) if n.inputs]
    if not made:
        return (0.0,) * len(names)
    found = measured(made, names)
    return tuple([found[name] for name in names])


def _written(nodes: Sequence[Node]) -> int:
    """The bytes of all that is stored when nodes are computed."""
    from weft.core.execute.explanation import explain_nodes

    return sum(k.detail.written for k in explain_nodes(nodes).kernels)
