"""Axes that are said to vary: a function is recorded at a second size at once, so that its first plan is for all sizes.

    weft.mark_dynamic(x, 0)        # x: (32, 64)
    f(x)                           # recorded for (32, 64) and for (64, 64): one plan for (n, 64), 2 <= n
    f(other)                       # of any n: recorded, and nothing is compiled

What differs between two recordings is what varies, as between two calls (scheduler/families.py). The second one works
on stand-ins without values, and nothing of it is carried out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.autograd.value import Value
from weft.core.args.axes import axis, known_sizes
from weft.core.args.handle import Handle, describe, standing_for
from weft.core.args.structure import builder
from weft.core.compile.recording import Recording, record
from weft.core.execute import run
from weft.core.execute.pending import is_static
from weft.errors import ArgumentError, DTypeError

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

Axes: TypeAlias = frozenset[tuple[int, int]]
"""Axes of arguments: the number of the tensor, and the axis."""

ALONE = 4
"""The sizes that are tried one by one where all together cannot vary."""

log = logging.getLogger(__name__)


def mark_dynamic(t: Tensor, index: int | Iterable[int]) -> None:
    """Say that the size of the axis `index` of `t`, or of several, changes from call to call of compiled functions.

    The first call that takes `t` gets a plan for all sizes; without marks the second size that comes makes it. Results
    are the same. An axis of size 0 or 1 is taken as it is, and so are axes that cannot have another size in the call.
    IndexError for an axis that `t` does not have, DTypeError for what is no tensor.

    >>> x = weft.ones(3, 2)
    >>> weft.mark_dynamic(x, 0)
    >>> weft.compile(lambda x: x.sum(0))(x)
    tensor([3., 3.])
    """
    if not isinstance(t, Handle):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DTypeError(f"mark_dynamic: expected a Tensor, got {describe(t)}")
    given = tuple(index) if isinstance(index, Iterable) else (index,)
    own = t.__dict__
    own["_dynamic"] = own.get("_dynamic", frozenset[int]()) | {
        axis("mark_dynamic", k, t.value.shape) for k in given
    }


def second_recording(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: Sequence[Tensor],
    everything: bool,
) -> Recording | None:
    """The recording of `fn` where marked axes, or `everything` that can, have another size; None where none can."""
    for axes in _candidates(tensors, everything):
        made = _recorded(fn, args, kwargs, tensors, axes)
        if made is not None:
            return made
    return None


def _candidates(tensors: Sequence[Tensor], everything: bool) -> Iterator[Axes]:
    """Axes that may vary together, the most first."""
    known = [(k, t.value.shape) for k, t in enumerate(tensors) if is_static(t.value.node)]
    sizes = {(k, a): n for k, shape in known for a, n in enumerate(shape) if n not in (0, 1)}
    together = frozenset(
        place for place in sizes if everything or place[1] in tensors[place[0]].__dict__.get("_dynamic", ())
    )
    if together:
        yield together
    if everything:
        for n in list(dict.fromkeys(sizes.values()))[:ALONE]:
            yield frozenset(place for place, size in sizes.items() if size == n)


def _recorded(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: Sequence[Tensor],
    axes: Axes,
) -> Recording | None:
    """The recording where these axes are twice as long, if the function takes that."""
    own = {k for k, _ in axes}
    given = [_stand_in(t, k, axes) if k in own else t for k, t in enumerate(tensors)]
    number = {id(t): k for k, t in enumerate(tensors)}
    other_args, other_kwargs = builder((args, kwargs), lambda t: number[id(t)])(given)
    try:
        made = record(fn, other_args, other_kwargs, given, whole=True)
    except Exception as error:  # noqa: BLE001  (any error of the function: it is for these sizes only)
        log.debug("axes %s have no other size: %s", sorted(axes), error)
        return None
    return made if isinstance(made, Recording) else None


def _stand_in(t: Tensor, number: int, axes: Axes) -> Any:
    """A tensor without value, in which the axes are twice as long."""
    v = t.value
    shape = tuple(
        [n * 2 if (number, a) in axes else n for a, n in enumerate(known_sizes("compile", v.shape))]
    )
    device = v.node.device or run.configured_device()
    node = run.deferred(shape, v.node.dtype, device, _no_value)
    return standing_for(Value(node, v.needs_grad))


def _no_value() -> memoryview:
    raise ArgumentError("a tensor that stands for one of another size has no value")
