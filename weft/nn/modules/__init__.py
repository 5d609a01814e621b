"""torch.nn.modules: the layers of weft.nn, by torch's files."""
# Tests: tests/as_torch/test_room.py

from weft.module_paths import offer_paths
from weft.nn.module import Module
from weft.nn.modules import utils  # or __getattr__ would give weft.nn.utils

__all__ = ["Module", "utils"]

offer_paths(__name__, {
    "_functions": "weft.nn.functional",
    "activation": "weft.nn.activations",
    "adaptive": "weft.nn.adaptive_softmax",
    "batchnorm": "weft.nn.normalization",
    "channelshuffle": "weft.nn.resampling",
    "container": "weft.nn.containers",
    "conv": "weft.nn.convolution",
    "distance": "weft.nn.linear",
    "dropout": "weft.nn.regularization",
    "flatten": "weft.nn.regularization",
    "fold": "weft.nn.resampling",
    "instancenorm": "weft.nn.normalization",
    "lazy": "weft.nn.lazy",
    "linear": "weft.nn.linear",
    "loss": "weft.nn.losses",
    "module": "weft.nn.module",
    "normalization": "weft.nn.normalization",
    "padding": "weft.nn.padding",
    "pixelshuffle": "weft.nn.resampling",
    "pooling": "weft.nn.pooling",
    "rnn": "weft.nn.recurrent",
    "sparse": "weft.nn.linear",
    "transformer": "weft.nn.transformer",
    "upsampling": "weft.nn.resampling",
})  # fmt: skip


def __getattr__(name: str) -> object:
    from weft import nn

    return getattr(nn, name)
