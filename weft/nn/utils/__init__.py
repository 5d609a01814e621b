"""Helpers: gradients within bounds, parameters as vectors, normalized weights, sequences of many lengths."""
# Tests: tests/nn/test_hooks.py

from typing import Any

from weft.module_paths import offer_paths
from weft.nn.utils import fusion, parametrizations, parametrize, prune, rnn
from weft.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from weft.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from weft.nn.utils.fusion import (
    fuse_conv_bn_eval,
    fuse_conv_bn_weights,
    fuse_linear_bn_eval,
    fuse_linear_bn_weights,
)
from weft.nn.utils.weight_norm import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm

__all__ = [
    "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "fuse_conv_bn_eval", "fuse_conv_bn_weights",
    "fuse_linear_bn_eval", "fuse_linear_bn_weights", "fusion", "get_total_norm", "parameters_to_vector",
    "parametrizations", "parametrize", "prune", "remove_spectral_norm", "remove_weight_norm", "rnn", "skip_init",
    "spectral_norm", "vector_to_parameters", "weight_norm",
]  # fmt: skip


def skip_init(module_cls: Any, *args: Any, **kwargs: Any) -> Any:
    """module_cls(...), whose parameters' first values do not matter."""
    return module_cls(*args, **kwargs)


offer_paths(__name__, {
    "spectral_norm": "weft.nn.utils.weight_norm",
    "stateless": "weft.nn.stateless",
})  # fmt: skip
