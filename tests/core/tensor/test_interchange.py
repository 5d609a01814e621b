"""Tensors as other libraries' arrays: whose memory they are, and in which dtype they arrive."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import weft

DTYPES = (
    "float32",
    "float64",
    "float16",
    "int8",
    "uint8",
    "int64",
    "bool",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3)])
def test_torchs_tensors_come_in_with_their_dtype_and_values(name: str, shape: tuple[int, ...]) -> None:
    import torch

    theirs = torch.from_numpy(np.random.default_rng(0).integers(0, 2, shape)).to(getattr(torch, name))
    for taken in weft.from_torch(theirs), weft.from_dlpack(theirs):
        assert taken.dtype is getattr(weft, name) and taken.shape == shape
        assert taken.double().tolist() == theirs.double().tolist()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("name", [n for n in DTYPES if "bfloat" not in n and "float8" not in n])
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3)])
def test_torch_reads_tensors_through_dlpack(name: str, shape: tuple[int, ...]) -> None:
    import torch

    x = weft.from_numpy(np.random.default_rng(0).integers(0, 2, shape)).to(getattr(weft, name))
    theirs = torch.from_dlpack(x)
    assert theirs.dtype is getattr(torch, name) and tuple(theirs.shape) == shape
    assert theirs.tolist() == x.tolist()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_that_dlpack_cannot_carry_name_the_view_of_their_bits(name: str) -> None:
    x = weft.ones(3).to(getattr(weft, name))
    with pytest.raises(BufferError, match=rf"NumPy cannot export {name}.*\.view\(weft\.u?int"):
        np.from_dlpack(x)


@pytest.mark.parametrize(("device", "shared"), [("cpu", True), ("dummy:0", False)])
def test_arrays_are_read_only_and_of_the_tensors_memory_where_the_host_reads_it(
    device: str, shared: bool
) -> None:
    x = weft.arange(6.0, device=device) * 2
    first, second = np.asarray(x), np.asarray(x)
    assert not first.flags.writeable and first.tolist() == [0, 2, 4, 6, 8, 10]
    assert np.shares_memory(first, second) is shared


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2, 2)])
def test_arrays_without_elements(shape: tuple[int, ...]) -> None:
    x = weft.ones(*shape)
    assert np.asarray(x).shape == shape and not np.asarray(x).flags.writeable


def test_dlpack_says_where_tensors_are_and_takes_arrays_of_the_cpu() -> None:
    assert weft.ones(2).__dlpack_device__() == weft.ones(2, device="dummy:0").__dlpack_device__() == (1, 0)
    assert weft.from_dlpack(np.arange(3.0)).tolist() == [0, 1, 2]
