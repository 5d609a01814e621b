"""What weft says about mistakes: for each, the class and the exact message; and that it names the user's own line."""

from __future__ import annotations

import builtins
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.nn import functional as F

Mistake = tuple[Callable[[], Any], type[weft.WeftError], str]


def assign(x: weft.Tensor, key: Any, value: weft.Tensor) -> None:
    x[key] = value


def add_half(x: weft.Tensor) -> None:
    x += 0.5


# fmt: off
MISTAKES: dict[str, Mistake] = {
    "shapes that do not broadcast": (
        lambda: weft.ones(2, 3) + weft.ones(4),
        weft.ShapeError,
        (
            "add: shapes (2, 3) and (4,) do not broadcast: dimension -1 is 3 in one and 4 in another; they "
            "must be equal or 1"
        ),
    ),
    "list operand": (
        lambda: weft.ones(2).add([1, 2]),
        weft.DTypeError,
        "add: cannot combine a Tensor with a list; convert it with weft.tensor(...)",
    ),
    "string operand": (
        lambda: weft.ones(2) * "a",
        weft.DTypeError,
        "mul: cannot combine a Tensor with 'a'; convert it with weft.tensor(...)",
    ),
    "function of a list": (
        lambda: weft.exp([1.0, 2.0]),
        weft.DTypeError,
        "exp: expected a Tensor, got a list; make one with weft.tensor(...)",
    ),
    "subtraction of masks": (
        lambda: (weft.ones(2) > 0) - True,
        weft.DTypeError,
        "sub: not defined on bool; invert a mask with ~ or logical_not, or convert it with .to(...)",
    ),
    "bits of floats": (
        lambda: weft.ones(2) & 1,
        weft.DTypeError,
        (
            "bitwise_and: not defined on float32; it needs bool or integer tensors, so convert with "
            ".to(weft.int64) or another such dtype"
        ),
    ),
    "inverted float": (
        lambda: ~weft.ones(2),
        weft.DTypeError,
        (
            "bitwise_not: not defined on float32; it needs bool or integer tensors, so convert with "
            ".to(weft.int64) or another such dtype"
        ),
    ),
    "negated mask": (
        lambda: -(weft.ones(2) > 0),
        weft.DTypeError,
        "neg: not defined on bool; use logical_not or ~ to invert a mask, or convert with .to(...)",
    ),
    "division by zero": (
        lambda: weft.arange(3) // 0,
        weft.ArgumentError,
        "floor_divide: division of an integer tensor by zero",
    ),
    "negative integer power": (
        lambda: weft.arange(3) ** -2,
        weft.DTypeError,
        "pow: an integer tensor cannot be raised to the negative power -2; convert it to a float dtype",
    ),
    "unknown rounding mode": (
        lambda: weft.div(weft.ones(2), 2, rounding_mode="up"),
        weft.ArgumentError,
        "div: rounding_mode must be None, 'trunc' or 'floor', got 'up'",
    ),
    "where without bool": (
        lambda: weft.where(weft.ones(2), 1.0, 0.0),
        weft.DTypeError,
        "where: condition must be bool, got float32; compare it with something, as in x != 0",
    ),
    "clamp without bounds": (
        lambda: weft.ones(2).clamp(),
        weft.ArgumentError,
        "clamp: at least one of min and max must be given",
    ),
    "truth of many": (
        lambda: bool(weft.ones(2)),
        weft.ShapeError,
        "bool: the truth of a tensor of shape (2,) is ambiguous; use .any() or .all()",
    ),
    "item of many": (
        lambda: weft.ones(2).item(),
        weft.ShapeError,
        "item: needs a tensor of one element, got shape (2,); use .tolist()",
    ),
    "length of a scalar": (
        lambda: len(weft.tensor(1.0)),
        weft.DTypeError,
        "len: a tensor without dimensions has no length",
    ),
    "float as index": (
        lambda: [1, 2, 3][weft.tensor(1.0)],
        weft.DTypeError,
        "index: only integer tensors of one element can be an index, got a float32 Tensor of shape ()",
    ),
    "ragged lists": (
        lambda: weft.tensor([[1, 2], [3]]),
        weft.ShapeError,
        "tensor: the nested lists do not all have the same lengths; a tensor is a full grid",
    ),
    "text data": (
        lambda: weft.tensor("abc"),
        weft.DTypeError,
        "tensor: cannot make a tensor from 'abc'; expected numbers",
    ),
    "text elements": (
        lambda: weft.tensor([1, "a"]),
        weft.DTypeError,
        "tensor: cannot make a tensor from elements such as 'a'; expected numbers",
    ),
    "no data": (
        lambda: weft.tensor(None),
        weft.DTypeError,
        "tensor: cannot make a tensor from None; expected numbers",
    ),
    "complex data": (
        lambda: weft.tensor(np.ones(2, complex)),
        weft.DTypeError,
        (
            "tensor: cannot hold complex128 elements; weft has bool, uint8, uint16, uint32, uint64, int8, "
            "int16, int32, int64, float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64"
        ),
    ),
    "unknown dtype": (
        lambda: weft.zeros(2, dtype="float32"),
        weft.DTypeError,
        "zeros: dtype must be one of weft's, such as weft.float32, got 'float32'",
    ),
    "float size": (
        lambda: weft.zeros(2.5),
        weft.DTypeError,
        "zeros: a size must be an int, got 2.5",
    ),
    "negative size": (
        lambda: weft.ones(2, -1),
        weft.ShapeError,
        "ones: sizes must not be negative, got (2, -1)",
    ),
    "endless range": (
        lambda: weft.arange(0, 10, -1),
        weft.ArgumentError,
        "arange: a step of -1 does not lead from 0 to 10",
    ),
    "zero step": (
        lambda: weft.arange(0, 10, 0),
        weft.ArgumentError,
        "arange: step must not be 0",
    ),
    "random integers as floats": (
        lambda: weft.randn(2, dtype=weft.int32),
        weft.DTypeError,
        "randn: needs a float dtype, got int32; randint draws integers",
    ),
    "empty range of integers": (
        lambda: weft.randint(5, 5, (2,)),
        weft.ArgumentError,
        "randint: high must be greater than low, got low 5 and high 5",
    ),
    "reshape to other count": (
        lambda: weft.ones(2, 3).reshape(4, 2),
        weft.ShapeError,
        "reshape: shape (2, 3) has 6 elements, which do not fit (4, 2)",
    ),
    "reshape two unknowns": (
        lambda: weft.ones(2, 3).reshape(-1, -1),
        weft.ShapeError,
        "reshape: only one size may be -1, got (-1, -1)",
    ),
    "permute twice": (
        lambda: weft.ones(2, 3).permute(0, 0),
        weft.ArgumentError,
        "permute: (0, 0) is no order of the 2 dimensions of shape (2, 3)",
    ),
    "dimension out of range": (
        lambda: weft.ones(2, 3).sum(2),
        weft.IndexError,
        "sum: dimension 2 is out of range for shape (2, 3); it must be from -2 to 1",
    ),
    "dimension named twice": (
        lambda: weft.ones(2, 3).sum((0, -2)),
        weft.ArgumentError,
        "sum: dimension 0 appears twice in (0, -2)",
    ),
    "dimension as float": (
        lambda: weft.ones(2, 3).sum(0.5),
        weft.DTypeError,
        "sum: a dimension must be an int, got 0.5",
    ),
    "expand other than one": (
        lambda: weft.ones(2, 3).expand(2, 4),
        weft.ShapeError,
        "expand: shape (2, 3) does not expand to (2, 4): only sizes of 1 do",
    ),
    "cat different shapes": (
        lambda: weft.cat([weft.ones(2, 3), weft.ones(3, 4)]),
        weft.ShapeError,
        "cat: shapes (2, 3) and (3, 4) differ in more than dimension 0",
    ),
    "cat without list": (
        lambda: weft.cat(weft.ones(2)),
        weft.DTypeError,
        "cat: expected a list or tuple of Tensors, got a float32 Tensor of shape (2,)",
    ),
    "cat nothing": (
        lambda: weft.cat([]),
        weft.ArgumentError,
        "cat: needs at least one Tensor",
    ),
    "stack different shapes": (
        lambda: weft.stack([weft.ones(2), weft.ones(3)]),
        weft.ShapeError,
        "stack: all shapes must be equal, got (2,) and (3,)",
    ),
    "split sections": (
        lambda: weft.ones(5).split([2, 2]),
        weft.ShapeError,
        "split: sections [2, 2] add up to 4, but dimension 0 of (5,) has size 5",
    ),
    "narrow too far": (
        lambda: weft.ones(5).narrow(0, 3, 3),
        weft.ShapeError,
        "narrow: 3 elements from 3 do not fit dimension 0 of shape (5,)",
    ),
    "matmul shapes": (
        lambda: weft.ones(2, 3) @ weft.ones(2, 3),
        weft.ShapeError,
        (
            "matmul: shapes (2, 3) and (2, 3) do not fit: the last dimension of the first is 3, and the "
            "second last one of the second 2"
        ),
    ),
    "matmul scalars": (
        lambda: weft.ones(2, 3) @ weft.tensor(1.0),
        weft.ShapeError,
        "matmul: both tensors need at least 1 dimension, got (2, 3) and (); use * for scalars",
    ),
    "matmul dtypes": (
        lambda: weft.ones(2, 3) @ weft.ones(3, 2).double(),
        weft.DTypeError,
        "matmul: both tensors must have one dtype, got float32 and float64; convert one with .to(...)",
    ),
    "mm ranks": (
        lambda: weft.mm(weft.ones(2, 3, 4), weft.ones(4, 2)),
        weft.ShapeError,
        "mm: needs tensors of 2 and 2 dimensions, got shapes (2, 3, 4) and (4, 2); matmul takes any",
    ),
    "einsum operands": (
        lambda: weft.einsum("ij,jk->ik", weft.ones(2, 3)),
        weft.ArgumentError,
        "einsum: 'ij,jk->ik' names 2 operands, but got 1",
    ),
    "einsum sizes": (
        lambda: weft.einsum("ij,jk->ik", weft.ones(2, 3), weft.ones(4, 2)),
        weft.ShapeError,
        "einsum: label 'j' of 'ij,jk->ik' has size 3 and 4",
    ),
    "mean of integers": (
        lambda: weft.arange(3).mean(),
        weft.DTypeError,
        "mean: needs a float tensor, got int64 of shape (3,); convert it with .float()",
    ),
    "max of nothing": (
        lambda: weft.ones(0, 3).max(),
        weft.ShapeError,
        "max: shape (0, 3) has no elements along dimension 0 to choose from",
    ),
    "index out of range": (
        lambda: weft.ones(3)[3],
        weft.IndexError,
        "indexing: index 3 is out of range for dimension 0 of size 3",
    ),
    "too many indices": (
        lambda: weft.ones(3)[0, 0],
        weft.IndexError,
        "indexing: 2 indices are too many for shape (3,)",
    ),
    "index list out of range": (
        lambda: weft.ones(3)[[0, 5]],
        weft.IndexError,
        "indexing: index 5 is out of range for dimension 0 of size 3",
    ),
    "index with floats": (
        lambda: weft.ones(3)[weft.ones(1)],
        weft.DTypeError,
        "indexing: an index tensor must hold integers or bools, got float32",
    ),
    "index with text": (
        lambda: weft.ones(3)["a"],
        weft.DTypeError,
        (
            "indexing: an index must be an int, a slice, None, ..., or a tensor or list of integers or "
            "bools, got 'a'"
        ),
    ),
    "mask of another shape": (
        lambda: weft.ones(3)[weft.ones(2) > 0],
        weft.IndexError,
        "indexing: a mask of shape (2,) does not fit shape (3,) at dimension 0",
    ),
    "assigned shape": (
        lambda: assign(weft.ones(3), slice(0, 2), weft.ones(3)),
        weft.ShapeError,
        "index assignment: a value of shape (3,) does not fit a place of shape (2,)",
    ),
    "gather out of range": (
        lambda: weft.ones(2, 3).gather(1, weft.tensor([[3]])),
        weft.IndexError,
        "gather: index 3 is out of range for dimension 1 of size 3",
    ),
    "gather negative": (
        lambda: weft.ones(2, 3).gather(1, weft.tensor([[-1]])),
        weft.IndexError,
        "gather: index -1 is out of range for dimension 1 of size 3",
    ),
    "gather ranks": (
        lambda: weft.ones(2, 3).gather(1, weft.tensor([0])),
        weft.ShapeError,
        "gather: input and index must have equally many dimensions, got shapes (2, 3) and (1,)",
    ),
    "scatter dtypes": (
        lambda: weft.ones(3).scatter(0, weft.tensor([0]), weft.ones(1).double()),
        weft.DTypeError,
        "scatter: src is float64, input float32; convert one with .to(...)",
    ),
    "embedding out of range": (
        lambda: F.embedding(weft.tensor([0, 7]), weft.ones(5, 2)),
        weft.IndexError,
        "embedding: index 7 is out of range for dimension 0 of size 5",
    ),
    "embedding of floats": (
        lambda: F.embedding(weft.ones(2), weft.ones(5, 2)),
        weft.DTypeError,
        "embedding: indices must be integers, got float32; convert them with .long()",
    ),
    "target out of range": (
        lambda: F.cross_entropy(weft.ones(2, 3), weft.tensor([0, 3])),
        weft.IndexError,
        "cross_entropy: target 3 is out of range for 3 classes",
    ),
    "target shape": (
        lambda: F.cross_entropy(weft.ones(2, 3), weft.tensor([0, 1, 2])),
        weft.ShapeError,
        "cross_entropy: input of shape (2, 3) needs a target of shape (2,), got (3,)",
    ),
    "loss reduction": (
        lambda: F.mse_loss(weft.ones(2), weft.ones(2), reduction="avg"),
        weft.ArgumentError,
        "mse_loss: reduction must be 'mean', 'sum' or 'none', got 'avg'",
    ),
    "one hot classes": (
        lambda: F.one_hot(weft.tensor([0, 4]), 3),
        weft.IndexError,
        "one_hot: class 4 is out of range for 3 classes; they count from 0",
    ),
    "conv channels": (
        lambda: F.conv2d(weft.ones(1, 3, 8, 8), weft.ones(4, 2, 3, 3)),
        weft.ShapeError,
        (
            "conv2d: input of shape (1, 3, 8, 8) has 3 channels, but weight of shape (4, 2, 3, 3) with "
            "groups=1 takes 2"
        ),
    ),
    "conv kernel too large": (
        lambda: F.conv2d(weft.ones(1, 1, 2, 2), weft.ones(1, 1, 3, 3)),
        weft.ShapeError,
        "conv2d: kernel (3, 3) with dilation (1, 1) exceeds the padded input (1, 1, 2, 2)",
    ),
    "conv rank": (
        lambda: F.conv2d(weft.ones(8, 8), weft.ones(1, 1, 3, 3)),
        weft.ShapeError,
        (
            "conv2d: needs input (n, channels, 2 sizes) and weight of 4 dimensions, got shapes (8, 8) and "
            "(1, 1, 3, 3)"
        ),
    ),
    "linear shapes": (
        lambda: F.linear(weft.ones(2, 3), weft.ones(4, 5)),
        weft.ShapeError,
        "linear: input of shape (2, 3) does not fit weight of shape (4, 5): weight must be (out, in) with in = 3",
    ),
    "layer norm shape": (
        lambda: F.layer_norm(weft.ones(2, 3), (2,)),
        weft.ShapeError,
        "layer_norm: the last dimensions of input, shape (2, 3), must be normalized_shape (2,)",
    ),
    "attention shapes": (
        lambda: F.scaled_dot_product_attention(weft.ones(2, 4, 8), weft.ones(2, 5, 8), weft.ones(2, 4, 8)),
        weft.ShapeError,
        (
            "scaled_dot_product_attention: shapes of query (2, 4, 8), key (2, 5, 8) and value (2, 4, 8) do "
            "not fit; they must be (..., L, E), (..., S, E) and (..., S, Ev)"
        ),
    ),
    "dropout probability": (
        lambda: F.dropout(weft.ones(2), 1.5),
        weft.ArgumentError,
        "dropout: p must be between 0 and 1, got 1.5",
    ),
    "pooling padding": (
        lambda: F.max_pool2d(weft.ones(1, 1, 4, 4), 2, padding=2),
        weft.ArgumentError,
        "max_pool2d: padding 2 may be at most half the kernel, 2 elements 1 apart",
    ),
    "integer requires grad": (
        lambda: weft.arange(3).requires_grad_(),
        weft.GradError,
        "requires_grad_: only float tensors can require grad, got int64",
    ),
    "backward of many": (
        lambda: (weft.ones(2, requires_grad=True) * 2).backward(),
        weft.GradError,
        (
            "backward: only a tensor of one element has an implicit gradient, this one has shape (2,); "
            "reduce it, as in .sum(), or pass gradient="
        ),
    ),
    "backward without grad": (
        lambda: weft.ones(2).sum().backward(),
        weft.GradError,
        (
            "backward: this tensor of shape () does not depend on one that requires grad; set "
            "requires_grad=True on the inputs, and compute outside no_grad"
        ),
    ),
    "in place on a parameter": (
        lambda: add_half(weft.ones(2, requires_grad=True)),
        weft.GradError,
        "add_: this tensor requires grad and its gradients would be lost; do it under weft.no_grad()",
    ),
    "in place result kind": (
        lambda: add_half(weft.arange(3)),
        weft.DTypeError,
        "add_: the result is float32, which a tensor of int64 cannot hold; write x = x ... to get a new tensor",
    ),
    "in place result shape": (
        lambda: weft.ones(2).add_(weft.ones(3, 2)),
        weft.ShapeError,
        "add_: the result has shape (3, 2), the tensor (2,)",
    ),
    "gradient of unused": (
        lambda: weft.gradients(weft.ones(1, requires_grad=True) * 2, weft.ones(1, requires_grad=True)),
        weft.GradError,
        (
            "grad: no output depends on input 0 of shape (1,), or it does not require grad; pass "
            "allow_unused=True to get None for it"
        ),
    ),
    "grad of a tensor": (
        lambda: weft.grad(weft.ones(2)),
        weft.DTypeError,
        "grad: expected a function, got a float32 Tensor of shape (2,); weft.gradients takes tensors",
    ),
    "device number": (
        lambda: weft.ones(2).to("cpu:7"),
        weft.DeviceError,
        "there is no device cpu:7: this machine has only cpu:0",
    ),
    "malformed device": (
        lambda: weft.ones(2).to("cpu:x"),
        weft.DeviceError,
        "'cpu:x' is no device name: use a backend and a number, such as 'cpu' or 'dummy:1'",
    ),
    "default dtype": (
        lambda: weft.set_default_dtype(weft.int32),
        weft.DTypeError,
        "set_default_dtype: needs a float dtype, got weft.int32",
    ),
    "threads": (
        lambda: weft.set_num_threads(0),
        weft.ArgumentError,
        "set_num_threads: needs a positive int, got 0",
    ),
}
# fmt: on


