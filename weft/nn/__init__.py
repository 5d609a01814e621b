"""Layers, losses and their functions, under torch's names. Built on what `weft` offers everybody; see `Module`."""

from weft.nn import functional, init, utils
from weft.nn.activations import (
    ELU,
    GELU,
    GLU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    Tanh,
)
from weft.nn.attention import MultiheadAttention
from weft.nn.containers import ModuleDict, ModuleList, Sequential
from weft.nn.convolution import Conv1d, Conv2d
from weft.nn.linear import Embedding, Identity, Linear
from weft.nn.losses import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from weft.nn.module import IncompatibleKeys, Module, Parameter
from weft.nn.normalization import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, RMSNorm
from weft.nn.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    AvgPool1d,
    AvgPool2d,
    MaxPool1d,
    MaxPool2d,
)
from weft.nn.regularization import Dropout, Dropout1d, Dropout2d, Flatten, Unflatten

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "AvgPool1d", "AvgPool2d", "BCELoss",
    "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d", "Conv1d", "Conv2d", "CrossEntropyLoss", "Dropout",
    "Dropout1d", "Dropout2d", "ELU", "Embedding", "Flatten", "GELU", "GLU", "GroupNorm", "Hardsigmoid", "Hardswish",
    "Hardtanh", "HuberLoss", "Identity", "IncompatibleKeys", "KLDivLoss", "L1Loss", "LayerNorm", "LeakyReLU",
    "Linear", "LogSigmoid", "LogSoftmax", "MSELoss", "MaxPool1d", "MaxPool2d", "Mish", "Module", "ModuleDict",
    "ModuleList", "MultiheadAttention", "NLLLoss", "PReLU", "Parameter", "RMSNorm", "ReLU", "ReLU6", "SELU",
    "Sequential", "SiLU", "Sigmoid", "SmoothL1Loss", "Softmax", "Softplus", "Softsign", "Tanh", "Unflatten",
    "functional", "init", "utils",
]  # fmt: skip
