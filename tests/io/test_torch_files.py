"""Files in torch's format: torch reads what weft writes, weft what torch writes, with views, devices and classes."""

from __future__ import annotations

import io
import os
import pickle
import threading
import zipfile
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.backends.disk.file import MappedFile
from weft.core.execute import run
from weft.io import load_torch, serialization
from weft.io.archive import Writing
from weft.ir.dtypes import DTYPES


def through(obj: Any, **options: Any) -> Any:
    """Written and read by weft."""
    file = io.BytesIO()
    weft.save(obj, file)
    return weft.load(io.BytesIO(file.getvalue()), **options)


def by_torch(obj: Any, **options: Any) -> io.BytesIO:
    torch = pytest.importorskip("torch")
    file = io.BytesIO()
    torch.save(obj, file, **options)
    file.seek(0)
    return file


def every_dtype() -> dict[str, weft.Tensor]:
    return {name: weft.tensor([0, 1, 1]).to(dtype) for name, dtype in DTYPES.items()}


def test_torch_reads_all_that_is_written() -> None:
    torch = pytest.importorskip("torch")
    x = weft.arange(12.0).reshape(3, 4)
    saved: dict[str, Any] = {
        **every_dtype(), "x": x, "none": weft.zeros(0, 3), "scalar": weft.tensor(2.5),
        "expanded": weft.ones(2, 1).expand(2, 5),
        "parameter": nn.Parameter(weft.ones(2)), "leaf": weft.ones(2, requires_grad=True),
    }  # fmt: skip
    plain = {"size": x.shape, "dtype": weft.float16, "device": x.device, "od": OrderedDict(a=[1, (2.5, None)]),
             "set": {1}, "bytes": b"\x80\xff", "large": -(2**70), "text": "é\ud800"}  # fmt: skip
    file = io.BytesIO()
    weft.save(saved | plain, file)
    got = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    for name, t in saved.items():
        assert got[name].dtype == getattr(torch, t.dtype.name) and tuple(got[name].shape) == tuple(t.shape)
        assert got[name].float().tolist() == t.float().tolist() and got[name].requires_grad == t.requires_grad
    assert isinstance(got["parameter"], torch.nn.Parameter)
    for name, x in plain.items():
        if name not in ("dtype", "device", "size"):
            assert got[name] == x and type(got[name]) is type(x)
    assert (got["size"], got["dtype"], got["device"]) == (
        torch.Size([3, 4]),
        torch.float16,
        torch.device("cpu"),
    )
    back = weft.load(io.BytesIO(file.getvalue()))
    assert back["dtype"] is weft.float16 and back["size"] == (3, 4)
    assert through(defaultdict(list, a=[1]))["new"] == []
    assert (
        type(back["size"]) is weft.Size
        and back["device"] == "cpu:0"
        and type(back["parameter"]) is nn.Parameter
    )


@pytest.mark.parametrize("legacy", [False, True])
def test_all_that_torch_writes_is_read(legacy: bool) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(24.0).reshape(4, 6)
    saved = {name: torch.tensor([0, 1, 1]).to(getattr(torch, name)) for name in DTYPES}
    saved |= {
        "x": x, "t": x.t(), "part": x[1:3, ::2], "row": x[2], "step": x.t()[::3], "expanded": x[:1].expand(3, 6),
        "windows": torch.arange(5).as_strided((3, 3), (1, 1)), "none": x[:0], "scalar": x.sum(),
        "parameter": torch.nn.Parameter(torch.ones(2)), "permuted": torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
    }  # fmt: skip
    got = weft.load(by_torch(saved, _use_new_zipfile_serialization=not legacy))
    for name, t in saved.items():
        assert got[name].dtype.name == str(t.dtype).removeprefix("torch.") and got[name].shape == tuple(
            t.shape
        )
        assert got[name].float().tolist() == t.float().tolist() and got[name].requires_grad == t.requires_grad


