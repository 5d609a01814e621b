"""vmap: a function on one example becomes one on a batch. Nothing is looped over; see autograd/batching.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

from weft.autograd.batching import batched, placeholder, spread
from weft.autograd.value import Value, apply
from weft.core.args.axes import axis
from weft.core.args.handle import Handle, body, describe, wrap
from weft.core.execute.random_draws import draws
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.graph import Axes, toposort
from weft.ir.index import Int
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """A function that applies func to every slice of its arguments along in_dims, and stacks results along out_dims.

    in_dims is one dimension for all arguments, or has one for each (None: not sliced), nested as the arguments are.
    randomness: "error", "same" numbers for every example, or "different" ones. chunk_size bounds how many examples are
    computed at a time. func cannot ask for values (item, bool) of what it is given. May be nested, differentiated, and
    may differentiate.

    >>> weft.vmap(weft.dot)(weft.ones(3, 4), weft.ones(3, 4))
    tensor([4., 4., 4.])
    """
    if not callable(func):
        raise DTypeError(f"vmap: expected a function, got {describe(func)}")
    if randomness not in ("error", "same", "different"):
        raise ArgumentError(f"vmap: randomness must be 'error', 'same' or 'different', got {randomness!r}")
    if chunk_size is not None and chunk_size < 1:
        raise ArgumentError(f"vmap: chunk_size must be at least 1, got {chunk_size}")

    @wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        leaves: list[tuple[Tensor, int | None]] = []
        _match(args, _per_argument(in_dims, args), leaves)
        _match(tuple(kwargs.values()), tuple(0 for _ in kwargs), leaves)
        size = _size(leaves)
        moved = [x if k is None else _front(x, k) for x, k in leaves]
        sliced = [k is not None for _, k in leaves]
        if chunk_size is not None and isinstance(size, int) and size > chunk_size:
            return _in_chunks(func, args, kwargs, moved, sliced, size, chunk_size, out_dims, randomness)
        return _run(func, args, kwargs, moved, sliced, size, out_dims, randomness)

    return run


def _per_argument(in_dims: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(in_dims, (tuple, list)):
        return tuple(in_dims for _ in args)
    dims = tuple(cast("Sequence[Any]", in_dims))
    if len(dims) != len(args):
        raise ArgumentError(f"vmap: in_dims has {len(dims)} entries for {len(args)} arguments")
    return dims


def _match(tree: Any, dims: Any, leaves: list[tuple[Tensor, int | None]]) -> None:
    """The tensors of `tree` with the dimension that each is sliced along."""
    if isinstance(tree, Handle):
        x = wrap(tree.value)
        if dims is not None and not isinstance(dims, int):
            raise ArgumentError(f"vmap: in_dims must be an int or None for a Tensor, got {describe(dims)}")
        if dims is not None and not tree.value.shape:
            raise ShapeError(
                "vmap: a tensor without dimensions cannot be sliced; give None in in_dims for it"
            )
        leaves.append((x, None if dims is None else axis("vmap", dims, tree.value.shape)))
    elif isinstance(tree, dict):
        entries = cast("dict[Any, Any]", tree)
        for key, x in entries.items():
            _match(x, cast("dict[Any, Any]", dims)[key] if isinstance(dims, dict) else dims, leaves)
    elif isinstance(tree, (tuple, list)):
        items = cast("Sequence[Any]", tree)
        if isinstance(dims, (tuple, list)):
            each = cast("Sequence[Any]", dims)
            if len(each) != len(items):
                raise ArgumentError(f"vmap: in_dims has {len(each)} entries for a sequence of {len(items)}")
        else:
            each = [dims] * len(items)
        for x, d in zip(items, each, strict=True):
            _match(x, d, leaves)


def _size(leaves: Sequence[tuple[Tensor, int | None]]) -> Int:
    sizes = {x.value.shape[k] for x, k in leaves if k is not None}
    if not sizes:
        raise ArgumentError("vmap: at least one Tensor must be sliced, but all in_dims are None")
    if len(sizes) > 1:
        raise ShapeError(f"vmap: sliced dimensions must have one size, got {sorted(map(str, sizes))}")
    return sizes.pop()


def _front(x: Tensor, k: int) -> Tensor:
    order = (k, *(i for i in range(len(x.value.shape)) if i != k))
    return x if k == 0 else wrap(apply(Op.PERMUTE, (x.value,), Axes(order)))


def _replace(tree: Any, new: Any) -> Any:
    """`tree` with its tensors replaced by the next ones of the iterator `new`."""
    if isinstance(tree, Handle):
        return next(new)
    if isinstance(tree, dict):
        return {k: _replace(x, new) for k, x in cast("dict[Any, Any]", tree).items()}
    if isinstance(tree, tuple):
        items = [_replace(x, new) for x in cast("tuple[Any, ...]", tree)]
        kind: Any = cast("Any", tree).__class__
        return kind(*items) if hasattr(kind, "_fields") else tuple(items)
    if isinstance(tree, list):
        return [_replace(x, new) for x in cast("list[Any]", tree)]
    return tree


def _tensors(tree: Any, out: list[Tensor]) -> list[Tensor]:
    if isinstance(tree, Handle):
        out.append(wrap(tree.value))
    elif isinstance(tree, dict):
        for x in cast("dict[Any, Any]", tree).values():
            _tensors(x, out)
    elif isinstance(tree, (tuple, list)):
        for x in cast("Sequence[Any]", tree):
            _tensors(x, out)
    else:
        raise DTypeError(
            f"vmap: the function must return Tensors or containers of them, got {describe(tree)}"
        )
    return out


def _run(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], moved: Sequence[Tensor],
    sliced: Sequence[bool], size: Int, out_dims: Any, randomness: str,
) -> Any:  # fmt: skip
    ones: list[Value | None] = []
    for x, is_sliced in zip(moved, sliced, strict=True):
        v = x.value
        device = v.node.device or x.device
        ones.append(placeholder(v.shape[1:], v.dtype, device, v.needs_grad) if is_sliced else None)
    given = {one: x.value for one, x in zip(ones, moved, strict=True) if one is not None}
    stands = {one.node for one in given}
    before = draws()

    def changed(value: Value) -> None:
        if any(n in stands for n in toposort([value.node])):
            raise ArgumentError(
                "vmap: the function changes a tensor from outside in place, or adds to its .grad, which would have "
                "another value for each example; return what changes, take gradients with weft.autograd.grad, and have "
                "norms with running statistics in eval() or without them"
            )

    with body(changed):
        new = iter([x if one is None else wrap(one) for one, x in zip(ones, moved, strict=True)])
        result = func(*_replace(args, new), **_replace(kwargs, new))
    if randomness == "error" and draws() != before:
        raise ArgumentError(
            "vmap: the function draws random numbers; say randomness='different' or 'same' for every example"
        )
    found: list[Tensor] = []
    _tensors(result, found)
    done = batched([t.value for t in found], given, size, randomness == "different")
    stacked = [wrap(v if has else spread(v, size)) for v, has in done]
    places: list[tuple[Tensor, int | None]] = []
    _match_outputs(result, out_dims, places)
    final = [_back(x, k) if done[i][1] or k is not None else wrap(done[i][0]) for i, (x, (_, k)) in
             enumerate(zip(stacked, places, strict=True))]  # fmt: skip
    return _replace(result, iter(final))


def _match_outputs(result: Any, out_dims: Any, places: list[tuple[Tensor, int | None]]) -> None:
    """The dimension at which each tensor of the result gets the batch."""
    if isinstance(result, Handle):
        if isinstance(out_dims, (tuple, list)):
            each = cast("Sequence[Any]", out_dims)
            if len(each) != 1:
                raise ArgumentError(f"vmap: out_dims has {len(each)} entries for one Tensor")
            out_dims = each[0]
        places.append((wrap(result.value), out_dims))
    elif isinstance(result, (tuple, list)) and isinstance(out_dims, (tuple, list)):
        items, each = cast("Sequence[Any]", result), cast("Sequence[Any]", out_dims)
        if len(items) != len(each):
            raise ArgumentError(f"vmap: out_dims has {len(each)} entries for {len(items)} results")
        for x, d in zip(items, each, strict=True):
            _match_outputs(x, d, places)
    else:
        found: list[Tensor] = []
        places += [(t, out_dims) for t in _tensors(result, found)]


def _back(x: Tensor, k: int | None) -> Tensor:
    """The batch axis from the front to place k."""
    if k is None:
        raise ArgumentError(
            "vmap: a result that depends on the sliced arguments needs an out_dims other than None"
        )
    rank = len(x.value.shape)
    place = axis("vmap", k, x.value.shape)
    order = list(range(1, rank))
    order.insert(place, 0)
    return x if place == 0 else wrap(apply(Op.PERMUTE, (x.value,), Axes(tuple(order))))


def _in_chunks(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], moved: Sequence[Tensor],
    sliced: Sequence[bool], size: int, chunk: int, out_dims: Any, randomness: str,
) -> Any:  # fmt: skip
    from weft.core.layout.movement import cat

    parts: list[Any] = []
    for at in range(0, size, chunk):
        some = min(chunk, size - at)
        part = [x[at : at + some] if s else x for x, s in zip(moved, sliced, strict=True)]
        parts.append(_run(func, args, kwargs, part, sliced, some, out_dims, randomness))
    columns: list[list[Tensor]] = []
    for p in parts:
        found: list[Tensor] = []
        columns.append(_tensors(p, found))
    places: list[tuple[Tensor, int | None]] = []
    _match_outputs(parts[0], out_dims, places)
    joined = [
        cat([c[i] for c in columns], k) if k is not None else columns[0][i] for i, (_, k) in enumerate(places)
    ]
    return _replace(parts[0], iter(joined))
