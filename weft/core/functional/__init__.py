"""The functions that neural networks are made of; `weft.nn.functional` offers them.

Each file is imported when one of its functions is first asked for: `import weft` needs few of them.
"""
# Tests: tests/nn/test_functional.py, tests/core/test_against_torch.py

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from weft.core.args.argument_types import checked

if TYPE_CHECKING:
    from weft.core.functional.activations import (
        celu,
        celu_,
        elu,
        elu_,
        gelu,
        glu,
        gumbel_softmax,
        hardshrink,
        hardsigmoid,
        hardswish,
        hardtanh,
        hardtanh_,
        leaky_relu,
        leaky_relu_,
        log_softmax,
        logsigmoid,
        mish,
        prelu,
        relu,
        relu6,
        relu_,
        rrelu,
        rrelu_,
        selu,
        selu_,
        sigmoid,
        silu,
        softmax,
        softmin,
        softplus,
        softshrink,
        softsign,
        tanh,
        tanhshrink,
        threshold,
        threshold_,
    )  # fmt: skip
    from weft.core.functional.attention import (
        multi_head_attention_forward,
        scaled_dot_product_attention,
    )  # fmt: skip
    from weft.core.functional.convolution import (
        conv1d,
        conv2d,
        conv3d,
        conv_transpose1d,
        conv_transpose2d,
        conv_transpose3d,
    )  # fmt: skip
    from weft.core.functional.ctc import (
        ctc_loss,
    )  # fmt: skip
    from weft.core.functional.distances import (
        cosine_similarity,
        pairwise_distance,
        pdist,
    )  # fmt: skip
    from weft.core.functional.dropouts import (
        alpha_dropout,
        alpha_dropout_,
        dropout,
        dropout1d,
        dropout2d,
        dropout3d,
        dropout_,
        feature_alpha_dropout,
        feature_alpha_dropout_,
    )  # fmt: skip
    from weft.core.functional.embeddings import (
        embedding,
        embedding_bag,
        one_hot,
    )  # fmt: skip
    from weft.core.functional.grids import (
        affine_grid,
        grid_sample,
    )  # fmt: skip
    from weft.core.functional.linear_maps import (
        bilinear,
        linear,
    )  # fmt: skip
    from weft.core.functional.losses import (
        binary_cross_entropy,
        binary_cross_entropy_with_logits,
        cross_entropy,
        huber_loss,
        kl_div,
        l1_loss,
        linear_cross_entropy,
        mse_loss,
        nll_loss,
        smooth_l1_loss,
    )  # fmt: skip
    from weft.core.functional.normalization import (
        batch_norm,
        group_norm,
        instance_norm,
        layer_norm,
        local_response_norm,
        normalize,
        rms_norm,
    )  # fmt: skip
    from weft.core.functional.padding import (
        pad,
    )  # fmt: skip
    from weft.core.functional.pooling import (
        adaptive_avg_pool1d,
        adaptive_avg_pool2d,
        adaptive_avg_pool3d,
        adaptive_max_pool1d,
        adaptive_max_pool2d,
        adaptive_max_pool3d,
        avg_pool1d,
        avg_pool2d,
        avg_pool3d,
        fractional_max_pool2d,
        fractional_max_pool3d,
        lp_pool1d,
        lp_pool2d,
        lp_pool3d,
        max_pool1d,
        max_pool2d,
        max_pool3d,
        max_unpool1d,
        max_unpool2d,
        max_unpool3d,
    )  # fmt: skip
    from weft.core.functional.ranking_losses import (
        cosine_embedding_loss,
        gaussian_nll_loss,
        hinge_embedding_loss,
        margin_ranking_loss,
        multi_margin_loss,
        multilabel_margin_loss,
        multilabel_soft_margin_loss,
        poisson_nll_loss,
        soft_margin_loss,
        triplet_margin_loss,
        triplet_margin_with_distance_loss,
    )  # fmt: skip
    from weft.core.functional.resampling import (
        channel_shuffle,
        fold,
        interpolate,
        pixel_shuffle,
        pixel_unshuffle,
        unfold,
        upsample,
        upsample_bilinear,
        upsample_nearest,
    )  # fmt: skip

