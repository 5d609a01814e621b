"""Activations as layers. Shapes: (...) -> (...), element by element unless said otherwise."""

from __future__ import annotations

from weft.core import functional as F
from weft.core.creation import full
from weft.core.tensor import Tensor
from weft.ir.dtypes import DType
from weft.nn.module import Module, Parameter


class ReLU(Module):
    """y = max(x, 0)"""

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


class ReLU6(Module):
    """y = min(max(x, 0), 6)"""

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return F.relu6(x)


class LeakyReLU(Module):
    """y = x where x > 0, else negative_slope * x"""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class PReLU(Module):
    """y = x where x > 0, else weight * x; one learned weight, or one per channel (dimension 1)."""

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        self.num_parameters = num_parameters
        self.weight = Parameter(full((num_parameters,), float(init), device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class ELU(Module):
    """y = x where x > 0, else alpha * (exp(x) - 1). Source: Clevert et al. 2015, arXiv:1511.07289."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return F.elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class SELU(Module):
    """y = scale * elu(x, alpha), with the constants that keep mean 0 and variance 1. Source: arXiv:1706.02515."""

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return F.selu(x)


class GELU(Module):
    """y = x * Phi(x), Phi the normal distribution function, or its "tanh" approximation. Source: arXiv:1606.08415."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(Module):
    """y = x * sigmoid(x)"""

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x)


class Mish(Module):
    """y = x * tanh(softplus(x)). Source: Misra 2019, arXiv:1908.08681."""

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return F.mish(x)


class Sigmoid(Module):
    """y = 1 / (1 + exp(-x))"""

    def forward(self, x: Tensor) -> Tensor:
        return F.sigmoid(x)


class LogSigmoid(Module):
    """y = log(sigmoid(x))"""

    def forward(self, x: Tensor) -> Tensor:
        return F.logsigmoid(x)


class Tanh(Module):
    """y = tanh(x)"""

    def forward(self, x: Tensor) -> Tensor:
        return F.tanh(x)


class Hardtanh(Module):
    """y = x limited to [min_val, max_val]"""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        self.min_val, self.max_val = min_val, max_val

    def forward(self, x: Tensor) -> Tensor:
        return F.hardtanh(x, self.min_val, self.max_val)

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}"


class Hardsigmoid(Module):
    """y = min(max(x + 3, 0), 6) / 6"""

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return F.hardsigmoid(x)


class Hardswish(Module):
    """y = x * hardsigmoid(x). Source: Howard et al. 2019, arXiv:1905.02244."""

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return F.hardswish(x)


class Softplus(Module):
    """y = log(1 + exp(beta * x)) / beta, and x where beta * x > threshold"""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta, self.threshold = beta, threshold

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class Softsign(Module):
    """y = x / (1 + |x|)"""

    def forward(self, x: Tensor) -> Tensor:
        return F.softsign(x)


class Softmax(Module):
    """y = exp(x) / sum(exp(x)) along `dim`"""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Module):
    """y = x - log(sum(exp(x))) along `dim`"""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class GLU(Module):
    """y = a * sigmoid(b), a and b the halves of x along `dim`. Shapes: (..., 2n, ...) -> (..., n, ...)."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