@pytest.mark.parametrize("legacy", [False, True])
def test_views_of_torch_stay_views(legacy: bool) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(12.0).reshape(3, 4)
    y = torch.arange(10.0)
    w = torch.nn.Parameter(torch.ones(3))
    saved = {"x": x, "t": x.t(), "row": x[1], "a": y[2:6], "b": y[4:9], "w": w, "tied": w, "data": w.data}
    got = weft.load(by_torch(saved, _use_new_zipfile_serialization=not legacy))
    got["row"][2] = 50
    assert got["x"][1, 2].item() == got["t"][2, 1].item() == 50
    got["t"].mul_(2)
    assert got["x"][1, 2].item() == got["row"][2].item() == 100
    got["a"][3] = -1
    assert got["b"].tolist() == [4, -1, 6, 7, 8] and got["a"].tolist() == [2, 3, 4, -1]
    assert got["w"] is got["tied"]
    got["data"][0] = 7
    assert got["w"].tolist() == [7, 1, 1] and got["w"].requires_grad and not got["data"].requires_grad
    (got["w"] * 2).sum().backward()
    assert got["w"].grad.tolist() == [2, 2, 2]


def test_views_are_written_as_views() -> None:
    torch = pytest.importorskip("torch")
    x = weft.arange(1000.0).reshape(20, 50)
    a, b = (v[10:] for v in weft.arange(2000.0).chunk(2))  # of what nobody has any more
    first = weft.arange(1000.0)[:600]
    second = weft.arange(5.0)[1:]
    alone = weft.arange(100_000)[5:8]
    saved = {"x": x, "t": x.t(), "rows": x[3:5], "step": x[:, ::2], "row": x[7], "one": x[7, 3],
             "wide": x[:1].expand(3, 50),
             "a": a, "b": b, "flip": x.flip(0), "first": first, "again": first[2:4], "second": second, "alone": alone,
             "copy": x.clone(), "sum": x + 1}  # fmt: skip
    file = io.BytesIO()
    weft.save(saved, file)
    assert len(file.getvalue()) < 9 * 4000 + 8000
    for got in (torch.load(io.BytesIO(file.getvalue())), weft.load(io.BytesIO(file.getvalue()))):
        for name, t in saved.items():
            assert got[name].tolist() == t.tolist(), name
        got["x"][7, 3] = -1.0
        assert got["t"][3, 7].item() == got["row"][3].item() == got["one"].item() == -1
        assert got["copy"][7, 3].item() == 353 and got["first"].tolist()[353] == 353
        got["again"][0] = -2.0
        assert got["first"][2].item() == -2


def test_strided_views_of_any_kind() -> None:
    """Against NumPy's: slices and permutations, steps, repeats, overlaps; with writes that reach the storage."""
    from weft.core.functions.stored import strided

    rng = np.random.default_rng(0)
    data = np.arange(200.0)
    for _ in range(60):
        rank = int(rng.integers(0, 4))
        size = [int(n) for n in rng.integers(1, 5, rank)]
        stride = [int(n) for n in rng.choice([0, 1, 2, 3, 4, 5, 8, 12, 20], rank)]
        offset = int(rng.integers(0, 20))
        want = np.lib.stride_tricks.as_strided(data[offset:], size, [8 * s for s in stride])
        assert strided(weft.tensor(data), size, stride, offset).tolist() == want.tolist(), (
            size,
            stride,
            offset,
        )


def test_views_that_repeat_a_shared_element() -> None:
    """A shape of any size over one element asks for no memory, also where others share it."""
    torch = pytest.importorskip("torch")
    x = torch.arange(4.0)
    got = weft.load(
        by_torch({"x": x, "wide": x[1:2].expand(1 << 30, 127, 1), "rows": x[None].expand(1000, 4)})
    )
    assert got["wide"].shape == (1 << 30, 127, 1) and got["wide"][5, 3].item() == 1
    got["x"][1] = 9
    assert got["wide"][1 << 29, 100].item() == got["rows"][999, 1].item() == 9


def test_overlapping_views_of_what_is_gone() -> None:
    x = weft.arange(10.0)
    saved = {"a": x[:6], "b": x[4:8]}
    del x
    got = through(saved)
    got["a"][5] = 50
    assert got["b"].tolist() == [4, 50, 6, 7]


