"""torch.nn.modules.utils: a number repeated, for sizes of kernels and strides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast


def _repeated(n: int, x: Any) -> tuple[Any, ...]:
    return tuple(cast("Iterable[Any]", x)) if isinstance(x, Iterable) else (x,) * n


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    """The function that gives a tuple as it is, and a number n times."""
    return partial(_repeated, n)


_single, _pair, _triple, _quadruple = (_ntuple(n) for n in (1, 2, 3, 4))


def _reverse_repeat_tuple(t: Sequence[Any], n: int) -> tuple[Any, ...]:
    """The entries from the last to the first, each n times: sizes as padding takes them."""
    return tuple(x for x in reversed(t) for _ in range(n))


def _list_with_default(out_size: Sequence[int | None], defaults: Sequence[int]) -> list[int]:
    """The sizes, those that are None from the end of the defaults."""
    last = defaults[len(defaults) - len(out_size) :]
    return [d if n is None else n for n, d in zip(out_size, last, strict=True)]


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Take a prefix such as "module." off the names of a state dict that have it, in place."""
    for name in list(state_dict):
        if name.startswith(prefix):
            state_dict[name[len(prefix) :]] = state_dict.pop(name)
    metadata = getattr(state_dict, "_metadata", None)
    if metadata is not None:
        for name in list(metadata):
            if name and f"{name}.".startswith(prefix):
                metadata[name[len(prefix) :]] = metadata.pop(name)


__all__ = [
    "_list_with_default", "_reverse_repeat_tuple", "consume_prefix_in_state_dict_if_present",
    "_ntuple", "_pair", "_quadruple", "_single", "_triple",
]  # fmt: skip
