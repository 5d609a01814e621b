"""Draws of Gamma(a, 1) by rejection."""
# Tests: tests/distributions/test_gradients_of_draws.py

from __future__ import annotations

from weft.core.functions.random import randn
from weft.core.layout.gather import gather
from weft.core.pointwise.dtype_info import finfo
from weft.core.pointwise.elementwise import log, square, where
from weft.core.tensor.tensor import Tensor
from weft.distributions.continuous import open_uniform

_TRIES = 8


def standard_gamma(shape: tuple[int, ...], concentration: Tensor) -> Tensor:
    """Draws of Gamma(concentration, 1), which broadcasts to `shape`.

    d (1 + c x)^3 with d = a - 1/3, c = 1 / sqrt(9 d) and x normal is kept where a uniform number allows, more than 95
    times of 100; of eight at once the first that is kept is taken (none is in 4 of 10^11). For a < 1 it is the draw of
    a + 1 times u^(1/a). Source: Marsaglia & Tsang 2000, "A simple method for generating gamma variables".
    """
    a = concentration.expand(shape)
    d = where(a < 1, a + 1, a) - 1 / 3
    d = d.unsqueeze(-1)
    x = randn((*shape, _TRIES), dtype=a.dtype, device=a.device)
    u = open_uniform((*shape, _TRIES), a)
    v = (1 + x / (9 * d).sqrt()) ** 3
    positive = v > 0
    safe = where(positive, v, 1)
    kept = positive & (log(u) < 0.5 * square(x) + d * (1 - safe + log(safe)))
    first = kept.to(a.dtype).argmax(-1, keepdim=True)
    drawn = (gather(safe, -1, first) * d).squeeze(-1)
    smaller = open_uniform(shape, a) ** (1 / where(a < 1, a, 1))
    return where(a < 1, drawn * smaller, drawn).clamp(min=finfo(a.dtype).tiny)
