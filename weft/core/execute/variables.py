"""Runtime variables: sizes and offsets given when a tensor is computed. One program serves all values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.args.handle import value_of, wrap
from weft.core.execute import tracing
from weft.errors import ArgumentError
from weft.ir.index import Var

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def Variable(name: str, lo: int, hi: int) -> Var:
    """An integer known to be between `lo` and `hi`, to be used where a size or a slice's bound is expected.

    n = weft.Variable("n", 1, 512)
    y = x[:n].softmax(-1)         # its shape is (n, ...)
    weft.bind(y, n=17)            # computed for n = 17; other values run the same program

    ArgumentError for bounds that are negative or in the wrong order, or a name that is no identifier.
    """
    if not name.isidentifier():
        raise ArgumentError(f"Variable: the name must be an identifier, got {name!r}")
    if not 0 <= lo <= hi:
        raise ArgumentError(f"Variable: {name} needs 0 <= lo <= hi, got {lo} and {hi}")
    return Var(name, lo, hi)


def bind(*tensors: Tensor, **values: int) -> Tensor | tuple[Tensor, ...]:
    """Tensors computed for these values of the runtime variables they depend on: new leaves, of constant shape.

    One tensor gives a Tensor, several give a tuple and are computed together. No gradient flows through. ArgumentError
    for a variable that has no value or one out of its bounds, IndexError for one that leads out of a tensor.
    """
    from weft.ir import graph
    from weft.scheduler.realize import evaluate

    if not tensors:
        raise ArgumentError("bind: needs at least one Tensor")
    tracing.host_only("bind")
    from weft.autograd.value import Value

    nodes = [value_of("bind", t).node for t in tensors]
    bound = [
        wrap(Value(graph.buffer(s.shape, s.dtype, s.device.info.name, s))) for s in evaluate(nodes, values)
    ]
    return bound[0] if len(bound) == 1 else tuple(bound)
