"""Parameters parts of which are zero: name_orig is learned, name_mask is a buffer, and name is their product.

The product is made anew before each call of the module. `remove` makes a plain parameter of it again.
"""
# Tests: tests/nn/test_module_internals.py

# Modules have members under torch's names, with underscores.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any, ClassVar, cast

from weft.core.args.modes import no_grad
from weft.core.functions.random import rand, rand_like
from weft.core.layout.creation import ones_like, zeros_like
from weft.core.linear_algebra.torch_products import norm
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError
from weft.errors import IndexError as OutOfRangeError
from weft.nn.module import Module
from weft.nn.utils.convert_parameters import parameters_to_vector

Dim = int


class BasePruningMethod(ABC):
    """Base: a subclass says the mask of a tensor in compute_mask. As a forward pre-hook it makes the product."""

    PRUNING_TYPE: ClassVar[str]
    """The masked units: "unstructured" elements, "structured" slices along `dim`, all at once ("global")."""

    _tensor_name: str
    dim: int

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self._tensor_name, self.apply_mask(module))

    @abstractmethod
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask, ones and zeros, of a tensor that has one already."""

    def apply_mask(self, module: Module) -> Tensor:
        """The original times the mask."""
        orig = getattr(module, f"{self._tensor_name}_orig")
        return getattr(module, f"{self._tensor_name}_mask").to(dtype=orig.dtype) * orig

    @classmethod
    def apply(
        cls, module: Module, name: str, *args: Any, importance_scores: Tensor | None = None, **kwargs: Any
    ) -> BasePruningMethod:
        """Prune module.name; what is pruned already is pruned further, by what is left."""
        method: BasePruningMethod = cls(*args, **kwargs)
        method._tensor_name = name
        before = [(k, h) for k, h in module._forward_pre_hooks.items() if _prunes(h, name)]
        for k, hook in before:
            del module._forward_pre_hooks[k]
            container = hook if isinstance(hook, PruningContainer) else PruningContainer(hook)
            container.add_pruning_method(method)
            method = container
        orig: Any = getattr(module, name)
        scores = orig if importance_scores is None else importance_scores
        if scores.shape != orig.shape:
            raise ArgumentError(
                f"prune: importance_scores should have the same shape as parameter {name}, got "
                f"{tuple(scores.shape)} and {tuple(orig.shape)}"
            )
        with no_grad():
            mask = getattr(module, f"{name}_mask").clone() if before else ones_like(orig)
            mask = method.compute_mask(scores.detach(), default_mask=mask)
        if not before:
            del module._parameters[name]
            module.register_parameter(f"{name}_orig", orig)
        module.register_buffer(f"{name}_mask", mask)
        setattr(module, name, method.apply_mask(module))
        module.register_forward_pre_hook(method)
        return method

    def prune(
        self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None
    ) -> Tensor:
        """A tensor times its mask."""
        scores = t if importance_scores is None else importance_scores
        return t * self.compute_mask(scores, ones_like(t) if default_mask is None else default_mask)

    def remove(self, module: Module) -> None:
        """Make a plain parameter of the product."""
        name = self._tensor_name
        value = self.apply_mask(module).detach()
        if hasattr(module, name):
            delattr(module, name)
        orig = module._parameters[f"{name}_orig"]
        orig.data = value
        del module._parameters[f"{name}_orig"]
        del module._buffers[f"{name}_mask"]
        setattr(module, name, orig)


def _prunes(hook: object, name: str) -> bool:
    return isinstance(hook, BasePruningMethod) and hook._tensor_name == name


class PruningContainer(BasePruningMethod):
    """Several methods for one parameter, one after the other: each prunes what the ones before it left."""

    PRUNING_TYPE = "global"

    def __init__(self, *args: BasePruningMethod) -> None:
        self._pruning_methods: tuple[BasePruningMethod, ...] = ()
        if len(args) == 1:
            self._tensor_name = args[0]._tensor_name
        for method in args:
            self.add_pruning_method(method)

    def add_pruning_method(self, method: BasePruningMethod) -> None:
        """Add one, of the same parameter."""
        if not isinstance(method, BasePruningMethod):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DTypeError(f"{type(method)} is not a BasePruningMethod subclass")
        if method._tensor_name != self._tensor_name:
            raise ArgumentError(
                f"Can only add pruning methods acting on the parameter named '{self._tensor_name}' to "
                f"PruningContainer. Found '{method._tensor_name}'"
            )
        self._pruning_methods += (method,)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self._pruning_methods)

    def __getitem__(self, idx: int) -> BasePruningMethod:
        return self._pruning_methods[idx]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask so far, in which the last method has masked more."""
        method = self._pruning_methods[-1]
        left: Any
        if method.PRUNING_TYPE == "unstructured":
            left = default_mask == 1
        elif method.PRUNING_TYPE == "structured":
            along = method.dim % t.ndim
            kept = default_mask.sum(tuple(d for d in range(t.ndim) if d != along)) != 0
            left = tuple(kept if d == along else slice(None) for d in range(t.ndim))
        elif method.PRUNING_TYPE == "global":
            left = (slice(None),) * t.ndim
        else:
            raise ArgumentError(f"Unrecognized PRUNING_TYPE {method.PRUNING_TYPE}")
        mask = default_mask.to(t.dtype).clone()
        mask[left] = method.compute_mask(t[left], default_mask=default_mask[left]).to(t.dtype)
        return mask


