"""Layers that multiply by a matrix, or pick its rows."""

from __future__ import annotations

import math

from weft.core.args.modes import no_grad
from weft.core.layout.creation import empty
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ir.dtypes import DType
from weft.nn import functional as F
from weft.nn import init
from weft.nn.module import Module, Parameter


class Identity(Module):
    """y = x. Arguments are ignored, so that it can take the place of any layer."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


class Linear(Module):
    """y = x @ weight.T + bias

    Shapes: (..., in_features) -> (..., out_features); weight (out_features, in_features), bias (out_features).
    Both start uniform on +-1/sqrt(in_features).

    >>> weft.nn.Linear(20, 30)(weft.randn(128, 20)).shape
    weft.Size([128, 30])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty(out_features, in_features, device=device, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )


class Embedding(Module):
    """y[..., :] = weight[x[...]]: a row for each number.

    Shapes: (...) of int -> (..., embedding_dim); weight (num_embeddings, embedding_dim), at first standard normal. The
    row `padding_idx` starts as zeros and gets no gradient.

    >>> weft.nn.Embedding(10, 3)(weft.tensor([[1, 2], [4, 9]])).shape
    weft.Size([2, 2, 3])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(
                f"Embedding: padding_idx {padding_idx} is out of range for {num_embeddings} embeddings"
            )
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.sparse = sparse
        if _weight is not None:
            _check_table("Embedding", _weight, num_embeddings, embedding_dim)
            self.weight = Parameter(_weight, requires_grad=not _freeze)
        else:
            table = empty(num_embeddings, embedding_dim, device=device, dtype=dtype)
            self.weight = Parameter(table, requires_grad=not _freeze)
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0.0

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Embedding:
        """A layer with the rows of `embeddings`, which stay as they are if `freeze`."""
        rows, columns = (n for n in embeddings.shape if isinstance(n, int))
        return cls(
            rows, columns, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, embeddings, freeze
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(
            x,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


def _check_table(name: str, weight: Tensor, rows: int, columns: int) -> None:
    if weight.shape != (rows, columns):
        raise ShapeError(f"{name}: _weight must have shape ({rows}, {columns}), got {tuple(weight.shape)}")


class EmbeddingBag(Module):
    """The sum, mean or maximum of the rows of each bag of indices.

    Shapes: (bags, length) of int, or (all indices) with offsets (bags), where each bag begins -> (bags, embedding_dim).

    >>> weft.nn.EmbeddingBag(10, 3, mode="sum")(weft.tensor([[1, 2], [4, 9]])).shape
    weft.Size([2, 3])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(
                f"EmbeddingBag: padding_idx {padding_idx} is out of range for {num_embeddings} embeddings"
            )
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.sparse, self.include_last_offset = sparse, include_last_offset
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        if _weight is not None:
            _check_table("EmbeddingBag", _weight, num_embeddings, embedding_dim)
            self.weight = Parameter(_weight)
        else:
            self.weight = Parameter(empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0.0

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, mode: str = "mean", padding_idx: int | None = None
    ) -> EmbeddingBag:
        """A layer with the rows of `embeddings`, which stay as they are if `freeze`."""
        rows, columns = (n for n in embeddings.shape if isinstance(n, int))
        layer = cls(rows, columns, mode=mode, padding_idx=padding_idx, _weight=embeddings)
        layer.weight.requires_grad_(not freeze)
        return layer

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}"


class Bilinear(Module):
    """y_o = x1' W_o x2 + b_o

    Shapes: (..., in1_features), (..., in2_features) -> (..., out_features); weight (out, in1, in2).

    >>> weft.nn.Bilinear(20, 30, 40)(weft.randn(128, 20), weft.randn(128, 30)).shape
    weft.Size([128, 40])
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if in1_features < 1:
            raise ArgumentError(f"Bilinear: in1_features must be at least 1, got {in1_features}")
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = Parameter(empty(out_features, in1_features, in2_features, device=device, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        bound = 1 / math.sqrt(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )


class CosineSimilarity(Module):
    """x1 . x2 / (|x1| |x2|) along `dim`, each norm at least eps"""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps over the last dimension"""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
