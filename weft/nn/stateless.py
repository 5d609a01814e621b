"""A module as a function of its parameters and buffers."""
# Tests: tests/nn/test_module_internals.py, tests/autograd/test_tools.py

# Modules have members under torch's names, with underscores.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from weft.core.layout.movement import stack
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.nn.members import Members
from weft.nn.module import Module


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: object = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """module(*args) with tensors in place of the parameters and buffers of these names; the module stays as it is.

    >>> weft.func.grad(lambda w: functional_call(model, w, (x,)).sum())(dict(model.named_parameters()))
    """
    given: dict[str, Tensor] = {}
    parts = parameter_and_buffer_dicts
    for part in [parts] if isinstance(parts, Mapping) else parts:
        given.update(part)
    own = dict(module.named_tensors())
    unknown = [k for k in given if k not in own]
    missing = [k for k in own if k not in given]
    if unknown or (strict and missing):
        raise ArgumentError(
            f"functional_call: unknown names {unknown}" + (f", missing {missing}" if strict else "")
        )
    if tie_weights:
        for name, x in own.items():
            twin = next((k for k in given if own[k] is x), None)
            if twin is not None and name not in given:
                given[name] = given[twin]
    places: list[tuple[Members, str, Any]] = []
    for name, x in given.items():
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        members = owner._parameters if leaf in owner._parameters else owner._buffers
        places.append((members, leaf, members[leaf]))
        members[leaf] = x
    try:
        items = () if args is None else cast("tuple[Any, ...]", args) if isinstance(args, tuple) else (args,)
        return module(*items, **(kwargs or {}))
    finally:
        for members, leaf, before in places:
            members[leaf] = before


def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters and the buffers of models of one kind, each stacked along a new first dimension, for vmap."""
    if not models or any(type(m) is not type(models[0]) for m in models):
        raise ArgumentError("stack_module_state: needs models, all of one class")
    parameters = {
        name: stack([dict(m.named_parameters())[name].detach() for m in models]).requires_grad_(
            p.requires_grad
        )
        for name, p in models[0].named_parameters()
    }
    buffers = {
        name: stack([dict(m.named_buffers())[name] for m in models]) for name, _ in models[0].named_buffers()
    }
    return parameters, buffers
