"""torch's types as classes, dtypes that are names, shapes, and devices that are only named or have no values."""

from __future__ import annotations

import copy
import importlib.util
import operator
import pickle
from typing import get_type_hints

import numpy as np
import pytest

import weft
from weft import naming
from weft.ir.dtypes import NAMED

HAVE_TORCH = importlib.util.find_spec("torch") is not None


def test_types_are_classes() -> None:
    def f(
        a: weft.LongTensor | None, b: weft.FloatTensor | None, c: weft.BoolTensor | weft.Tensor | None,
        d: weft.Generator | None, e: weft.dtype | None, g: weft.device | str,
        h: weft.Size | None, i: weft.layout | None,
        j: weft.memory_format | None, k: weft.Tensor | None = None,
    ) -> list[weft.HalfTensor]: ...  # fmt: skip

    assert len(get_type_hints(f)) == 11
    x = weft.FloatTensor([1, 2])
    assert (
        isinstance(x, weft.FloatTensor)
        and not isinstance(x, weft.LongTensor)
        and isinstance(weft.FloatTensor, type)
    )
    assert x.dtype is weft.float32 and weft.FloatTensor.dtype is weft.float32
    assert weft.LongTensor(2, 3).shape == (2, 3) and weft.FloatTensor(weft.Size([4, 5])).shape == (4, 5)
    assert weft.Tensor(weft.Size([4, 5])).shape == (4, 5) and weft.FloatTensor().numel() == 0
    assert (
        weft.IntTensor(np.array([1.0, 2.0])).tolist() == [1, 2] and weft.ByteTensor([1]).dtype is weft.uint8
    )
    assert x.type() == "weft.FloatTensor" == weft.typename(x) and x.long().type() == "weft.LongTensor"
    assert x.type("torch.DoubleTensor").dtype is weft.float64 and x.type(weft.LongTensor).dtype is weft.int64
    assert x.type(x.half().type()).dtype is weft.float16 and x.to("dummy").type() == "weft.dummy.FloatTensor"
    assert (
        isinstance(weft.float32, weft.dtype)
        and isinstance(weft.strided, weft.layout)
        and x.layout is weft.strided
    )
    assert repr(weft.LongTensor) == "<class 'weft.LongTensor'>" and weft.sparse_coo is not weft.strided


def test_one_hook_names_the_package_in_texts() -> None:
    x = weft.ones(2, 3)
    naming.call_it("torch")
    try:
        texts = [
            weft.float32,
            x.shape,
            x.type(),
            weft.contiguous_format,
            weft.strided,
            weft.FloatTensor,
            x.device,
        ]
        assert [str(t) for t in texts] == [
            "torch.float32", "torch.Size([2, 3])", "torch.FloatTensor", "torch.contiguous_format", "torch.strided",
            "<class 'torch.FloatTensor'>", "cpu",
        ]  # fmt: skip
        assert repr(weft.device("cuda", 1)) == "device(type='cuda', index=1)" and "dtype=torch.int32" in repr(
            x.int()
        )
    finally:
        naming.call_it(naming.OWN)
    assert str(weft.float32) == "weft.float32" and str(x.shape) == "weft.Size([2, 3])"


def test_shapes_stay_shapes() -> None:
    s, four = weft.Size([2, 3]), (4,)
    for made in (s + four, four + s, s * 2, 2 * s, s[:1]):
        assert type(made) is weft.Size
    assert four + s == (4, 2, 3) and s + four == (2, 3, 4) and weft.zeros(four + s).shape == (4, 2, 3)
    with pytest.raises(TypeError):
        operator.add(s, [1])
    assert pickle.loads(pickle.dumps(s)) == s


