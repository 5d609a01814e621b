"""torch.distributions.constraints: which values a parameter or a draw may have, each with `check`.

Also what torch.distributions.utils offers to distributions of one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import weft
from weft.core.tensor.tensor import Tensor
from weft.distributions.distribution import known

__all__ = [
    "_standard_normal",
    "Constraint", "boolean", "cat", "corr_cholesky", "dependent", "dependent_property", "greater_than",
    "greater_than_eq", "half_open_interval", "independent", "integer_interval", "interval", "is_dependent",
    "less_than", "lower_cholesky", "lower_triangular", "multinomial", "nonnegative", "nonnegative_integer", "one_hot",
    "positive", "positive_definite", "positive_integer", "positive_semidefinite", "real", "real_vector", "simplex",
    "square", "stack", "symmetric", "unit_interval",
]  # fmt: skip


class Constraint:
    """A region over which a variable is valid: `check(value)` is a tensor of bools, one for each event."""

    is_discrete = False
    event_dim = 0

    def check(self, value: Tensor) -> Tensor:
        """True where the values are within the region, in the batch's shape."""
        raise NotImplementedError(f"{type(self).__name__}.check")

    def __repr__(self) -> str:
        return f"{type(self).__name__.strip('_')}()"


class _Where(Constraint):
    """A region by its condition."""

    def __init__(
        self, name: str, check: Callable[[Tensor], Tensor], event_dim: int = 0, discrete: bool = False
    ) -> None:
        self._name, self._check, self.event_dim, self.is_discrete = name, check, event_dim, discrete

    def check(self, value: Tensor) -> Tensor:
        """The condition; over the last event_dim axes it must hold for all."""
        return self._check(value)

    def __repr__(self) -> str:
        return self._name


class _Dependent(Constraint):
    """A region that depends on other variables."""

    def __init__(self, *, is_discrete: bool | None = None, event_dim: int | None = None) -> None:
        self.is_discrete, self.event_dim = bool(is_discrete), event_dim or 0

    def __call__(self, *, is_discrete: bool | None = None, event_dim: int | None = None) -> _Dependent:
        return _Dependent(is_discrete=is_discrete, event_dim=event_dim)

    def check(self, value: Tensor) -> Tensor:
        """ValueError: it depends on other variables."""
        raise ValueError("constraints.dependent: cannot be checked without the variables that it depends on")


class dependent_property(property, _Dependent):  # noqa: N801  (torch's name)
    """A property of a distribution that is a region, and depends on the distribution's parameters."""

    def __init__(
        self, fn: Any = None, *, is_discrete: bool | None = None, event_dim: int | None = None
    ) -> None:
        super().__init__(fn)
        _Dependent.__init__(self, is_discrete=is_discrete, event_dim=event_dim)

    def __call__(self, fn: Any) -> dependent_property:  # pyright: ignore[reportIncompatibleMethodOverride]
        return dependent_property(fn, is_discrete=self.is_discrete, event_dim=self.event_dim)


class _Between(Constraint):
    """Numbers between two bounds, which are part of it where `closed` says so."""

    def __init__(
        self, name: str, lower: Any, upper: Any, closed: tuple[bool, bool], discrete: bool = False
    ) -> None:
        self._name, self.lower_bound, self.upper_bound, self._closed = name, lower, upper, closed
        self.is_discrete = discrete

    def check(self, value: Tensor) -> Tensor:
        """True where the constraint holds."""
        within = weft.ones_like(value, dtype=weft.bool)
        if self.lower_bound is not None:
            within &= value >= self.lower_bound if self._closed[0] else value > self.lower_bound
        if self.upper_bound is not None:
            within &= value <= self.upper_bound if self._closed[1] else value < self.upper_bound
        return within & (value % 1 == 0) if self.is_discrete else within

    def __repr__(self) -> str:
        return f"{self._name}(lower_bound={self.lower_bound}, upper_bound={self.upper_bound})"


class interval(_Between):  # noqa: N801  (torch's name)
    """Numbers between two bounds."""

    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        super().__init__("interval", lower_bound, upper_bound, (True, True))


class half_open_interval(_Between):  # noqa: N801  (torch's name)
    """Numbers from one bound to below another."""

    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        super().__init__("half_open_interval", lower_bound, upper_bound, (True, False))


class integer_interval(_Between):  # noqa: N801  (torch's name)
    """Integers between two bounds."""

    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        super().__init__("integer_interval", lower_bound, upper_bound, (True, True), discrete=True)


class greater_than(_Between):  # noqa: N801  (torch's name)
    """Numbers above a bound."""

    def __init__(self, lower_bound: Any) -> None:
        super().__init__("greater_than", lower_bound, None, (False, False))


class greater_than_eq(_Between):  # noqa: N801  (torch's name)
    """Numbers from a bound on."""

    def __init__(self, lower_bound: Any) -> None:
        super().__init__("greater_than_eq", lower_bound, None, (True, False))


class less_than(_Between):  # noqa: N801  (torch's name)
    """Numbers below a bound."""

    def __init__(self, upper_bound: Any) -> None:
        super().__init__("less_than", None, upper_bound, (False, False))


