"""The base of all distributions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from weft.core.args.broadcast import broadcast_shapes
from weft.core.args.defaults import get_default_dtype
from weft.core.args.handle import Handle, Number
from weft.core.args.modes import no_grad
from weft.core.layout.creation import tensor
from weft.core.pointwise.elementwise import exp, sqrt
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError

Size = Sequence[int]


class Distribution(ABC):
    """Base of distributions, as torch.distributions has them.

    `batch_shape` counts distributions, `event_shape` is that of one draw: a sample has shape sample_shape +
    batch_shape + event_shape, and `log_prob` of it sample_shape + batch_shape. Parameters broadcast. Their values are
    not checked, since that would compute them; numbers outside the support have probability 0 or NaN.
    """

    has_rsample: ClassVar[bool] = False
    """True where `rsample` exists: draws through which gradients reach the parameters."""

    def __init__(
        self, batch_shape: Size = (), event_shape: Size = (), validate_args: bool | None = None
    ) -> None:
        self._batch, self._event = tuple(batch_shape), tuple(event_shape)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The number of distributions along each dimension."""
        return self._batch

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one draw from one of them."""
        return self._event

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The expectation."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""

    @property
    def stddev(self) -> Tensor:
        """The square root of the variance."""
        return sqrt(self.variance)

    @property
    def mode(self) -> Tensor:
        """The value of the highest probability or density."""
        raise NotImplementedError(f"{type(self).__name__} has no mode in closed form")

    def sample(self, sample_shape: Size = ()) -> Tensor:
        """Draws, without gradients."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        """Draws as a differentiable function of parameters and noise (Kingma & Welling 2014, arXiv:1312.6114)."""
        raise NotImplementedError(
            f"{type(self).__name__} has no draws with gradients; use sample() and log_prob()"
        )

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability, or of the density, at `value`."""

    def entropy(self) -> Tensor:
        """The expectation of -log_prob."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy in closed form")

    def perplexity(self) -> Tensor:
        """exp(entropy)."""
        return exp(self.entropy())

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of at most `value`."""
        raise NotImplementedError(f"{type(self).__name__} has no distribution function here")

    def icdf(self, value: Tensor) -> Tensor:
        """The value below which this much of the probability lies."""
        raise NotImplementedError(f"{type(self).__name__} has no quantile function here")

    def extended(self, sample_shape: Size = ()) -> tuple[int, ...]:
        """The shape of draws."""
        return (*sample_shape, *self._batch, *self._event)

    def expand(self, batch_shape: Size) -> Self:
        """The same distributions, repeated to another batch shape."""
        shape = tuple(batch_shape)
        if broadcast_shapes(self._batch, shape) != shape:
            raise ArgumentError(f"expand: batch shape {self._batch} does not expand to {shape}")
        out = object.__new__(type(self))
        for name, x in vars(self).items():
            own = isinstance(x, Tensor) and name in self.parameters
            setattr(out, name, x.expand(*shape, *x.shape[len(self._batch) :]) if own else x)
        out._batch = shape
        return out

    parameters: ClassVar[tuple[str, ...]] = ()
    """The names of the attributes that are parameters, each of the batch's shape and some more."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{n}: {_short(getattr(self, n))}" for n in self.parameters)
        return f"{type(self).__name__}({shown})"


def _short(x: Tensor) -> str:
    return str(x.item()) if not x.shape else f"{tuple(x.shape)}"


def together(*parameters: Tensor | Number) -> tuple[Tensor, ...]:
    """Parameters as float tensors of their common shape."""
    like = next((p for p in parameters if isinstance(p, Handle)), None)
    dtype = like.dtype if like is not None else get_default_dtype()
    device = like.device if like is not None else None
    made = [p if isinstance(p, Tensor) else tensor(p, dtype=dtype, device=device) for p in parameters]
    shape = broadcast_shapes(*(m.shape for m in made))
    return tuple(m if m.shape == shape else m.expand(shape) for m in made)


def known(shape: Sequence[Any]) -> tuple[int, ...]:
    """A shape whose sizes are known now."""
    if not all(isinstance(n, int) for n in shape):
        raise ArgumentError(f"a distribution's sizes must be known, got {tuple(shape)}")
    return tuple(shape)


def sum_last(x: Tensor, dims: int) -> Tensor:
    """The sum over the last `dims` dimensions."""
    return x.sum(tuple(range(-dims, 0))) if dims else x
