"""Weight and spectral normalization: as plain functions (weight_g, weight_v ...), and as parametrizations."""

from __future__ import annotations

from typing import Any

from weft.core.args.modes import no_grad
from weft.core.functions.random import randn
from weft.core.functions.reductions import sum as total
from weft.core.layout.creation import as_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.nn import functional as F
from weft.nn.module import Module, Parameter
from weft.nn.utils.parametrize import computed, not_computed, register_parametrization


def norm_except(v: Tensor, dim: int | None) -> Tensor:
    """The 2-norm over all dimensions but one, which stays; over all for None (or -1, as torch has it)."""
    if dim is None or dim == -1:
        return total(v * v).sqrt()
    k = dim % v.ndim
    over = tuple(i for i in range(v.ndim) if i != k)
    return total(v * v, over, keepdim=True).sqrt() if over else v.abs()


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """w = g v / |v|, with the norm over all dimensions but `dim`: parameters name_g and name_v in place of name.

    Source: Salimans & Kingma 2016, arXiv:1602.07868.
    """
    w = _parameter("weight_norm", module, name)
    delattr(module, name)
    setattr(module, f"{name}_g", Parameter(norm_except(w.detach(), dim).realize()))
    setattr(module, f"{name}_v", Parameter(w.detach()))

    def get(self: Module) -> Tensor:
        g, v = vars(self)[f"{name}_g"], vars(self)[f"{name}_v"]
        return v * (g / norm_except(v, dim))

    computed(module, name, get)
    return module


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Undo weight_norm, with the present value."""
    if f"{name}_g" not in vars(module):
        raise ArgumentError(f"remove_weight_norm: {type(module).__name__} has no weight norm on {name!r}")
    value = getattr(module, name).detach().realize()
    not_computed(module, name)
    delattr(module, f"{name}_g")
    delattr(module, f"{name}_v")
    setattr(module, name, Parameter(value))
    return module


def _parameter(op: str, module: Module, name: str) -> Parameter:
    w = vars(module).get(name)
    if not isinstance(w, Parameter):
        raise ArgumentError(f"{op}: {type(module).__name__} has no parameter {name!r}")
    return w


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, g: Tensor, v: Tensor) -> Tensor:
        return v * (g / norm_except(v, self.dim))

    def right_inverse(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Norms and directions of a weight."""
        return norm_except(w.detach(), self.dim).realize(), w


def parametrized_weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """weight_norm as a parametrization (torch.nn.utils.parametrizations.weight_norm)."""
    return register_parametrization(module, name, _WeightNorm(dim), unsafe=True)


class _SpectralNorm(Module):
    """w / s, s the largest singular value, which power iteration on _u and _v follows, a step per reading."""

    def __init__(self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12) -> None:
        super().__init__()
        if n_power_iterations < 1:
            raise ArgumentError(
                f"spectral_norm: n_power_iterations must be at least 1, got {n_power_iterations}"
            )
        self.n_power_iterations, self.dim, self.eps = n_power_iterations, dim % max(weight.ndim, 1), eps
        if weight.ndim > 1:
            rows, columns = self.matrix(weight).shape
            self.register_buffer("_u", F.normalize(randn(rows, dtype=weight.dtype), dim=0, eps=eps).realize())
            self.register_buffer(
                "_v", F.normalize(randn(columns, dtype=weight.dtype), dim=0, eps=eps).realize()
            )
            self.iterate(weight, 15)

    _u: Tensor
    _v: Tensor

    def matrix(self, w: Tensor) -> Tensor:
        """The weight as a matrix with `dim` as its rows."""
        return w.movedim(self.dim, 0).flatten(1)

    def iterate(self, weight: Tensor, steps: int) -> None:
        """Move _u and _v toward the first singular vectors."""
        with no_grad():
            m = self.matrix(weight.detach())
            u, v = self._u, self._v
            for _ in range(steps):
                u = F.normalize(m @ v, dim=0, eps=self.eps)
                v = F.normalize(m.T @ u, dim=0, eps=self.eps)
            self._u.copy_(u)
            self._v.copy_(v)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        if self.training:
            self.iterate(weight, self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()
        return weight / (u @ (self.matrix(weight) @ v))

    def right_inverse(self, value: Tensor) -> Tensor:
        """The value itself: it is normalized when read."""
        return value


def parametrized_spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """spectral_norm as a parametrization (torch.nn.utils.parametrizations.spectral_norm)."""
    w = _parameter("spectral_norm", module, name)
    transposed = type(module).__name__.startswith("ConvTranspose")
    axis = (1 if transposed else 0) if dim is None else dim
    return register_parametrization(module, name, _SpectralNorm(w, n_power_iterations, axis, eps))


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """w = w_orig / s, s the largest singular value: a parameter name_orig, and buffers name_u and name_v.

    Each call in training takes n_power_iterations steps of the power iteration that finds s.
    Source: Miyato et al. 2018, arXiv:1802.05957.
    """
    w = _parameter("spectral_norm", module, name)
    transposed = type(module).__name__.startswith("ConvTranspose")
    state = _SpectralNorm(w, n_power_iterations, (1 if transposed else 0) if dim is None else dim, eps)
    delattr(module, name)
    setattr(module, f"{name}_orig", Parameter(w.detach()))
    module.register_buffer(f"{name}_u", vars(state)["_u"])
    module.register_buffer(f"{name}_v", vars(state)["_v"])

    def iterate(self: Module, _args: Any) -> None:
        if self.training:
            vars(state).update({f"_{k}": vars(self)[f"{name}_{k}"] for k in "uv"})
            state.iterate(vars(self)[f"{name}_orig"], n_power_iterations)

    def get(self: Module) -> Tensor:
        weight = vars(self)[f"{name}_orig"]
        u, v = (as_tensor(vars(self)[f"{name}_{k}"]).detach() for k in "uv")
        return weight / (u @ (state.matrix(weight) @ v))

    computed(module, name, get)
    vars(module)[f"_{name}_spectral"] = module.register_forward_pre_hook(iterate)
    return module


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Undo spectral_norm, with the present value."""
    if f"{name}_orig" not in vars(module):
        raise ArgumentError(f"remove_spectral_norm: {type(module).__name__} has no spectral norm on {name!r}")
    value = getattr(module, name).detach().realize()
    not_computed(module, name)
    vars(module).pop(f"_{name}_spectral").remove()
    delattr(module, f"{name}_orig")
    for k in "uv":
        delattr(module, f"{name}_{k}")
    setattr(module, name, Parameter(value))
    return module
