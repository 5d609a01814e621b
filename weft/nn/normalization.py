"""Layers that normalize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.args.modes import no_grad
from weft.core.execute.changes import restored_on_error
from weft.core.execute.realization import note
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ir.dtypes import DType, int64
from weft.nn import functional as F
from weft.nn import init
from weft.nn.module import Module, Parameter, filled


class _NormBase(Module):
    """The common base of batch and instance norms: weights, running statistics, and how they are saved."""

    _version = 2
    ranks: tuple[int, ...]
    weight: Parameter | None
    bias: Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self.register_parameter(
            "weight", Parameter(filled(1.0, (num_features,), device=device, dtype=dtype)) if affine else None
        )
        self.register_parameter(
            "bias",
            Parameter(filled(0.0, (num_features,), device=device, dtype=dtype)) if affine and bias else None,
        )
        track = track_running_stats
        self.register_buffer(
            "running_mean", filled(0.0, (num_features,), device=device, dtype=dtype) if track else None
        )
        self.register_buffer(
            "running_var", filled(1.0, (num_features,), device=device, dtype=dtype) if track else None
        )
        self.register_buffer(
            "num_batches_tracked", filled(0, (), device=device, dtype=int64) if track else None
        )

    def reset_parameters(self) -> None:
        """Back to weight 1, bias 0, and statistics of nothing seen."""
        self.reset_running_stats()
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def reset_running_stats(self) -> None:
        """Running mean 0 and variance 1."""
        if (
            self.running_mean is not None
            and self.running_var is not None
            and self.num_batches_tracked is not None
        ):
            self.running_mean.fill_(0.0)
            self.running_var.fill_(1.0)
            self.num_batches_tracked.fill_(0)

    def _check_input_dim(self, input: Tensor) -> None:
        """ShapeError for an input of the wrong number of dimensions or channels."""
        if input.ndim not in self.ranks:
            raise ShapeError(
                f"{type(self).__name__}: needs input of {' or '.join(map(str, self.ranks))} dimensions, "
                f"got shape {tuple(input.shape)}"
            )
        if input.shape[1 if input.ndim > 1 else 0] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: needs {self.num_features} channels in dimension 1, got shape "
                f"{tuple(input.shape)}"
            )

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        counted = self.num_batches_tracked if self.track_running_stats else None
        if (local_metadata.get("version") or 0) < 2 and counted is not None:  # not saved before version 2
            state_dict.setdefault(f"{prefix}num_batches_tracked", counted.detach())
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_NormBase):
    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        mean, var, count = self.running_mean, self.running_var, self.num_batches_tracked
        if not self.training or mean is None or var is None or count is None:
            return self._normalized(x)
        with restored_on_error((mean, var, count), together=True):
            with no_grad():
                count += 1
            note(count)
            return self._normalized(x)

    def _normalized(self, x: Tensor) -> Tensor:
        batch = self.training or self.running_mean is None
        mean, var = (self.running_mean, self.running_var) if self.training or not batch else (None, None)
        momentum: Any = self.momentum
        if momentum is None:  # the average of all batches so far
            counted = self.training and self.num_batches_tracked is not None
            momentum = (
                1.0 / self.num_batches_tracked.float()
                if counted and self.num_batches_tracked is not None
                else 0.0
            )
        return F.batch_norm(x, mean, var, self.weight, self.bias, batch, momentum, self.eps)


class BatchNorm1d(_BatchNorm):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, per channel.

    In training, mean and variance are the batch's and the running ones move toward them by `momentum`; in evaluation
    the running ones are used. Shapes: (n, num_features) or (n, num_features, L) -> same.
    Source: Ioffe & Szegedy 2015, arXiv:1502.03167.

    >>> weft.nn.BatchNorm1d(100)(weft.randn(20, 100)).shape
    weft.Size([20, 100])
    """

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, per channel.

    In training, mean and variance are the batch's and the running ones move toward them by `momentum`; in evaluation
    the running ones are used. Shapes: (n, num_features, H, W) -> same.
    Source: Ioffe & Szegedy 2015, arXiv:1502.03167.

    >>> weft.nn.BatchNorm2d(8)(weft.randn(4, 8, 32, 32)).shape
    weft.Size([4, 8, 32, 32])
    """

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, per channel; as BatchNorm2d, for volumes.

    Shapes: (n, num_features, D, H, W) -> same. Source: Ioffe & Szegedy 2015, arXiv:1502.03167.
    """

    ranks = (5,)


class SyncBatchNorm(_BatchNorm):
    """BatchNorm of any number of sizes. weft runs a model in one process, so there is nothing to synchronize."""

    ranks = (2, 3, 4, 5)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: str | None = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    @classmethod
    def convert_sync_batchnorm(cls, module: Any, process_group: Any = None) -> Any:
        """The module with a SyncBatchNorm of the same weights and statistics in place of each batch norm."""
        out = module
        if isinstance(module, _BatchNorm):
            out = SyncBatchNorm(
                module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats,
                process_group,
                bias=module.bias is not None,
            )  # fmt: skip
            if module.affine:
                out.weight, out.bias = module.weight, module.bias
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                setattr(out, name, getattr(module, name))
            out.training = module.training
        for name, child in module.named_children():
            out.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return out