def test_dtypes_that_are_names() -> None:
    table = {weft.complex64: "C64", weft.cdouble: "C128", weft.float8_e8m0fnu: "F8_E8M0", weft.quint8: "q"}
    assert table[weft.cfloat] == "C64" and weft.complex64.is_complex and not weft.complex64.is_floating_point
    assert weft.complex64.itemsize == 8 and weft.complex128.itemsize == 16 and weft.chalf.itemsize == 4
    assert str(weft.complex64) == "weft.complex64" and weft.float32.to_complex() is weft.complex64
    assert weft.promote_types(weft.complex64, weft.float64) is weft.complex128
    assert weft.promote_types(weft.int64, weft.complex32) is weft.complex32
    assert pickle.loads(pickle.dumps(weft.complex64)) is weft.complex64 is copy.deepcopy(weft.complex64)
    assert weft.finfo(weft.complex128).bits == 64 and weft.finfo(weft.float8_e4m3fnuz).max == 240
    x = weft.ones(2)
    for name, dtype in NAMED.items():
        assert isinstance(dtype, weft.dtype) and getattr(weft, name) is dtype and x.dtype != dtype
        for use in (
            lambda d=dtype: weft.zeros(2, dtype=d), lambda d=dtype: x.to(d),
            lambda d=dtype: weft.tensor([1.0], dtype=d),
            lambda d=dtype: weft.empty_like(x, dtype=d), lambda d=dtype: weft.arange(3, dtype=d),
            lambda d=dtype: x.sum(dtype=d), lambda d=dtype: weft.rand(2, dtype=d), lambda d=dtype: x.type(d),
            lambda d=dtype: weft.full((2,), 1.0, dtype=d), lambda d=dtype: weft.nn.Linear(2, 2, dtype=d),
            lambda d=dtype: weft.iinfo(d), lambda d=dtype: x.view(d), lambda d=dtype: weft.set_default_dtype(d),
            lambda d=dtype: weft.eye(2, dtype=d), lambda d=dtype: x.new_zeros(2, dtype=d),
        ):  # fmt: skip
            with pytest.raises(weft.DTypeError, match=name):
                use()


@pytest.mark.skipif(not HAVE_TORCH, reason="compares with torch")
def test_dtypes_that_are_names_beside_torch() -> None:
    import torch

    for name in NAMED:
        ours, theirs = getattr(weft, name), getattr(torch, name)
        assert (ours.itemsize, ours.is_complex, ours.is_floating_point) == (
            theirs.itemsize, theirs.is_complex, theirs.is_floating_point,
        )  # fmt: skip
    for a in ("complex32", "complex64", "complex128"):
        for b in (
            "bool",
            "int64",
            "float16",
            "bfloat16",
            "float32",
            "float64",
            "complex32",
            "complex64",
            "complex128",
        ):
            want = torch.promote_types(getattr(torch, a), getattr(torch, b))
            for x, y in ((a, b), (b, a)):
                assert f"torch.{weft.promote_types(getattr(weft, x), getattr(weft, y)).name}" == str(want), (
                    x,
                    y,
                )
        assert str(getattr(weft, a).to_real()).split(".")[1] == str(getattr(torch, a).to_real()).split(".")[1]
    for name in (
        "complex64",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float8_e4m3fn",
        "float16",
    ):
        got, want = weft.finfo(getattr(weft, name)), torch.finfo(getattr(torch, name))
        for field in ("bits", "max", "min", "eps", "tiny", "smallest_normal", "dtype"):
            assert getattr(got, field) == getattr(want, field), (name, field)


def test_devices_are_only_named() -> None:
    d = weft.device("cuda")
    assert (d.type, d.index, str(d), repr(d)) == ("cuda", None, "cuda", "weft.device('cuda')")
    assert str(weft.device("cuda", 0)) == "cuda:0" and weft.device("cuda:3").index == 3
    assert str(weft.device(type="mps")) == "mps" and weft.device("xpu:1").type == "xpu"
    assert weft.device(1) == "cuda:1" and weft.device(d) == d and weft.device(d).index is None
    assert str(weft.device("cpu")) == "cpu" and str(weft.device("cpu:0")) == "cpu:0"
    x = weft.ones(2)
    assert (
        x.device == weft.device("cpu") and x.device == "cpu" and x.device != "cuda" and x.device.type == "cpu"
    )
    assert hash(x.device) == hash(weft.device("cpu")) and x.device in {weft.device("cpu")}
    assert weft.get_default_device() == weft.device("cpu") and weft.get_default_device().type == "cpu"
    assert isinstance(x.device, weft.device) and x.is_cpu and not x.is_cuda
    for again in (pickle.loads(pickle.dumps(d)), copy.deepcopy(d)):
        assert again == d and str(again) == "cuda" and again.index is None
    for wrong in ("nonsense", "cpu:x", ""):
        with pytest.raises(weft.DeviceError):
            weft.device(wrong)
    for use in (
        lambda: x.to("mps"),
        lambda: weft.zeros(2, device=weft.device("xpu")),
        lambda: weft.device("mps").__enter__(),
    ):
        with pytest.raises(weft.DeviceError, match="torch has such devices, weft has not"):
            use()
    weft.set_default_device("dummy:1")
    try:
        assert str(weft.get_default_device()) == "dummy:1" == str(weft.ones(1).device)
    finally:
        weft.set_default_device(None)
    assert weft.ones(1).device.type == "cpu"


