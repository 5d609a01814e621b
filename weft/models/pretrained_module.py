"""The base of models that a folder holds: what its files may call them, and what they may hold besides."""
# Tests: tests/models/test_decoders.py

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Self

from weft import Tensor, nn
from weft.errors import ShapeError


def sizes(x: Tensor) -> tuple[int, ...]:
    """A shape of known sizes; ShapeError for one with runtime variables."""
    known = tuple(n for n in x.shape if isinstance(n, int))
    if len(known) != x.ndim:
        raise ShapeError(f"weft.models: needs a tensor of known sizes here, got {tuple(x.shape)}")
    return known


class PretrainedModule(nn.Module):
    """A model made from a configuration, `cls(config)`, whose weights `from_pretrained` reads.

    `kinds`: the `model_type`s (or `_class_name`s) of config.json that it is. `config`: what reads config.json.
    `left_out`: beginnings and ends of names in files that it has no use for.
    """

    kinds: ClassVar[tuple[str, ...]] = ()
    config: ClassVar[Any]
    left_out: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, config: Any, names: Collection[str]) -> Self:
        """The model of a configuration, for weights of these names."""
        return cls(config)