def test_a_training_run_in_memory() -> None:
    """As programs write it, in the middle of a run."""
    torch = pytest.importorskip("torch")
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = optim.AdamW(model.parameters(), lr=0.1)

    def step(model: nn.Module, optimizer: Any) -> float:
        optimizer.zero_grad()
        loss = (model(weft.arange(12.0).reshape(4, 3)) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    step(model, optimizer)
    file = io.BytesIO()
    weft.save(
        {
            "epoch": 1,
            "model": model.state_dict(),
            "opt": optimizer.state_dict(),
            "rng_state": weft.get_rng_state(),
        },
        file,
    )
    file.seek(0)
    saved = weft.load(file, map_location="cpu", weights_only=True)
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    theirs = optim.AdamW(other.parameters(), lr=0.5)
    other.load_state_dict(saved["model"])
    theirs.load_state_dict(saved["opt"])
    weft.set_rng_state(saved["rng_state"])
    assert [step(model, optimizer) for _ in range(3)] == [step(other, theirs) for _ in range(3)]
    file.seek(0)
    seen = torch.load(file, weights_only=True)
    assert seen["model"]["0.weight"].shape == (4, 3) and seen["epoch"] == 1


def test_map_location() -> None:
    file = by_torch({"a": pytest.importorskip("torch").ones(2)})

    def where(**options: Any) -> str:
        file.seek(0)
        return str(weft.load(file, **options)["a"].device)

    asked: list[Any] = []

    def place(storage: Any, location: str) -> Any:
        asked.append((storage, location))
        return storage.to("dummy")

    assert where() == where(map_location=None) == "cpu"
    assert (
        where(map_location="dummy")
        == where(map_location=weft.device("dummy:0"))
        == where(device="dummy")
        == "dummy:0"
    )
    assert (
        where(map_location={"cpu": "dummy:1"}) == "dummy:1"
        and where(map_location={"cuda:0": "dummy"}) == "cpu"
    )
    assert where(map_location=lambda storage, location: storage) == "cpu"
    assert where(map_location=lambda storage, location: storage.cpu()) == "cpu"
    assert where(map_location=lambda storage, location: None) == "cpu"
    assert where(map_location=place) == "dummy:0" and asked[0][1] == "cpu"
    with weft.device("dummy"):
        assert where() == where(map_location=lambda storage, location: None) == "dummy:0"
        assert where(map_location=lambda storage, location: storage) == "cpu"
    file.seek(0)
    assert str(weft.load(file, "dummy")["a"].device) == "dummy:0"
    with pytest.raises(weft.ArgumentError, match="map_location must be"):
        where(map_location=3)


def test_mmap_asks_for_a_path(tmp_path: Path) -> None:
    weft.save({"a": weft.ones(2)}, tmp_path / "x.pt")
    assert weft.load(tmp_path / "x.pt", mmap=True)["a"].tolist() == [1, 1]
    with pytest.raises(weft.ArgumentError, match="needs the path"):
        weft.load(io.BytesIO((tmp_path / "x.pt").read_bytes()), mmap=True)


def test_tensors_may_stay_in_a_checkpoint(tmp_path: Path) -> None:
    x = weft.arange(12.0).reshape(3, 4)
    weft.save(
        {"x": x, "t": x.t(), "b": weft.ones(3).bool(), "e": weft.ones(1).expand(3), "z": weft.zeros(0)},
        tmp_path / "x.pt",
    )
    got = weft.load(tmp_path / "x.pt", device="disk")
    assert (
        got["x"].device.type == "disk"
        and got["x"].tolist() == x.tolist()
        and (got["x"] + 1).sum().item() == 78
    )
    assert got["t"].tolist() == x.t().tolist() and got["e"].tolist() == [1, 1, 1] and got["b"].all().item()
    with pytest.raises(weft.ArgumentError, match="cannot stay on disk"):
        weft.load(io.BytesIO((tmp_path / "x.pt").read_bytes()), device="disk")


def test_a_file_may_be_replaced_before_its_tensors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    weft.save({"a": weft.zeros(4)}, path)
    old = weft.load(path)["a"]
    weft.save({"a": weft.ones(4)}, path)
    assert old.tolist() == [0] * 4 and weft.load(path)["a"].tolist() == [1] * 4
    gone = weft.load(path)["a"]
    path.unlink()
    assert gone.tolist() == [1] * 4


def test_files_that_cannot_seek() -> None:
    torch = pytest.importorskip("torch")
    read, write = os.pipe()
    got: list[bytes] = []

    def drain() -> None:
        with open(read, "rb") as file:
            got.append(file.read())

    reader = threading.Thread(target=drain)
    reader.start()
    with open(write, "wb", buffering=0) as file:
        weft.save({"a": weft.arange(50_000)}, file)
    reader.join()
    assert weft.load(io.BytesIO(got[0]))["a"].sum().item() == 49_999 * 25_000
    assert torch.load(io.BytesIO(got[0]))["a"].sum() == 49_999 * 25_000
    with zipfile.ZipFile(io.BytesIO(got[0])) as archive:
        assert archive.testzip() is None


@pytest.mark.parametrize("kind", ["memory", "own"])
def test_what_is_larger_than_memory_goes_to_any_file(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that are computed and written one by one, by a thread, also to what only has `write`."""

    class Own:
        def __init__(self) -> None:
            self.data = bytearray()

        def write(self, data: Any) -> int:
            self.data += data
            return len(data)

    monkeypatch.setattr(run, "fit_together", lambda nodes: False)
    file: Any = io.BytesIO() if kind == "memory" else Own()
    weft.save([weft.arange(400_000.0) * 2, weft.ones(3)], file)
    data = file.getvalue() if kind == "memory" else bytes(file.data)
    large, small = weft.load(io.BytesIO(data))
    assert large[-1].item() == 799_998 and small.tolist() == [1, 1, 1]


def test_storages_begin_at_multiples_of_64(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weft.save({k: weft.ones(k) for k in range(1, 9)}, tmp_path / "x.pt")
    got = torch.load(tmp_path / "x.pt", mmap=True)
    assert all(t.data_ptr() % 64 == 0 and t.sum() == k for k, t in got.items())


def test_members_of_more_than_4_gib(tmp_path: Path) -> None:
    """In a file with a hole: places and sizes that take more than 32 bits, as others read them."""

    class Sparse(io.FileIO):
        def write(self, data: Any) -> int:
            data = memoryview(data)
            if len(data) > 1000 and not any(data[:100]):
                self.seek(len(data), 1)
                return len(data)
            return super().write(data)

    size, sizes = (4 << 30) + 100, [("a/small", 3), ("a/large", (4 << 30) + 100), ("a/last", 4)]
    with Sparse(tmp_path / "x.zip", "w") as file:
        archive = Writing(file, sizes)  # pyright: ignore[reportArgumentType]
        archive.begin()
        archive.write(b"abc")
        zeros = memoryview(bytes(1 << 26))
        crc = pytest.MonkeyPatch()
        crc.setattr("weft.io.archive.zlib.crc32", lambda data, start=0: 0)  # 4 GiB of it would take seconds
        for at in range(0, size, len(zeros)):
            archive.write(zeros[: min(len(zeros), size - at)])
        crc.undo()
        archive.write(b"last")
        archive.end()
    with zipfile.ZipFile(tmp_path / "x.zip") as found:
        assert [(i.filename, i.file_size) for i in found.infolist()] == sizes
        assert found.read("a/last") == b"last" and found.getinfo("a/last").header_offset > 4 << 30
    from weft.io.archive import Archive
    from weft.io.source import opened

    ours = Archive(opened("load", tmp_path / "x.zip"), "load")
    assert bytes(ours.read("a/last")) == b"last" and ours.members["a/large"].size == size


# --- classes


@dataclass
class Config:
    """What a program keeps beside its weights."""

    width: int
    names: list[str] = field(default_factory=list)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(2, 2), nn.BatchNorm1d(2)
        self.tied = self.first.weight
        self.register_buffer("steps", weft.zeros(1))

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return self.again(self.first(x)) + self.steps


def test_classes_are_refused_by_name_and_run_only_when_said() -> None:
    file = io.BytesIO()
    weft.save(Config(3, ["a"]), file)
    for options in ({}, {"weights_only": True}, {"weights_only": None}, {"pickle_module": pickle}):
        file.seek(0)
        with pytest.raises(weft.FileError, match=r"asks for .*test_torch_files\.Config"):
            weft.load(file, **options)
    file.seek(0)
    assert weft.load(file, weights_only=False) == Config(3, ["a"])
    file.seek(0)
    with serialization.safe_globals([Config]):
        assert serialization.get_safe_globals() == [Config]
        assert weft.load(file) == Config(3, ["a"])
    assert serialization.get_safe_globals() == []
    file.seek(0)
    serialization.add_safe_globals([(Config, f"{Config.__module__}.Config")])
    assert weft.load(file) == Config(3, ["a"])
    serialization.clear_safe_globals()
    file.seek(0)
    with pytest.raises(weft.FileError, match="asks for"):
        weft.load(file)


def test_whole_modules(tmp_path: Path) -> None:
    model = Net()
    x = weft.arange(6.0).reshape(3, 2)
    model(x)
    model.eval()
    weft.save(model, tmp_path / "x.pt")
    with pytest.raises(weft.FileError, match="asks for"):
        weft.load(tmp_path / "x.pt")
    back = weft.load(tmp_path / "x.pt", weights_only=False)
    assert back(x).tolist() == model(x).tolist() and not back.training
    assert [n for n, _ in back.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert list(back.state_dict()) == list(model.state_dict()) and back.tied is back.first.weight
    optimizer = optim.SGD(back.parameters(), lr=0.1)
    back(x).sum().backward()
    optimizer.step()
    assert back.first.bias.tolist() != model.first.bias.tolist()


def test_what_runs_is_run_only_when_said(capsys: pytest.CaptureFixture[str]) -> None:
    file = io.BytesIO()
    weft.save({"a": Evil()}, file)
    for read in (weft.load, load_torch):
        with pytest.raises(weft.FileError, match=r"asks for builtins\.print"):
            read(io.BytesIO(file.getvalue()))
    with serialization.safe_globals([Config]), pytest.raises(weft.FileError):
        weft.load(io.BytesIO(file.getvalue()))
    assert load_torch(io.BytesIO(file.getvalue()), weights_only=False)["a"].type == "__builtin__.print"
    assert capsys.readouterr().out == ""
    weft.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert capsys.readouterr().out == "run\n"


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("run",))


def test_objects_that_hold_themselves_and_each_other() -> None:
    loop: list[Any] = [1]
    loop.append((loop, {"again": loop}))
    back = through(loop)
    assert back[1][0] is back and back[1][1]["again"] is back
    shared = [1, 2]
    a, b = through((shared, shared))
    assert a is b


def test_a_torch_module_is_refused_even_then() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(weft.FileError, match=r"asks for torch\.nn\.modules\.linear\.Linear, a part of torch"):
        weft.load(by_torch(torch.nn.Linear(1, 1)), weights_only=False)


def test_arrays_and_numbers_of_numpy() -> None:
    saved = {"f": np.arange(6.0).reshape(2, 3), "t": np.arange(6).reshape(2, 3).T, "u": np.uint8(3),
             "b": np.array([True]), "s": np.float64(2.5), "0": np.zeros((0, 2)), "c": np.array(1j)}  # fmt: skip
    for got in (through(saved), weft.load(by_torch(saved))):
        for name, x in saved.items():
            assert type(got[name]) is type(x) and got[name].dtype == x.dtype
            np.testing.assert_array_equal(got[name], x)
    with pytest.raises(weft.FileError, match="only numbers are read"):
        through(np.array([{}], object))


def test_large_members_are_read_in_large_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(MappedFile, "in_large_pages", lambda self, begin, end: asked.append(end - begin))
    large = np.random.default_rng(0).standard_normal((600, 1001), np.float32)
    weft.save([weft.tensor(large), 3], tmp_path / "x.pt")
    found = weft.load(tmp_path / "x.pt")[0]
    np.testing.assert_array_equal(found.numpy(), large)
    assert large.nbytes in asked
