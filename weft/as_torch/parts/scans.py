"""torch._higher_order_ops: scans by an associative function, and loops on values that are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import weft
from weft.as_torch.parts.pytree import tree_flatten
from weft.core.tensor.tensor import Tensor

__all__ = ["associative_scan", "while_loop"]


def associative_scan(
    combine_fn: Callable[[Any, Any], Any],
    xs: Any,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:
    """x[0], combine(x[0], x[1]), combine(combine(x[0], x[1]), x[2]) ... along an axis, in some log2(n) combinations.

    `xs` is a tensor or a tree of them; with combine_mode "generic", combine_fn is of elements without the axis.
    Source: Blelloch 1990, "Prefix sums and their applications".
    """
    leaves, spec = tree_flatten(xs)
    moved = [x.flip(dim).movedim(dim, 0) if reverse else x.movedim(dim, 0) for x in leaves]
    function = combine_fn if combine_mode == "pointwise" else weft.vmap(combine_fn)

    def combine(a: Sequence[Tensor], b: Sequence[Tensor]) -> list[Tensor]:
        found, _ = tree_flatten(function(spec.unflatten(a), spec.unflatten(b)))
        return found

    scanned = [y.movedim(0, dim) for y in _scan(combine, moved)]
    return spec.unflatten([y.flip(dim) for y in scanned] if reverse else scanned)


def _scan(
    combine: Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]], xs: list[Tensor]
) -> list[Tensor]:
    n = len(xs[0])
    if n < 2:
        return xs
    odd = _scan(combine, combine([x[: n - 1 : 2] for x in xs], [x[1::2] for x in xs]))
    rest = combine([y[: (n - 1) // 2] for y in odd], [x[2::2] for x in xs]) if n > 2 else []
    even = [weft.cat([x[:1], r]) for x, r in zip(xs, rest, strict=True)] if n > 2 else [x[:1] for x in xs]
    return [_interleaved(e, o, n) for e, o in zip(even, odd, strict=True)]


def _interleaved(even: Tensor, odd: Tensor, n: int) -> Tensor:
    pairs = weft.stack([even[: n // 2], odd], 1).flatten(0, 1)
    return weft.cat([pairs, even[-1:]]) if n % 2 else pairs


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Any) -> Any:
    """carried = body(*carried) while cond(*carried), whose value is computed each time."""
    carried = tuple(carried_inputs)
    while bool(cond_fn(*carried)):
        carried = tuple(body_fn(*carried))
    return carried
