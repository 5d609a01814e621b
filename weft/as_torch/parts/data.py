"""torch.utils.data beside weft.data: names of its internals that programs import."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from weft.data.collate import default_collate

T_co = TypeVar("T_co", covariant=True)
np_str_obj_array_pattern = re.compile(r"[SaUO]")
default_collate_err_msg_format = (
    "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"
)
default_collate_fn_map: dict[Any, Callable[..., Any]] = {}


def collate(batch: Any, *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None) -> Any:
    """default_collate, but for elements of a type that the map has a function for."""
    for kind, function in (collate_fn_map or {}).items():
        if isinstance(batch[0], kind):
            return function(batch, collate_fn_map=collate_fn_map)
    return default_collate(batch)


def functional_datapipe(name: str, *args: Any) -> Callable[[Any], Any]:
    """A decorator that gives the class."""
    return lambda cls: cls