def test_meta_tensors_have_shapes_and_dtypes() -> None:
    m = weft.empty(2, 3, device="meta")
    assert m.is_meta and str(m.device) == "meta" and repr(m) == "tensor(..., device='meta', size=(2, 3))"
    assert (
        (m @ m.T).shape == (2, 2)
        and (m @ m.T).is_meta
        and (m + 1).is_meta
        and (2 * m.half()).dtype is weft.float16
    )
    made = [
        m.view(3, 2), m.sum(0), m.clone(), weft.cat([m, m]), m.new_zeros(4), weft.zeros_like(m), m[0], m.softmax(-1),
        weft.randn(2, device="meta"), weft.tensor([1.0], device="meta"), weft.ones(2).to("meta"), m.to(m), m.detach(),
        weft.nn.functional.conv1d(weft.empty(1, 2, 8, device="meta"), weft.empty(3, 2, 3, device="meta")),
        weft.arange(4, device="meta"), weft.full((2,), 3.0, device=weft.device("meta")), m.to(weft.bfloat16), m > 0,
    ]  # fmt: skip
    assert all(t.is_meta for t in made)
    for read in (
        lambda: m.sum().item(), lambda: m.tolist(), lambda: m.numpy(), lambda: bool(m.sum() > 0), lambda: m.realize(),
        lambda: (m + 1).tolist(), lambda: m[m > 0], lambda: np.asarray(m),
    ):  # fmt: skip
        with pytest.raises(
            weft.DeviceError, match=r"on the device 'meta' has a shape and a dtype, but no values"
        ):
            read()
    with pytest.raises(weft.DeviceError, match=r"no values to copy to cpu:0; .*to_empty\(device='cpu'\)"):
        m.cpu()
    with pytest.raises(weft.DeviceError):
        m + weft.tensor([1.0, 2.0, 3.0])
    with pytest.raises(weft.ShapeError):
        m @ m
    with pytest.raises(weft.DeviceError):
        weft.ones(2, 3).copy_(m)
    m.copy_(weft.ones(2, 3))
    assert m.is_meta
    assert weft.compile(lambda x: x + 1)(m).is_meta and weft.compile(lambda: m * 2)().is_meta
    assert weft.compile(lambda x: (x * 2, weft.zeros(2, device="meta"))[1])(weft.ones(2)).is_meta


def test_modules_are_made_without_values() -> None:
    weft.manual_seed(0)
    before = weft.get_rng_state().tolist()
    with weft.device("meta"):
        net = weft.nn.Sequential(
            weft.nn.Linear(3, 4), weft.nn.BatchNorm1d(4), weft.nn.LSTM(4, 5, batch_first=True),
        )  # fmt: skip
        assert net[0](weft.ones(2, 3)).shape == (2, 4)
    assert all(t.is_meta for t in net.state_dict().values()) and weft.get_rng_state().tolist() == before
    out = net[1].train()(net[0](weft.empty(6, 3, device="meta")))
    assert out.is_meta and out.shape == (6, 4) and weft.ones(2).sum().item() == 2
    with pytest.raises(weft.DeviceError, match="to_empty"):
        net.to("cpu")
    real = weft.nn.Sequential(
        weft.nn.Linear(3, 4), weft.nn.BatchNorm1d(4), weft.nn.LSTM(4, 5, batch_first=True)
    )
    net.to_empty(device="cpu")
    net.load_state_dict(real.state_dict())
    x = weft.randn(6, 3)
    real.eval(), net.eval()
    np.testing.assert_array_equal(net(x)[0].tolist(), real(x)[0].tolist())


def test_a_meta_module_takes_over_tensors() -> None:
    lazy, real = weft.nn.Linear(3, 4, device="meta"), weft.nn.Linear(3, 4)
    lazy.load_state_dict(real.state_dict(), assign=True)
    assert lazy.weight.tolist() == real.weight.tolist()