@pytest.mark.parametrize("name", MISTAKES)
def test_message(name: str) -> None:
    act, error, message = MISTAKES[name]
    with pytest.raises(error) as caught:
        act()
    assert caught.value.message == message
    assert Path(caught.value.location.rpartition(":")[0]).name == Path(__file__).name


def test_there_are_enough() -> None:
    assert len(MISTAKES) >= 40


def test_errors_are_the_builtins_that_a_python_user_would_catch() -> None:
    pairs = {
        weft.ShapeError: ValueError,
        weft.ArgumentError: ValueError,
        weft.DTypeError: TypeError,
        weft.IndexError: builtins.IndexError,
        weft.DeviceError: RuntimeError,
        weft.MemoryPlanError: MemoryError,
        weft.GradError: RuntimeError,
        weft.FileError: OSError,
    }
    for ours, theirs in pairs.items():
        assert issubclass(ours, theirs) and issubclass(ours, weft.WeftError)
        assert issubclass(ours, RuntimeError)  # as most errors of torch are


def test_the_text_ends_with_the_users_line() -> None:
    frame = inspect.currentframe()
    assert frame is not None
    with pytest.raises(ValueError, match="do not broadcast") as caught:
        F.mse_loss(weft.ones(2), weft.ones(3))
    line = frame.f_lineno - 1
    assert str(caught.value).splitlines()[-1] == f"  at {frame.f_code.co_filename}:{line}"


def test_unknown_backends_are_named_with_those_there_are() -> None:
    with pytest.raises(weft.DeviceError, match=r"there is no backend 'gpu': installed are .*cpu"):
        weft.ones(2).to("gpu")


def test_errors_survive_pickling() -> None:
    with pytest.raises(weft.ShapeError) as caught:
        weft.ones(2).reshape(3)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (weft.ShapeError, str(caught.value))