class independent(Constraint):  # noqa: N801  (torch's name)
    """Another region, where the last axes are one event."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint, self.reinterpreted_batch_ndims = base_constraint, reinterpreted_batch_ndims
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims

    def check(self, value: Tensor) -> Tensor:
        """True where the constraint holds for all of an event."""
        found = self.base_constraint.check(value)
        n = self.reinterpreted_batch_ndims
        return found.flatten(-n).all(-1) if n else found


class multinomial(Constraint):  # noqa: N801  (torch's name)
    """Counts that sum up to at most a bound."""

    is_discrete, event_dim = True, 1

    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound

    def check(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """True where the constraint holds."""
        return (x >= 0).all(-1) & (x.sum(-1) <= self.upper_bound)


class _Joined(Constraint):
    """Parts along an axis, each with a region of its own."""

    def __init__(self, cseq: Sequence[Constraint], dim: int, lengths: Sequence[int] | None) -> None:
        self.cseq, self.dim, self.lengths = list(cseq), dim, lengths
        self.is_discrete = any(c.is_discrete for c in cseq)
        self.event_dim = max(c.event_dim for c in cseq)

    def check(self, value: Tensor) -> Tensor:
        """True where the constraints hold, parts joined as those of the value."""
        if self.lengths is None:
            parts = [value.select(self.dim, i) for i in range(known(value.shape)[self.dim])]
            return weft.stack([c.check(p) for c, p in zip(self.cseq, parts, strict=True)], self.dim)
        parts = list(value.split(list(self.lengths), self.dim))
        return weft.cat([c.check(p) for c, p in zip(self.cseq, parts, strict=True)], self.dim)


def cat(cseq: Sequence[Constraint], dim: int = 0, lengths: Sequence[int] | None = None) -> Constraint:
    """Parts of given lengths (1 each) along an axis, each with its region."""
    return _Joined(cseq, dim, [1] * len(cseq) if lengths is None else lengths)


def stack(cseq: Sequence[Constraint], dim: int = 0) -> Constraint:
    """Slices along an axis, each with its region."""
    return _Joined(cseq, dim, None)


def _square(x: Tensor) -> Tensor:
    return weft.full(x.shape[:-2], x.shape[-2] == x.shape[-1], dtype=weft.bool)


def _lower(x: Tensor) -> Tensor:
    return (x.tril() == x).flatten(-2).all(-1)


def _symmetric(x: Tensor) -> Tensor:
    return weft.isclose(x, x.mT, atol=1e-6).flatten(-2).all(-1)


def _eigenvalues(x: Tensor) -> Tensor:
    return weft.linalg.eigvalsh(x)


def _unit_rows(x: Tensor) -> Tensor:
    tolerance = weft.finfo(x.dtype).eps * known(x.shape)[-1] * 10
    return ((x.square().sum(-1) - 1).abs() < tolerance).all(-1)


def is_dependent(constraint: object) -> bool:
    """True where the region depends on other variables."""
    return isinstance(constraint, _Dependent)


dependent = _Dependent()
boolean = _Where("Boolean()", lambda x: (x == 0) | (x == 1), discrete=True)
one_hot = _Where(
    "OneHot()", lambda x: ((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1), event_dim=1, discrete=True
)
nonnegative_integer = _Where(
    "IntegerGreaterThan(lower_bound=0)", lambda x: (x % 1 == 0) & (x >= 0), discrete=True
)
positive_integer = _Where(
    "IntegerGreaterThan(lower_bound=1)", lambda x: (x % 1 == 0) & (x >= 1), discrete=True
)
positive, nonnegative, unit_interval = greater_than(0.0), greater_than_eq(0.0), interval(0.0, 1.0)
real = _Where("Real()", lambda x: x == x)
real_vector = independent(real, 1)
simplex = _Where("Simplex()", lambda x: (x >= 0).all(-1) & ((x.sum(-1) - 1).abs() < 1e-6), event_dim=1)
square = _Where("Square()", _square, event_dim=2)
symmetric = _Where("Symmetric()", _symmetric, event_dim=2)
lower_triangular = _Where("LowerTriangular()", _lower, event_dim=2)
lower_cholesky = _Where(
    "LowerCholesky()", lambda x: _lower(x) & (x.diagonal(dim1=-2, dim2=-1) > 0).all(-1), event_dim=2
)
corr_cholesky = _Where("CorrCholesky()", lambda x: lower_cholesky.check(x) & _unit_rows(x), event_dim=2)
positive_definite = _Where(
    "PositiveDefinite()", lambda x: _symmetric(x) & (_eigenvalues(x) > 0).all(-1), event_dim=2
)
positive_semidefinite = _Where(
    "PositiveSemidefinite()", lambda x: _symmetric(x) & (_eigenvalues(x) >= 0).all(-1), event_dim=2
)


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Tensors and numbers in one shape."""
    first = next((v for v in values if isinstance(v, Tensor)), None)
    dtype = weft.get_default_dtype() if first is None else first.dtype
    device = None if first is None else first.device
    tensors = [v if isinstance(v, Tensor) else weft.tensor(v, dtype=dtype, device=device) for v in values]
    return tuple(weft.broadcast_tensors(*tensors))


class lazy_property:  # noqa: N801  (torch's name)
    """A property that is computed once, when it is first asked for."""

    def __init__(self, wrapped: Callable[[Any], Any]) -> None:
        self.wrapped, self.__doc__ = wrapped, wrapped.__doc__

    def __get__(self, instance: Any, obj_type: Any = None) -> Any:
        if instance is None:
            return self
        value = self.wrapped(instance)
        setattr(instance, self.wrapped.__name__, value)
        return value


def clamp_probs(probs: Tensor) -> Tensor:
    """Probabilities, at least the dtype's epsilon away from 0 and 1."""
    eps = weft.finfo(probs.dtype).eps
    return probs.clamp(min=eps, max=1 - eps)


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Probabilities: the sigmoid of log-odds, or the softmax over the last axis."""
    return logits.sigmoid() if is_binary else logits.softmax(-1)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """Log-odds, or logarithms."""
    clamped = clamp_probs(probs)
    return clamped.log() - (-clamped).log1p() if is_binary else clamped.log()


def _standard_normal(shape: Any, dtype: Any, device: Any) -> Tensor:
    return weft.randn(shape, dtype=dtype, device=device)
