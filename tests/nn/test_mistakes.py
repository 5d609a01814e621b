"""What weft says about mistakes with layers, losses, optimizers, data and files: class and exact message of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import nn, optim

Mistake = tuple[Callable[[], Any], type[weft.WeftError], str]

MISTAKES: dict[str, Mistake] = {
    "linear dtype": (
        lambda: nn.Linear(3, 2)(weft.arange(3)),
        weft.DTypeError,
        "linear: input is int64 and weight is float32; they must have one dtype, so convert one with .to(...)",
    ),
    "linear of numpy": (
        lambda: nn.Linear(3, 2)(np.ones((4, 3), np.float32)),
        weft.DTypeError,
        "linear: expected a Tensor, got a numpy.ndarray; make one with weft.tensor(...)",
    ),
    "norm of a negative size": (
        lambda: nn.LayerNorm(-1),
        weft.ShapeError,
        "parameter: sizes must not be negative, got (-1,)",
    ),
    "batch norm of a name": (
        lambda: nn.BatchNorm1d("a"),
        weft.DTypeError,
        "parameter: a size must be an int, got 'a'",
    ),
    "dropout of a name": (
        lambda: nn.Dropout("a"),
        weft.ArgumentError,
        "Dropout: p must be between 0 and 1, got 'a'",
    ),
    "lstm dropout": (
        lambda: nn.LSTM(4, 4, dropout=True),
        weft.ArgumentError,
        "LSTM: dropout must be a probability, got True",
    ),
    "hardtanh of nothing": (
        lambda: nn.Hardtanh(1.0, 1.0),
        weft.ArgumentError,
        "Hardtanh: max_val must be above min_val 1.0, got 1.0",
    ),
    "celu alpha": (
        lambda: nn.CELU(0.0)(weft.ones(2)),
        weft.ArgumentError,
        "celu: alpha must not be 0, by which is divided",
    ),
    "triplet margin": (
        lambda: nn.TripletMarginLoss(margin=0.0),
        weft.ArgumentError,
        "TripletMarginLoss: margin must be above 0, got 0.0",
    ),
    "triplet distance margin": (
        lambda: nn.TripletMarginWithDistanceLoss(margin=-1.0),
        weft.ArgumentError,
        "TripletMarginWithDistanceLoss: margin must be above 0, got -1.0",
    ),
    "multi margin power": (
        lambda: nn.MultiMarginLoss(p=3),
        weft.ArgumentError,
        "MultiMarginLoss: p must be 1 or 2, got 3",
    ),
    "fractional pool size": (
        lambda: nn.FractionalMaxPool2d(2),
        weft.ArgumentError,
        "FractionalMaxPool2d: give one of output_size and output_ratio, got None and None",
    ),
    "fractional pool ratio": (
        lambda: nn.FractionalMaxPool3d(2, output_ratio=1.5),
        weft.ArgumentError,
        "FractionalMaxPool3d: output_ratio must be between 0 and 1, got 1.5",
    ),
    "normal of a negative deviation": (
        lambda: nn.init.normal_(weft.ones(3), 0.0, -1.0),
        weft.ArgumentError,
        "normal_: std must be at least 0, got -1.0",
    ),
    "conv groups": (
        lambda: nn.Conv2d(3, 4, 3, groups=2),
        weft.ArgumentError,
        "Conv2d: 2 groups do not divide 3 and 4 channels",
    ),
    "conv padding name": (
        lambda: nn.Conv2d(3, 4, 3, padding="sme"),
        weft.ArgumentError,
        "Conv2d: padding must be 'same', 'valid' or sizes, got 'sme'",
    ),
    "conv same stride": (
        lambda: nn.Conv2d(3, 4, 3, padding="same", stride=2),
        weft.ArgumentError,
        "Conv2d: padding='same' needs stride 1, got (2, 2); pad by sizes",
    ),
    "conv stride 0": (
        lambda: F.conv2d(weft.ones(1, 3, 8, 8), weft.ones(4, 3, 3, 3), stride=0),
        weft.ArgumentError,
        "conv2d: stride must be an int or 2 ints, each at least 1, got 0",
    ),
    "pool too large": (
        lambda: F.max_pool2d(weft.ones(1, 1, 2, 2), 5),
        weft.ShapeError,
        "max_pool2d: kernel (5, 5) with dilation (1, 1) exceeds the padded input of shape (1, 1, 2, 2)",
    ),
    "batchnorm channels": (
        lambda: nn.BatchNorm2d(3)(weft.ones(2, 4, 5, 5)),
        weft.ShapeError,
        "BatchNorm2d: needs 3 channels in dimension 1, got shape (2, 4, 5, 5)",
    ),
    "batchnorm rank": (
        lambda: nn.BatchNorm2d(3)(weft.ones(2, 3)),
        weft.ShapeError,
        "BatchNorm2d: needs input of 4 dimensions, got shape (2, 3)",
    ),
    "batchnorm one value": (
        lambda: nn.BatchNorm1d(3)(weft.ones(1, 3)),
        weft.ShapeError,
        "batch_norm: training needs more than one value per channel, got shape (1, 3)",
    ),
    "groupnorm": (
        lambda: nn.GroupNorm(3, 4),
        weft.ArgumentError,
        "GroupNorm: 3 groups do not divide 4 channels",
    ),
    "cross entropy float target": (
        lambda: F.cross_entropy(weft.ones(2, 3), weft.ones(2)),
        weft.ShapeError,
        (
            "cross_entropy: a float target is a probability per class and has the shape of the input, "
            "(2, 3), got (2,); make class numbers integers with .long()"
        ),
    ),
    "cross entropy weight": (
        lambda: F.cross_entropy(weft.ones(2, 3), weft.tensor([0, 1]), weight=weft.ones(2)),
        weft.ShapeError,
        "cross_entropy: weight must have shape (3,), got (2,)",
    ),
    "nll": (
        lambda: F.nll_loss(weft.ones(2, 3), weft.ones(2, 3)),
        weft.DTypeError,
        "nll_loss: indices must be integers, got float32; convert them with .long()",
    ),
    "mse shapes": (
        lambda: F.mse_loss(weft.ones(2, 3), weft.ones(3, 2)),
        weft.ShapeError,
        (
            "mse_loss: sub: shapes (2, 3) and (3, 2) do not broadcast: dimension -2 is 2 in one and 3 "
            "in another; they must be equal or 1"
        ),
    ),
    "bce shapes": (
        lambda: F.binary_cross_entropy(weft.ones(2), weft.ones(3)),
        weft.ShapeError,
        "binary_cross_entropy: input has shape (2,), target (3,); they must be equal",
    ),
    "one hot neg": (
        lambda: F.one_hot(weft.tensor([-1])),
        weft.IndexError,
        "one_hot: class -1 is out of range for 0 classes; they count from 0",
    ),
    "sdpa mask": (
        lambda: F.scaled_dot_product_attention(
            weft.ones(1, 2, 3), weft.ones(1, 2, 3), weft.ones(1, 2, 3), attn_mask=weft.ones(3, 3)
        ),
        weft.ShapeError,
        (
            "scaled_dot_product_attention: shapes (1, 2, 2) and (3, 3) do not broadcast: dimension -2 "
            "is 2 in one and 3 in another; they must be equal or 1"
        ),
    ),
    "sdpa both": (
        lambda: F.scaled_dot_product_attention(
            weft.ones(1, 2, 3),
            weft.ones(1, 2, 3),
            weft.ones(1, 2, 3),
            attn_mask=weft.ones(2, 2),
            is_causal=True,
        ),
        weft.ArgumentError,
        "scaled_dot_product_attention: give attn_mask or is_causal, not both",
    ),
    "mha heads": (
        lambda: nn.MultiheadAttention(10, 3),
        weft.ArgumentError,
        "MultiheadAttention: 3 heads do not divide embed_dim 10",
    ),
    "lstm input": (
        lambda: nn.LSTM(3, 4)(weft.ones(5, 2, 7)),
        weft.ShapeError,
        "LSTM: input must have 3 features, got shape (5, 2, 7)",
    ),
    "lstm hidden": (
        lambda: nn.LSTM(3, 4)(weft.ones(5, 2, 3), (weft.ones(1, 3, 4), weft.ones(1, 3, 4))),
        weft.ShapeError,
        "LSTM: an initial state must have shape (1, 2, 4), got (1, 3, 4)",
    ),
    "lstm rank": (
        lambda: nn.LSTM(3, 4)(weft.ones(3)),
        weft.ShapeError,
        "LSTM: input must have 2 or 3 dimensions, got shape (3,)",
    ),
    "pad odd": (
        lambda: F.pad(weft.ones(2, 3), (1,)),
        weft.ArgumentError,
        "pad: needs pairs for at most 2 dimensions of shape (2, 3), got (1,)",
    ),
    "pad mode": (
        lambda: F.pad(weft.ones(1, 2, 3), (1, 1), mode="mirror"),
        weft.ArgumentError,
        "pad: mode must be constant, reflect, replicate or circular, got 'mirror'",
    ),
    "pad reflect large": (
        lambda: F.pad(weft.ones(1, 2, 3), (5, 1), mode="reflect"),
        weft.ShapeError,
        "pad: mode 'reflect' cannot add 5 and 1 to a dimension of size 3",
    ),
    "interpolate both": (
        lambda: F.interpolate(weft.ones(1, 1, 2, 2), size=4, scale_factor=2),
        weft.ArgumentError,
        "interpolate: give either size or scale_factor",
    ),
    "interpolate mode": (
        lambda: F.interpolate(weft.ones(1, 1, 2, 2), size=4, mode="cubic"),
        weft.ArgumentError,
        (
            "interpolate: mode must be one of nearest, nearest-exact, area, linear, bilinear, bicubic, "
            "trilinear, got 'cubic'"
        ),
    ),
    "pixel shuffle": (
        lambda: F.pixel_shuffle(weft.ones(1, 3, 2, 2), 2),
        weft.ShapeError,
        "pixel_shuffle: the channels of shape (1, 3, 2, 2) must be a multiple of 4",
    ),
    "load missing": (
        lambda: nn.Linear(3, 2).load_state_dict({"weight": weft.ones(2, 3)}),
        weft.ArgumentError,
        'load_state_dict: Error(s) in loading state_dict for Linear:\n\tMissing key(s) in state_dict: "bias". ',
    ),
    "load unexpected": (
        lambda: nn.Linear(3, 2).load_state_dict(
            {"weight": weft.ones(2, 3), "bias": weft.ones(2), "scale": weft.ones(1)}
        ),
        weft.ArgumentError,
        'load_state_dict: Error(s) in loading state_dict for Linear:\n\tUnexpected key(s) in state_dict: "scale". ',
    ),
    "load shape": (
        lambda: nn.Linear(3, 2).load_state_dict({"weight": weft.ones(3, 3), "bias": weft.ones(2)}),
        weft.ArgumentError,
        (
            "load_state_dict: Error(s) in loading state_dict for Linear:\n\tsize mismatch for weight: copying a param "
            f"with shape {weft.Size((3, 3))} from checkpoint, the shape in current model is {weft.Size((2, 3))}."
        ),
    ),
    "load not dict": (
        lambda: nn.Linear(3, 2).load_state_dict([1]),
        weft.DTypeError,
        "load_state_dict: Expected state_dict to be dict-like, got <class 'list'>.",
    ),
    "sequential not module": (
        lambda: nn.Sequential(1),
        weft.DTypeError,
        "Sequential: int is not a Module subclass",
    ),
    "modulelist": (
        lambda: nn.ModuleList([1]),
        weft.DTypeError,
        "ModuleList: int is not a Module subclass",
    ),
    "to int module": (
        lambda: nn.Linear(1, 1).to(weft.int32),
        weft.DTypeError,
        "nn.Module.to only accepts floating point or complex dtypes, but got desired dtype="
        + str(weft.int32),
    ),
    "optim none": (
        lambda: optim.SGD([], lr=1),
        weft.ArgumentError,
        "SGD: optimizer got an empty parameter list; an iterator gives its parameters only once",
    ),
    "optim tensor": (
        lambda: optim.SGD(weft.ones(1), lr=1),
        weft.DTypeError,
        (
            "SGD: params argument given to the optimizer should be an iterable of Tensors or dicts, but got one "
            "Tensor; write [tensor]"
        ),
    ),
    "optim lr": (
        lambda: optim.SGD(nn.Linear(1, 1).parameters(), lr=-1),
        weft.ArgumentError,
        "SGD: lr must be at least 0, got -1",
    ),
    "optim betas": (
        lambda: optim.Adam(nn.Linear(1, 1).parameters(), betas=(1.0, 0.9)),
        weft.ArgumentError,
        "Adam: betas[0] must be at least 0 and below 1, got 1.0",
    ),
    "optim non leaf": (
        lambda: optim.SGD([weft.ones(1, requires_grad=True) * 2], lr=1),
        weft.GradError,
        "SGD: parameter 0 is the result of an operation, not a leaf",
    ),
    "scheduler": (
        lambda: optim.lr_scheduler.StepLR(1, 2),
        weft.DTypeError,
        "StepLR: expected an optimizer, got 1; int is not an Optimizer",
    ),
    "set grad shape": (
        lambda: setattr(weft.ones(2, requires_grad=True), "grad", weft.ones(3)),
        weft.ShapeError,
        "grad: must be a float32 Tensor of shape (2,), got a float32 Tensor of shape (3,)",
    ),
    "scatter reduce": (
        lambda: weft.ones(2, 3).scatter_reduce(
            0, weft.zeros(2, 3, dtype=weft.int64), weft.ones(2, 3), "sums"
        ),
        weft.ArgumentError,
        "scatter_reduce: reduce must be sum, prod, mean, amax or amin, got 'sums'",
    ),
    "topk": (
        lambda: weft.ones(3).topk(5),
        weft.ArgumentError,
        "topk: k must be from 0 to 3, the size of dimension -1, got 5",
    ),
    "sort dim": (
        lambda: weft.ones(3).sort(2),
        weft.IndexError,
        "sort: dimension 2 is out of range for shape (3,); it must be from -1 to 0",
    ),
    "chunk": (
        lambda: weft.ones(3).chunk(0),
        weft.ArgumentError,
        "chunk: needs a positive number of chunks, got 0",
    ),
    "unfold": (
        lambda: weft.ones(3).unfold(0, 5, 1),
        weft.ArgumentError,
        "unfold: windows of 5 every 1 do not fit dimension 0 of (3,)",
    ),
    "repeat": (
        lambda: weft.ones(2, 3).repeat(2),
        weft.ShapeError,
        "repeat: (2,) must have one nonnegative number per dimension of shape (2, 3)",
    ),
    "roll": (
        lambda: weft.ones(2).roll((1, 2), 0),
        weft.ArgumentError,
        "roll: 2 shifts for 1 dimensions; give as many of both",
    ),
    "movedim": (
        lambda: weft.ones(2, 3).movedim((0, 1), (0,)),
        weft.ArgumentError,
        "movedim: source (0, 1) and destination (0,) must be equally many distinct dimensions",
    ),
    "quantile": (
        lambda: weft.ones(3).quantile(1.5),
        weft.ArgumentError,
        "quantile: q must be from 0 to 1, got 1.5",
    ),
    "multinomial": (
        lambda: weft.multinomial(weft.ones(3), 5),
        weft.ArgumentError,
        "multinomial: cannot draw 5 of 3 without replacement",
    ),
    "normal std": (
        lambda: weft.normal(0.0, -1.0, (2,)),
        weft.ArgumentError,
        "normal: std must not be negative, got -1.0",
    ),
    "randperm": (
        lambda: weft.randperm(-1),
        weft.ArgumentError,
        "randperm: n must be an int that is not negative, got -1",
    ),
    "linspace": (
        lambda: weft.linspace(0, 1, -2),
        weft.ArgumentError,
        "linspace: steps must not be negative, got -2",
    ),
    "inv not square": (
        lambda: weft.linalg.inv(weft.ones(2, 3)),
        weft.ShapeError,
        "linalg.inv: needs square matrices, got shape (2, 3)",
    ),
    "cholesky": (
        lambda: weft.linalg.cholesky(-weft.eye(2)),
        weft.linalg.LinAlgError,
        "linalg.cholesky: matrix is not positive definite",
    ),
    "norm ord": (
        lambda: weft.linalg.norm(weft.ones(2, 2), ord="abc"),
        weft.ArgumentError,
        "norm: linalg.matrix_norm: ord must be 'fro', 'nuc', inf, -inf, 1, -1, 2 or -2, got 'abc'",
    ),
    "tensordot": (
        lambda: weft.tensordot(weft.ones(2, 3), weft.ones(2, 3), 1),
        weft.ShapeError,
        "tensordot: dimensions (1,) of (2, 3) and (0,) of (2, 3) differ in size",
    ),
    "masked_fill": (
        lambda: weft.ones(3).masked_fill(weft.ones(2) > 0, 1.0),
        weft.ShapeError,
        (
            "masked_fill: where: shapes (2,) and () and (3,) do not broadcast: dimension -1 is 2 in one"
            " and 3 in another; they must be equal or 1"
        ),
    ),
    "lerp": (
        lambda: weft.lerp(weft.ones(2), weft.ones(3), 0.5),
        weft.ShapeError,
        (
            "lerp: sub: shapes (3,) and (2,) do not broadcast: dimension -1 is 3 in one and 2 in "
            "another; they must be equal or 1"
        ),
    ),
    "vmap sizes": (
        lambda: weft.vmap(lambda x, y: x + y)(weft.ones(2), weft.ones(3)),
        weft.ShapeError,
        "vmap: sliced dimensions must have one size, got ['2', '3']",
    ),
    "vmap item": (
        lambda: weft.vmap(lambda x: x.item())(weft.ones(2)),
        weft.ArgumentError,
        (
            "a tensor was used that was made while weft.compile traced a function that failed, or that "
            "kept it to itself, or that stands for one example or step in a function that vmap or scan runs: it has no "
            "value; return it from the function"
        ),
    ),
    "compile print branch": (
        lambda: weft.compile(lambda x: x if x.sum() > 0 else -x, fullgraph=True)(weft.ones(2)),
        weft.ArgumentError,
        (
            "compile: the function asks for the value of a tensor (item, bool, numpy, tolist, print, a "
            "mask as index) while it is traced, when there is none yet; use weft.where instead of if, "
            "return the tensor and read it outside, leave this part uncompiled, or compile without fullgraph=True"
        ),
    ),
    "compile noncallable": (
        lambda: weft.compile(3),
        weft.DTypeError,
        "compile: expected a function, got 3",
    ),
    "save module": (
        lambda: weft.save(nn.Linear(1, 1), "x.safetensors"),
        weft.ArgumentError,
        (
            "save: the object is a Linear, and only tensors, arrays, dicts, lists, tuples, numbers, "
            "texts and None can be kept; save its state_dict, or what it can be made from"
        ),
    ),
    "dataloader batch": (
        lambda: weft.data.DataLoader([1, 2], batch_size=0),
        weft.ArgumentError,
        "DataLoader: batch_size must be at least 1, got 0",
    ),
    "dataloader workers": (
        lambda: weft.data.DataLoader([1, 2], num_workers=-1),
        weft.ArgumentError,
        "DataLoader: num_workers and timeout must not be negative, got -1, 0",
    ),
    "dataset collate": (
        lambda: list(weft.data.DataLoader([weft.ones(2), weft.ones(3)], batch_size=2)),
        weft.ShapeError,
        "stack: all shapes must be equal, got (2,) and (3,)",
    ),
    "random split": (
        lambda: weft.data.random_split([1, 2, 3], [2, 2]),
        weft.ArgumentError,
        "random_split: lengths [2, 2] do not add up to the 3 examples",
    ),
    "seed": (
        lambda: weft.manual_seed("a"),
        weft.DTypeError,
        "manual_seed: seed must be an int, got 'a'",
    ),
    "clip": (
        lambda: nn.utils.clip_grad_norm_(3, 1.0),
        weft.DTypeError,
        "clip_grad_norm_: expected Tensors, got 3",
    ),
    "init fan": (
        lambda: nn.init.kaiming_normal_(weft.ones(3)),
        weft.ShapeError,
        "kaiming_normal_: init: fans need a weight of at least 2 dimensions, got shape (3,)",
    ),
    "init gain": (
        lambda: nn.init.calculate_gain("foo"),
        weft.ArgumentError,
        (
            "calculate_gain: 'foo' is not one of linear, conv1d, conv2d, conv3d, conv_transpose1d, "
            "conv_transpose2d, conv_transpose3d, sigmoid, tanh, relu, selu, leaky_relu"
        ),
    ),
    "bincount neg": (
        lambda: weft.bincount(weft.tensor([-1])),
        weft.ArgumentError,
        "bincount: needs integers that are not negative, got -1",
    ),
    "dlpack": (
        lambda: weft.from_dlpack(3),
        weft.DTypeError,
        "from_dlpack: expected an object with __dlpack__, got 3",
    ),
    "grad fn": (
        lambda: weft.func.grad(lambda x: x * 2)(weft.ones(2)),
        weft.GradError,
        (
            "grad: only a tensor of one element has an implicit gradient, this one has shape (2,); "
            "reduce it, as in .sum(), or pass gradient="
        ),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_message(name: str) -> None:
    act, error, message = MISTAKES[name]
    with pytest.raises(error) as caught:
        act()
    assert caught.value.message == message
    assert Path(caught.value.location.rpartition(":")[0]).name == Path(__file__).name


def test_there_are_enough() -> None:
    from tests.core.test_errors import MISTAKES as BASIC

    assert len(BASIC) + len(MISTAKES) >= 120


def test_a_module_without_forward_says_so() -> None:
    class Empty(nn.Module):
        pass

    with pytest.raises(NotImplementedError, match=r"Module \[Empty\] is missing .* define forward\(self"):
        Empty()(weft.ones(1))