_FILES = {
    "activations": (
        "celu", "celu_", "elu", "elu_", "gelu", "glu", "gumbel_softmax", "hardshrink", "hardsigmoid",
        "hardswish", "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_", "log_softmax", "logsigmoid",
        "mish", "prelu", "relu", "relu6", "relu_", "rrelu", "rrelu_", "selu", "selu_", "sigmoid", "silu",
        "softmax", "softmin", "softplus", "softshrink", "softsign", "tanh", "tanhshrink", "threshold",
        "threshold_",
    ),
    "attention": (
        "multi_head_attention_forward", "scaled_dot_product_attention",
    ),
    "convolution": (
        "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    ),
    "ctc": (
        "ctc_loss",
    ),
    "distances": (
        "cosine_similarity", "pairwise_distance", "pdist",
    ),
    "dropouts": (
        "alpha_dropout", "alpha_dropout_", "dropout", "dropout1d", "dropout2d", "dropout3d", "dropout_",
        "feature_alpha_dropout", "feature_alpha_dropout_",
    ),
    "embeddings": (
        "embedding", "embedding_bag", "one_hot",
    ),
    "grids": (
        "affine_grid", "grid_sample",
    ),
    "linear_maps": (
        "bilinear", "linear",
    ),
    "losses": (
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "huber_loss", "kl_div",
        "l1_loss", "linear_cross_entropy", "mse_loss", "nll_loss", "smooth_l1_loss",
    ),
    "normalization": (
        "batch_norm", "group_norm", "instance_norm", "layer_norm", "local_response_norm", "normalize",
        "rms_norm",
    ),
    "padding": (
        "pad",
    ),
    "pooling": (
        "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
        "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
        "fractional_max_pool2d", "fractional_max_pool3d", "lp_pool1d", "lp_pool2d", "lp_pool3d",
        "max_pool1d", "max_pool2d", "max_pool3d", "max_unpool1d", "max_unpool2d", "max_unpool3d",
    ),
    "ranking_losses": (
        "cosine_embedding_loss", "gaussian_nll_loss", "hinge_embedding_loss", "margin_ranking_loss",
        "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "poisson_nll_loss",
        "soft_margin_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss",
    ),
    "resampling": (
        "channel_shuffle", "fold", "interpolate", "pixel_shuffle", "pixel_unshuffle", "unfold", "upsample",
        "upsample_bilinear", "upsample_nearest",
    ),
}  # fmt: skip
"""The functions of each file."""

_HOME = {name: file for file, names in _FILES.items() for name in names}

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "affine_grid", "alpha_dropout", "alpha_dropout_",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_norm", "bilinear", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "celu", "celu_", "channel_shuffle", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cosine_embedding_loss", "cosine_similarity",
    "cross_entropy", "ctc_loss", "dropout", "dropout1d", "dropout2d", "dropout3d", "dropout_", "elu", "elu_",
    "embedding", "embedding_bag", "feature_alpha_dropout", "feature_alpha_dropout_", "fold",
    "fractional_max_pool2d", "fractional_max_pool3d", "gaussian_nll_loss", "gelu", "glu", "grid_sample",
    "group_norm", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "hardtanh_",
    "hinge_embedding_loss", "huber_loss", "instance_norm", "interpolate", "kl_div", "l1_loss", "layer_norm",
    "leaky_relu", "leaky_relu_", "linear", "linear_cross_entropy", "local_response_norm", "log_softmax",
    "logsigmoid", "lp_pool1d", "lp_pool2d", "lp_pool3d", "margin_ranking_loss", "max_pool1d", "max_pool2d",
    "max_pool3d", "max_unpool1d", "max_unpool2d", "max_unpool3d", "mish", "mse_loss",
    "multi_head_attention_forward", "multi_margin_loss", "multilabel_margin_loss",
    "multilabel_soft_margin_loss", "nll_loss", "normalize", "one_hot", "pad", "pairwise_distance", "pdist",
    "pixel_shuffle", "pixel_unshuffle", "poisson_nll_loss", "prelu", "relu", "relu6", "relu_", "rms_norm",
    "rrelu", "rrelu_", "scaled_dot_product_attention", "selu", "selu_", "sigmoid", "silu", "smooth_l1_loss",
    "soft_margin_loss", "softmax", "softmin", "softplus", "softshrink", "softsign", "tanh", "tanhshrink",
    "threshold", "threshold_", "triplet_margin_loss", "triplet_margin_with_distance_loss", "unfold", "upsample",
    "upsample_bilinear", "upsample_nearest",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'weft.core.functional' has no attribute {name!r}")
    function = getattr(importlib.import_module(f"weft.core.functional.{_HOME[name]}"), name)
    found = globals()[name] = checked(function)
    return found
