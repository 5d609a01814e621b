"""Tensors in files: `to("disk:path")`, computing from them, and what can happen to a file meanwhile."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
from weft.backends.cpu.device import CpuExecutable
from weft.io import load_safetensors, save_safetensors
from weft.ir.dtypes import DTYPES, to_numpy


def on_disk(path: Path, array: np.ndarray) -> weft.Tensor:
    return weft.tensor(array).to(f"disk:{path}")


def test_round_trip_of_every_dtype(tmp_path: Path) -> None:
    """Bits survive; nothing is read before it is used; a name may have spaces and colons."""
    rng = np.random.default_rng(0)
    for dtype in set(DTYPES.values()):
        array = (rng.random((3, 5)) * 7).astype(to_numpy(dtype))
        path = tmp_path / f"a b:{dtype.name}.safetensors"
        t = on_disk(path, array)
        assert (t.device, t.dtype, t.shape) == (f"disk:{path}", dtype, (3, 5))
        again = weft.load(path, device="disk")["tensor"]
        for x in (t, again, load_safetensors(path)["tensor"]):
            assert x.numpy().tobytes() == array.tobytes()
        np.testing.assert_allclose(
            again.to(weft.float32).sum().item(), array.astype(np.float64).sum(), rtol=1e-5
        )
    for shape in ((0, 4), (), (1,)):
        t = on_disk(tmp_path / "small", np.ones(shape, np.float32))
        assert t.numpy().shape == (t + 1).numpy().shape == shape
        assert (t + 1).sum().item() == 2 * np.prod(shape)
    assert not [p for p in os.listdir(tmp_path) if p.startswith(".")]


def test_what_is_computed_from_a_file_is_on_the_other_operands_device(tmp_path: Path) -> None:
    t = on_disk(tmp_path / "x", np.arange(6, dtype=np.float32).reshape(2, 3))
    assert (t * 2).device == "cpu:0" and (t * weft.ones(3, device="dummy")).device == "dummy:0"
    assert (t * weft.ones(3, device="dummy")).tolist() == t.tolist()
    assert t.to("dummy").device == "dummy:0" and t.to("dummy").tolist() == t.tolist() == t.to("cpu").tolist()
    with weft.device("dummy"):
        assert (t + 1).sum().item() == 21
    made = weft.zeros_like(t)
    made += t
    made.copy_(t)
    assert made.device == "cpu:0" and made.tolist() == t.tolist()
    layer = weft.nn.Linear(3, 2)
    layer.load_state_dict({"weight": t, "bias": weft.ones(2)})
    assert layer.weight.device == "cpu:0"
    assert not np.asarray(t).flags.writeable and pickle.loads(pickle.dumps(t)).tolist() == t.tolist()


def test_what_is_computed_from_files_alone_is_made_on_the_default_device(tmp_path: Path) -> None:
    """As every new tensor, when its function is called. What is in memory, and constants, stay where they are."""
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    x, y = on_disk(tmp_path / "x", a), on_disk(tmp_path / "y", a + 2)
    before, constant = x + 1, weft.ones(3)
    makers = {
        "scalar": (lambda: x + 1, a + 1),
        "two": (lambda: x * y, a * (a + 2)),
        "mean": (lambda: x - x.mean(0), a - a.mean(0)),
        "sorted": (lambda: x.sort(1, descending=True)[0], -np.sort(-a)),
        "row": (lambda: x[1], a[1]),
        "picked": (lambda: x[[1, 0]], a[[1, 0]]),
        "cat": (lambda: weft.cat([x, y]), np.concatenate([a, a + 2])),
        "vmap": (lambda: weft.vmap(lambda r: r.sum() * 2)(x), a.sum(1) * 2),
        "compiled": (lambda: weft.compile(lambda t: t * 2 + y)(x), a * 3 + 2),
        "scan": (lambda: weft.scan(lambda c, r: (c + r, c), weft.zeros(3), x)[0], a.sum(0)),
    }
    with weft.device("dummy"):
        made = {name: make() for name, (make, _) in makers.items()}
        assert {name: t.device for name, t in made.items()} == dict.fromkeys(makers, "dummy:0")
        x.requires_grad_()
        (x * x).sum().backward()
        assert x.grad.device == "dummy:0" and x.grad.tolist() == (2 * a).tolist()
        assert (before * 2).device == (constant + 1).device == "cpu:0"
        with weft.device("cpu"):
            assert (x + 1).device == "cpu:0"
        assert (x * 2).to(f"disk:{tmp_path / 'z'}").tolist() == (a * 2).tolist()
    for name, t in made.items():
        np.testing.assert_allclose(t.numpy(), makers[name][1], rtol=1e-6, err_msg=name)
    assert (x + 1).device == before.device == "cpu:0" and made["scalar"].device == "dummy:0"
    weft.set_default_device("dummy")
    try:
        assert (y + 1).device == "dummy:0" and (y + 1).tolist() == (a + 3).tolist()
    finally:
        weft.set_default_device(None)
    with pytest.raises(weft.DeviceError, match="add: tensors are on dummy:0 and cpu:0"):
        made["scalar"] + weft.tensor([1.0, 2.0, 3.0])


def test_a_kernel_reads_the_mapped_file_itself(tmp_path: Path) -> None:
    """No memory of the pool is taken where the elements are aligned; where they are not, they are copied."""
    array = (np.arange(100_000) % 7).astype(np.float32)
    t = on_disk(tmp_path / "x", array)
    (t + 1).sum().item()
    with weft.memory_limit(300_000):  # less than the tensor
        assert (t + 1).sum().item() == (array + 1).sum(dtype=np.float64)
    raw, tail = (tmp_path / "x").read_bytes(), array.tobytes()
    text = raw[8 : 8 + int.from_bytes(raw[:8], "little")].strip()
    for odd in range(4):
        padded = text + b" " * (odd + 1)
        (tmp_path / "odd").write_bytes(len(padded).to_bytes(8, "little") + padded + tail)
        o = load_safetensors(tmp_path / "odd", device="disk")["tensor"]
        assert (o * 2).sum().item() == (array * 2).sum(dtype=np.float64)


def test_gradients_flow_to_and_through_files(tmp_path: Path) -> None:
    x = weft.tensor([1.0, 2.0, 3.0], requires_grad=True)
    ((x * 2).to(f"disk:{tmp_path / 'mid'}") ** 2).sum().backward()
    assert x.grad.tolist() == [8.0, 16.0, 24.0]
    leaf = load_safetensors(tmp_path / "mid", device="disk")["tensor"].requires_grad_()
    (leaf * leaf).sum().backward()
    assert leaf.grad.tolist() == [4.0, 8.0, 12.0] and leaf.grad.device == "cpu:0"


def test_compiled_functions_take_and_keep_tensors_in_files(tmp_path: Path) -> None:
    t = on_disk(tmp_path / "x", np.arange(6, dtype=np.float32).reshape(2, 3))
    other = on_disk(tmp_path / "y", np.ones((2, 3), np.float32))
    f = weft.compile(lambda x: x * 2 + t)
    for x in (other, weft.ones(2, 3), other):
        assert f(x).tolist() == (x.numpy() * 2 + t.numpy()).tolist()
    assert weft.compile(lambda x: x)(t).device == t.device
    with pytest.raises(weft.ArgumentError, match="on the host"):
        weft.compile(lambda x: x.to(f"disk:{tmp_path / 'z'}"), fullgraph=True)(t)
    written = weft.compile(lambda x: (x + 1).to(f"disk:{tmp_path / 'z'}"))
    for _ in range(3):
        (tmp_path / "z").unlink(missing_ok=True)
        assert written(t).tolist() == (t + 1).tolist() and (tmp_path / "z").exists()
    (tmp_path / "y").write_bytes(b"")
    with pytest.raises(weft.FileError, match="y has changed since it was opened"):
        f(other)


def test_in_place_syntax_is_refused(tmp_path: Path) -> None:
    t = on_disk(tmp_path / "x", np.ones(3, np.float32))
    with pytest.raises(
        weft.DeviceError, match=r"add_: the tensor is in a file .* not changed in place; write x = x"
    ):
        t += 1
    with pytest.raises(weft.DeviceError, match="index assignment: the tensor is in a file"):
        t[0] = 1
    with pytest.raises(weft.DeviceError, match="copy_: the tensor is in a file"):
        t.copy_(weft.zeros(3))
    assert t.tolist() == [1, 1, 1] and t.device.startswith("disk:")


def test_mistakes_with_names(tmp_path: Path) -> None:
    t = on_disk(tmp_path / "x", np.ones(3, np.float32))
    for act in (
        lambda: weft.zeros(2, device=t.device),
        lambda: weft.device("disk"),
        lambda: weft.ones(2, device="disk"),
    ):
        with pytest.raises(
            weft.DeviceError, match=r"'disk' is a memory pool without a device: .*\.to\('disk:PATH'\)"
        ):
            act()
    for name in ("disk", "disk:", "disk:/"):
        with pytest.raises(weft.ArgumentError, match="names no file; use 'disk:PATH'"):
            t.to(name)
    with pytest.raises(weft.ArgumentError, match="the other tensor is in a file"):
        weft.ones(2).to(t)
    with pytest.raises(weft.ArgumentError, match="pass device='disk'"):
        load_safetensors(tmp_path / "x", device=f"disk:{tmp_path}")
    with pytest.raises(FileNotFoundError):
        load_safetensors(tmp_path / "nope", device="disk")
    assert "disk" not in {d.name for d in weft.devices()}


def test_files_that_change(tmp_path: Path) -> None:
    """Written to in place or cut short: refused. Deleted or replaced: the old values stay."""
    path = tmp_path / "x"
    t = on_disk(path, np.arange(3, dtype=np.float32))
    t2 = weft.tensor([5.0, 6.0]).to(f"disk:{path}")
    assert (t + 0).tolist() == [0, 1, 2] and t2.tolist() == [5, 6]
    deferred = load_safetensors(path)["tensor"]
    with open(path, "r+b") as file:
        file.truncate(70)
    for act in (
        lambda: (t2 * 2).tolist(),
        lambda: t2.numpy(),
        lambda: t2.to("dummy").realize(),
        deferred.tolist,
    ):
        with pytest.raises(
            weft.FileError, match=r"x has changed since it was opened with .* 70 bytes now; open it"
        ):
            act()
    with pytest.raises(weft.ArgumentError, match="is no valid safetensors file"):
        load_safetensors(path, device="disk")
    path.unlink()
    assert (t + 0).tolist() == [0, 1, 2]


def test_a_file_that_is_written_to_while_it_is_computed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = CpuExecutable.run
    compiled = weft.compile(lambda x: x * 3)
    compiled(on_disk(tmp_path / "x", np.ones(3, np.float32)))

    def meddled(self: CpuExecutable, *args: Any) -> Any:
        start(self, *args)
        with open(tmp_path / "x", "r+b") as file:
            file.truncate(99)

    for act in (lambda t: (t + 1).realize(), compiled, lambda t: (t * 2).to(f"disk:{tmp_path / 'y'}")):
        t = on_disk(tmp_path / "x", np.ones(3, np.float32))
        with monkeypatch.context() as patched:
            patched.setattr(CpuExecutable, "run", meddled)
            with pytest.raises(weft.FileError, match=r"x has changed since .* 99 bytes now"):
                act(t)
    assert not (tmp_path / "y").exists()


def test_offsets_beyond_4_gib(tmp_path: Path) -> None:
    """In a sparse file: bytes far behind the 32 bits' end are found, on devices that read files and others."""
    rows, far = 5 << 20, (4 << 20) + 5
    data = rows * 1024
    sizes = {"a": ("U8", [rows, 1024], 0, data), "b": ("F32", [300], data, data + 1200)}
    fields = {n: {"dtype": d, "shape": s, "data_offsets": [i, j]} for n, (d, s, i, j) in sizes.items()}
    head = json.dumps(fields).encode()
    head += b" " * (-(8 + len(head)) % 64)
    with open(tmp_path / "x", "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        numbers = np.arange(300, dtype=np.float32).tobytes()
        for at, content in ((3, b"\1"), (far * 1024 + 7, b"\x09"), (data - 1, b"\7"), (data, numbers)):
            file.seek(8 + len(head) + at)
            file.write(content)
    loaded = weft.load(tmp_path / "x", device="disk")
    a = loaded["a"]
    assert loaded["b"].sum().item() == weft.load(tmp_path / "x")["b"].sum().item() == 300 * 299 / 2
    for device in ("cpu", "dummy"):
        with weft.device(device):
            assert a[weft.tensor([far, -1, 0])].sum(1).tolist() == [9, 7, 1]
            assert a[far - 1 : far + 2].sum(1).tolist() == [0, 9, 0] and a[far, 7].item() == 9
    assert a.flatten()[weft.tensor([far * 1024 + 7, data - 1])].tolist() == [9, 7]


def test_names_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python takes them, and "~"; a name may be as long as the system lets it be."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    x = weft.arange(3.0)
    names = ("ünï ☃ 名 a:b", "n" * 255, "~/home", "rel", "./a/../rel2", str(tmp_path / "abs"))
    (tmp_path / "a").mkdir()
    for name in names:
        t = x.to(f"disk:{name}")
        weft.save({"a": x}, Path(name).with_name("s") if len(name) > 99 else name + ".s")
        assert t.tolist() == weft.load(name, device="disk")["tensor"].tolist() == [0, 1, 2]
    monkeypatch.chdir("/")
    assert t.tolist() == [0, 1, 2] and (tmp_path / "home").exists() and weft.load("~/home.s")["a"].tolist()
    with pytest.raises(weft.FileError, match="File name too long"):
        weft.save({"a": x}, tmp_path / ("n" * 256))
    for act in (lambda: weft.save({"a": x}, 3), lambda: weft.load(3)):  # pyright: ignore[reportArgumentType]
        with pytest.raises(weft.DTypeError, match="expected the path of a file, got a int"):
            act()
    with pytest.raises(weft.DTypeError, match="binary mode"):
        weft.save({"a": x}, io.StringIO())  # pyright: ignore[reportArgumentType]
    with pytest.raises(weft.DTypeError, match="binary mode"):
        weft.load(io.StringIO("text"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        weft.DTypeError, match=r"got a pathlib.\w*Path; to write a file, use .to\('disk:PATH'\)"
    ):
        x.to(tmp_path / "x")  # pyright: ignore[reportArgumentType]


def test_files_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there stays, no draft is left behind, and the message is one sentence."""
    path = tmp_path / "x"
    old = on_disk(path, np.arange(3, dtype=np.float32))
    with pytest.raises(
        weft.FileError, match=r"cannot be written: there is no folder .*/none; make it first"
    ) as caught:
        old.to(f"disk:{tmp_path}/none/x")
    assert Path(caught.value.location.rpartition(":")[0]).name == Path(__file__).name
    with pytest.raises(weft.FileError, match=r"cannot be written: .*directory"):
        old.to(f"disk:{tmp_path}")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for act in (lambda: (old + 1).to(f"disk:{path}"), lambda: save_safetensors({"a": old}, path)):
        with pytest.raises(
            weft.FileError, match="x cannot be written: No space left on device; what was there"
        ):
            act()
    assert os.listdir(tmp_path) == ["x"] and load_safetensors(path, device="disk")["tensor"].tolist() == [
        0,
        1,
        2,
    ]


def test_two_threads_use_one_file(tmp_path: Path) -> None:
    array = np.random.default_rng(1).random((64, 64)).astype(np.float32)
    t = on_disk(tmp_path / "x", array)
    found: list[np.ndarray] = []

    def work() -> None:
        for k in range(8):
            found.append(((t * k) @ t).numpy())
            t.to(f"disk:{tmp_path / f'copy {threading.get_ident()}'}")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 24
    wanted = {float((array @ array)[3, 4] * k) for k in range(8)}
    assert all(min(abs(float(f[3, 4]) - w) for w in wanted) < 1e-3 for f in found)


def test_bfloat16_values(tmp_path: Path) -> None:
    array = np.array([1.5, -2.25, 3.0]).astype(ml_dtypes.bfloat16)
    assert (on_disk(tmp_path / "b", array) + 1).tolist() == [2.5, -1.25, 4.0]
