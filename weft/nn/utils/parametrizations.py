"""Parametrizations under torch.nn.utils.parametrizations' names."""

from weft.nn.utils.weight_norm import parametrized_spectral_norm as spectral_norm
from weft.nn.utils.weight_norm import parametrized_weight_norm as weight_norm

__all__ = ["spectral_norm", "weight_norm"]
