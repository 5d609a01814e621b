"""Layers that multiply by a matrix, or pick its rows."""

from __future__ import annotations

import math

from weft.core import functional as F
from weft.core.creation import empty
from weft.core.modes import no_grad
from weft.core.tensor import Tensor
from weft.errors import ArgumentError
from weft.ir.dtypes import DType
from weft.nn import init
from weft.nn.module import Module, Parameter


class Identity(Module):
    """y = x. Arguments are ignored, so that it can take the place of any layer."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return x


class Linear(Module):
    """y = x @ weight.T + bias

    Shapes: (..., in_features) -> (..., out_features); weight (out_features, in_features), bias (out_features).
    Both start uniform on +-1/sqrt(in_features).

    >>> weft.nn.Linear(20, 30)(weft.randn(128, 20)).shape
    (128, 30)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None
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
    (2, 2, 3)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(
                f"Embedding: padding_idx {padding_idx} is out of range for {num_embeddings} embeddings"
            )
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
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
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None
    ) -> Embedding:
        """A layer with the rows of `embeddings`, which stay as they are if `freeze`."""
        rows, columns = (n for n in embeddings.shape if isinstance(n, int))
        layer = cls(rows, columns, padding_idx)
        layer.weight = Parameter(embeddings, requires_grad=not freeze)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