class Identity(BasePruningMethod):
    """A mask of ones."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask


class _Amount(BasePruningMethod):
    """Base of those that prune a number, or a share, of elements or slices."""

    def __init__(self, amount: float) -> None:
        if not isinstance(amount, Real):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DTypeError(f"Invalid type for amount: {amount}. Must be int or float.")
        if amount < 0 or (not isinstance(amount, Integral) and amount > 1):
            raise ArgumentError(
                f"amount={amount} should either be a float in the range [0, 1] or a non-negative integer"
            )
        self.amount = amount

    def count(self, size: Any) -> int:
        """The number pruned out of `size`."""
        if not isinstance(self.amount, Integral):
            return round(self.amount * size)
        if self.amount > size:
            raise ArgumentError(
                f"amount={self.amount} should be smaller than the number of parameters to prune={size}"
            )
        return int(self.amount)


def _without(default_mask: Tensor, places: Tensor) -> Tensor:
    """The mask with zeros at places in its flat order."""
    flat = default_mask.reshape(-1).index_fill(0, places, 0)
    return flat.reshape(default_mask.shape)


class RandomUnstructured(_Amount):
    """Random elements."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        n = self.count(t.numel())
        return (
            default_mask.clone()
            if n == 0
            else _without(default_mask, rand_like(t).reshape(-1).topk(n).indices)
        )


class L1Unstructured(_Amount):
    """The elements of least magnitude."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        n = self.count(t.numel())
        if n == 0:
            return default_mask.clone()
        return _without(default_mask, t.abs().reshape(-1).topk(n, largest=False).indices)


class _Slices(_Amount):
    """Base of those that prune slices along `dim`."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount: float, dim: Dim = -1) -> None:
        super().__init__(amount)
        self.dim = dim

    def scores(self, t: Tensor) -> Tensor:
        """The importance of each slice."""
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        if t.ndim <= 1:
            raise ArgumentError(
                "Structured pruning can only be applied to multidimensional tensors. Found tensor of shape "
                f"{tuple(t.shape)} with {t.ndim} dims"
            )
        if self.dim >= t.ndim:
            raise OutOfRangeError(f"Invalid index {self.dim} for tensor of size {tuple(t.shape)}")
        size: Any = t.shape[self.dim]
        n = self.count(size)
        if n == 0:
            return default_mask
        kept = self.scores(t).topk(size - n, largest=True).indices
        row = zeros_like(t.select(self.dim, 0).reshape(-1)[:1]).expand(size).index_fill(0, kept, 1)
        shape = [1] * t.ndim
        shape[self.dim] = size
        return row.reshape(shape) * default_mask.to(t.dtype)