class _InstanceNorm(_NormBase):
    """Ranks are those of batches; an example alone has one dimension less."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: str | None = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def _check_input_dim(self, input: Tensor) -> None:
        rank = self.ranks[0]
        if input.ndim not in (rank, rank - 1):
            raise ShapeError(
                f"{type(self).__name__}: needs input of {rank} dimensions, or {rank - 1} without a batch, got shape "
                f"{tuple(input.shape)}"
            )

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        rank = self.ranks[0]
        single = x.ndim == rank - 1
        out = F.instance_norm(
            x.unsqueeze(0) if single else x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            self.momentum or 0.0,
            self.eps,
        )
        return out.squeeze(0) if single else out


class InstanceNorm1d(_InstanceNorm):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, over the sizes of each channel of each example.

    Shapes: (n, num_features, L) or without n -> same. With track_running_stats, evaluation uses the running ones.
    Source: Ulyanov, Vedaldi & Lempitsky 2016, arXiv:1607.08022.
    """

    ranks = (3,)


class InstanceNorm2d(_InstanceNorm):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, over the sizes of each channel of each example.

    Shapes: (n, num_features, H, W) or without n -> same. With track_running_stats, evaluation uses the running ones.
    Source: Ulyanov, Vedaldi & Lempitsky 2016, arXiv:1607.08022.
    """

    ranks = (4,)


class InstanceNorm3d(_InstanceNorm):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, over the sizes of each channel of each example.

    Shapes: (n, num_features, D, H, W) or without n -> same. With track_running_stats, evaluation uses the running ones.
    Source: Ulyanov, Vedaldi & Lempitsky 2016, arXiv:1607.08022.
    """

    ranks = (5,)


class LocalResponseNorm(Module):
    """y = x / (k + alpha * mean of x**2 over `size` channels around)**beta

    Shapes: (n, c, ...) -> same. Source: Krizhevsky, Sutskever & Hinton, NeurIPS 2012.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: Tensor) -> Tensor:
        return F.local_response_norm(x, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class CrossMapLRN2d(LocalResponseNorm):
    """LocalResponseNorm under its older name, with its older default of k."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1) -> None:
        super().__init__(size, alpha, beta, k)


class LayerNorm(Module):
    """y = (x - mean) / sqrt(var + eps) * weight + bias over the last dimensions, which `normalized_shape` names.

    Shapes: (..., *normalized_shape) -> same. Source: Ba, Kiros & Hinton 2016, arXiv:1607.06450.

    >>> weft.nn.LayerNorm(10)(weft.randn(20, 5, 10)).shape
    weft.Size([20, 5, 10])
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = (
            (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        )
        self.eps, self.elementwise_affine = eps, elementwise_affine
        shape = self.normalized_shape
        self.register_parameter(
            "weight",
            Parameter(filled(1.0, shape, device=device, dtype=dtype)) if elementwise_affine else None,
        )
        self.register_parameter(
            "bias",
            Parameter(filled(0.0, shape, device=device, dtype=dtype))
            if elementwise_affine and bias
            else None,
        )

    def reset_parameters(self) -> None:
        """Back to weight 1 and bias 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """y = x / sqrt(mean(x**2) + eps) * weight over the last dimensions, which `normalized_shape` names.

    Shapes: (..., *normalized_shape) -> same. Source: Zhang & Sennrich 2019, arXiv:1910.07467.

    >>> weft.nn.RMSNorm(10)(weft.randn(20, 10)).shape
    weft.Size([20, 10])
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = (
            (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        )
        self.eps, self.elementwise_affine = eps, elementwise_affine
        shape = self.normalized_shape
        self.register_parameter(
            "weight",
            Parameter(filled(1.0, shape, device=device, dtype=dtype)) if elementwise_affine else None,
        )

    def reset_parameters(self) -> None:
        """Back to weight 1."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(Module):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, over groups of channels and all that follows them.

    Shapes: (n, num_channels, ...) -> same; weight and bias per channel. Source: Wu & He 2018, arXiv:1803.08494.

    >>> weft.nn.GroupNorm(3, 6)(weft.randn(20, 6, 10, 10)).shape
    weft.Size([20, 6, 10, 10])
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise ArgumentError(f"GroupNorm: {num_groups} groups do not divide {num_channels} channels")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.register_parameter(
            "weight", Parameter(filled(1.0, (num_channels,), device=device, dtype=dtype)) if affine else None
        )
        self.register_parameter(
            "bias",
            Parameter(filled(0.0, (num_channels,), device=device, dtype=dtype)) if affine and bias else None,
        )

    def reset_parameters(self) -> None:
        """Back to weight 1 and bias 0."""
        if self.weight is not None and self.bias is not None:
            init.ones_(self.weight)
            init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )
