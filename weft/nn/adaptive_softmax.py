"""Losses that contain the linear map of a large vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, cast

from weft.core.layout.movement import cat
from weft.core.pointwise.elementwise import where
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ir.dtypes import DType
from weft.lazy_dataclass import dataclass
from weft.nn import functional as F
from weft.nn.containers import ModuleList, Sequential
from weft.nn.linear import Linear
from weft.nn.module import Module


class Scored(NamedTuple):
    """The log probability of each target, and the negative mean of them."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Log softmax over many classes, of which rare ones have fewer features.

    log p(class) is the head's where the class is below the first cutoff; else the head's for the class's cluster plus
    log softmax of the cluster's own small map. Classes are numbered from the most frequent on. All clusters are
    computed for all rows: what is picked depends on values, which a lazy graph does not look at.

    Shapes: input (n, in_features), target (n) -> (output (n), loss ()); or without n.
    Source: Grave et al. 2016, arXiv:1609.04309.

    >>> loss = weft.nn.AdaptiveLogSoftmaxWithLoss(64, 1000, cutoffs=[20, 200])(x, target).loss
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        cuts = list(cutoffs)
        if not cuts or cuts != sorted(set(cuts)) or cuts[0] < 1 or cuts[-1] >= n_classes:
            raise ArgumentError(
                "AdaptiveLogSoftmaxWithLoss: cutoffs must be ascending ints between 1 and n_classes - 1, without "
                f"repetition, got {cuts} for {n_classes} classes"
            )
        self.in_features, self.n_classes, self.cutoffs = in_features, n_classes, [*cuts, n_classes]
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = cuts[0], len(cuts)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, head_bias, device, dtype)
        self.tail = ModuleList()
        for k, (low, high) in enumerate(pairwise(self.cutoffs), 1):
            hidden = int(in_features // div_value**k)
            self.tail.append(
                Sequential(
                    Linear(in_features, hidden, False, device, dtype),
                    Linear(hidden, high - low, False, device, dtype),
                )
            )

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        for module in (self.head, *(layer for pair in self.tail for layer in cast("Sequential", pair))):
            cast("Linear", module).reset_parameters()

    def forward(self, input: Tensor, target: Tensor) -> Scored:
        if target.ndim > 1 or input.ndim != target.ndim + 1:
            raise ShapeError(
                f"AdaptiveLogSoftmaxWithLoss: input must be (n, features) for target (n), or both without n, got "
                f"shapes {tuple(input.shape)} and {tuple(target.shape)}"
            )
        x, t = (input, target) if target.ndim else (input.unsqueeze(0), target.unsqueeze(0))
        if x.shape[0] != t.shape[0]:
            raise ShapeError(
                f"AdaptiveLogSoftmaxWithLoss: {x.shape[0]} rows of input, {t.shape[0]} targets; both must agree"
            )
        head = F.log_softmax(self.head(x), -1)
        place, inside = t, head.sum(-1) * 0
        for k, (low, high) in enumerate(pairwise(self.cutoffs)):
            here = (t >= low) & (t < high)
            own = F.log_softmax(self.tail[k](x), -1).gather(1, where(here, t - low, 0).unsqueeze(1))
            inside = where(here, own.squeeze(1), inside)
            place = where(here, self.shortlist_size + k, place)
        output = inside + head.gather(1, place.unsqueeze(1)).squeeze(1)
        loss = -output.mean()
        return Scored(output if target.ndim else output.squeeze(0), loss)

    def log_prob(self, input: Tensor) -> Tensor:
        """The log probabilities of all classes. Shapes: (n, in_features) -> (n, n_classes)."""
        head = F.log_softmax(self.head(input), -1)
        parts = [head[:, : self.shortlist_size]]
        for k in range(self.n_clusters):
            at = self.shortlist_size + k
            parts.append(F.log_softmax(self.tail[k](input), -1) + head[:, at : at + 1])
        return cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """The most likely class of each row. Shapes: (n, in_features) -> (n)."""
        return self.log_prob(input).argmax(1)


@dataclass(frozen=True, slots=True)
class LinearCrossEntropyOptions:
    """Options of torch's computation in chunks. Taken and without effect: the fusion of the graph decides."""

    allow_retain_graph: bool = False
    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"
    acc_policy: str = "auto"
    acc_dtype: DType | None = None


class LinearCrossEntropyLoss(Module):
    """cross_entropy(linear(input), target), with the linear map's parameters inside.

    Shapes: input (n, in_features) or (in_features); target (n, *out_features) of class indices, or probabilities
    (n, num_classes, *out_features).
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: str | None = None,
        dtype: DType | None = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: LinearCrossEntropyOptions | None = None,
    ) -> None:
        super().__init__()
        self.num_classes, self.out_features = num_classes, tuple(out_features)
        rows = num_classes
        for n in self.out_features:
            rows *= n
        self.linear = Linear(in_features, rows, bias, device, dtype)
        self.register_buffer("weight", weight)
        self.reduction, self.ignore_index, self.label_smoothing = reduction, ignore_index, label_smoothing
        self.options = options

    weight: Tensor | None

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        shape, bias = (self.num_classes, *self.out_features), self.linear.bias
        return F.linear_cross_entropy(
            input,
            self.linear.weight.reshape(*shape, -1),
            target,
            linear_bias=None if bias is None else bias.reshape(shape),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            options=self.options,
        )