class RandomStructured(_Slices):
    """Random slices along `dim`."""

    def scores(self, t: Tensor) -> Tensor:
        return rand(t.shape[self.dim])


class LnStructured(_Slices):
    """The slices along `dim` of least n-norm."""

    def __init__(self, amount: float, n: Any, dim: Dim = -1) -> None:
        super().__init__(amount, dim)
        self.n = n

    def scores(self, t: Tensor) -> Tensor:
        return norm(t, self.n, tuple(d for d in range(t.ndim) if d != self.dim % t.ndim))


class CustomFromMask(BasePruningMethod):
    """A mask that is given."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        if default_mask.shape != self.mask.shape:
            raise ArgumentError(
                f"prune: the mask has shape {tuple(self.mask.shape)}, the parameter {tuple(default_mask.shape)}"
            )
        return default_mask * self.mask.to(dtype=default_mask.dtype)


def identity(module: Module, name: str) -> Module:
    """Prune nothing yet."""
    Identity.apply(module, name)
    return module


def random_unstructured(module: Module, name: str, amount: float) -> Module:
    """Prune random elements, a number or a share of them."""
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(
    module: Module, name: str, amount: float, importance_scores: Tensor | None = None
) -> Module:
    """Prune the elements of least magnitude, a number or a share of them."""
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_structured(module: Module, name: str, amount: float, dim: Dim) -> Module:
    """Prune random slices along a dimension."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: Module, name: str, amount: float, n: Any, dim: Dim, importance_scores: Tensor | None = None
) -> Module:
    """Prune the slices along a dimension of least n-norm."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module: Module, name: str, mask: Tensor) -> Module:
    """Prune by a mask that is given."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(
    parameters: Iterable[tuple[Module, str]],
    pruning_method: Any,
    importance_scores: Any = None,
    **kwargs: Any,
) -> None:
    """Prune elements of several parameters, (module, name), that are compared with one another."""
    if not isinstance(parameters, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DTypeError("global_unstructured(): parameters is not an Iterable")
    if importance_scores is not None and not isinstance(importance_scores, dict):
        raise DTypeError("global_unstructured(): importance_scores must be of type dict")
    places: Sequence[tuple[Module, str]] = list(parameters)
    given = cast("dict[Any, Any]", importance_scores or {})
    method: BasePruningMethod = pruning_method(**kwargs)
    if method.PRUNING_TYPE != "unstructured":
        raise DTypeError(
            f'Only "unstructured" PRUNING_TYPE supported for the `pruning_method`. Found method {pruning_method} of '
            f"type {method.PRUNING_TYPE}"
        )
    with no_grad():
        scores = parameters_to_vector([given.get((m, n), getattr(m, n)).detach() for m, n in places])
        masks = [getattr(m, f"{n}_mask", None) for m, n in places]
        default = parameters_to_vector(
            [ones_like(getattr(m, n)) if k is None else k for k, (m, n) in zip(masks, places, strict=True)]
        )
    container, method._tensor_name = PruningContainer(), "temp"
    container._tensor_name = "temp"
    container.add_pruning_method(method)
    final, at = container.compute_mask(scores, default), 0
    for module, name in places:
        size: Any = getattr(module, name).numel()
        custom_from_mask(module, name, final[at : at + size].reshape(getattr(module, name).shape))
        at += size


def remove(module: Module, name: str) -> Module:
    """Make a plain parameter of a pruned one."""
    for k, hook in list(module._forward_pre_hooks.items()):
        if _prunes(hook, name):
            hook.remove(module)
            del module._forward_pre_hooks[k]
            return module
    raise ArgumentError(
        f"Parameter '{name}' of module {type(module).__name__} has to be pruned before pruning can be removed"
    )


def is_pruned(module: Module) -> bool:
    """True where a parameter here or below is pruned."""
    return any(
        isinstance(hook, BasePruningMethod)
        for m in module.modules()
        for hook in m._forward_pre_hooks.values()
    )
