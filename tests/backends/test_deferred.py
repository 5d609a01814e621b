"""Elements in files: a device that reads the host's memory borrows the mapped pages, others get a copy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.backends.disk import file
from weft.backends.disk.file import MappedFile
from weft.backends.registry import open_device
from weft.io import load_safetensors, save_safetensors


def _file(tmp_path: Path, shift: int = 0) -> Path:
    """A file with `x`, 0 to 999, at an offset that is `shift` bytes off the alignment of its elements."""
    path = tmp_path / "x.safetensors"
    save_safetensors({"x": weft.arange(1000.0)}, path)
    data = path.read_bytes()
    if shift:
        header = int.from_bytes(data[:8], "little")
        path.write_bytes(
            (header + shift).to_bytes(8, "little") + data[8 : 8 + header] + b" " * shift + data[8 + header :]
        )
    return path


def _storage(t: weft.Tensor) -> Any:
    return t.value.node.storage


@pytest.mark.parametrize("shift", [0, 4, 1, 2, 3, 7])
def test_mapped_elements_are_borrowed_where_they_are_aligned(tmp_path: Path, shift: int) -> None:
    x = load_safetensors(_file(tmp_path, shift), "cpu")["x"]
    assert x.sum().item() == 499500
    assert _storage(x).is_borrowed == (shift % 4 == 0)
    np.testing.assert_array_equal((x * 2).numpy(), np.arange(1000) * 2)


def test_a_device_with_memory_of_its_own_gets_a_copy(tmp_path: Path) -> None:
    x = load_safetensors(_file(tmp_path), "dummy:0")["x"]
    assert x.sum().item() == 499500 and not _storage(x).is_borrowed


def test_borrowed_elements_take_no_memory_of_the_device(tmp_path: Path) -> None:
    x = load_safetensors(_file(tmp_path), "cpu")["x"]
    device = open_device("cpu:0")
    before = device.used_bytes()
    memory = _storage(x).memory
    assert (memory.nbytes, device.used_bytes()) == (4000, before)


def test_updates_in_place_leave_the_file_as_it_is(tmp_path: Path) -> None:
    path = _file(tmp_path)
    data = path.read_bytes()
    x = load_safetensors(path, "cpu")["x"]

    def step() -> None:
        x.add_(1)

    with weft.device("cpu"):
        compiled = weft.compile(step)
        for n in range(1, 4):
            compiled()
            np.testing.assert_array_equal(x.numpy(), np.arange(1000) + n)
        x += 1
        x[3] = 0
    assert x[:5].tolist() == [4, 5, 6, 0, 8]
    assert path.read_bytes() == data


def test_training_starts_from_borrowed_weights(tmp_path: Path) -> None:
    with weft.device("cpu"):
        known = nn.Linear(4, 3)
        save_safetensors(known.state_dict(), tmp_path / "w")
        data = (tmp_path / "w").read_bytes()
        models = nn.Linear(4, 3), nn.Linear(4, 3)
        models[0].load_state_dict(load_safetensors(tmp_path / "w"), assign=True)
        models[1].load_state_dict(known.state_dict())
        for model in models:
            optimizer = weft.optim.SGD(model.parameters(), lr=0.1)

            def step(x: weft.Tensor, model: nn.Linear = model, optimizer: Any = optimizer) -> weft.Tensor:
                optimizer.zero_grad()
                loss = model(x).square().sum()
                loss.backward()
                optimizer.step()
                return loss.detach()

            compiled = weft.compile(step)
            for _ in range(3):
                compiled(weft.ones(2, 4))
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert (tmp_path / "w").read_bytes() == data


def test_a_file_that_was_written_to_is_refused_at_the_next_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "_FRESH_NS", -1)
    path = _file(tmp_path)
    x = load_safetensors(path, "cpu")["x"]
    doubled = weft.compile(lambda: x * 2)
    assert (x.sum().item(), doubled()[1].item()) == (499500, 2)
    with path.open("r+b") as f:
        f.seek(-4, os.SEEK_END)
        f.write(b"1234")
    os.utime(path, ns=(1, 1))
    with pytest.raises(weft.FileError, match="was written to"):
        doubled()
    with pytest.raises(weft.FileError, match="was written to"):
        (x + 1).numpy()
    with pytest.raises(weft.FileError, match="was written to"):
        x.numpy()


def test_a_file_may_be_replaced_or_deleted(tmp_path: Path) -> None:
    path = _file(tmp_path)
    x = load_safetensors(path, "cpu")["x"]
    assert x[1].item() == 1
    save_safetensors({"x": x * 3}, path)
    assert (x[1].item(), load_safetensors(path, "cpu")["x"][1].item()) == (1, 3)
    path.unlink()
    assert x.sum().item() == 499500


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each piece of a file that is let go from now on."""
    found: list[int] = []
    release = MappedFile.release

    def noted(self: MappedFile, begin: int, end: int) -> None:
        found.append(end - begin)
        release(self, begin, end)

    monkeypatch.setattr(MappedFile, "release", noted)
    return found


def test_arrays_outlive_the_tensor_and_pages_are_let_go(tmp_path: Path, released: list[int]) -> None:
    x = load_safetensors(_file(tmp_path), "cpu")["x"]
    array = _storage(x).numpy()
    assert not array.flags.writeable and not released
    del x
    assert released == [4000]
    np.testing.assert_array_equal(array, np.arange(1000))


def test_borrowed_elements_that_rest_take_no_memory_and_come_back(
    tmp_path: Path, released: list[int]
) -> None:
    x = load_safetensors(_file(tmp_path), "cpu")["x"]
    storage = _storage(x)
    storage.rest()
    assert not released, "nothing was read"
    array = storage.numpy()
    storage.rest()
    assert released == [4000]
    np.testing.assert_array_equal(array, np.arange(1000))
    assert x.sum().item() == 499500


def test_borrowed_pages_that_outlive_the_modules_say_nothing(tmp_path: Path) -> None:
    program = (
        "import sys, types\n"
        "sys.late = sys.modules['late'] = types.ModuleType('late')\n"  # the first one of all is cleared last
        "import weft\n"
        "x = weft.load(sys.argv[1])['x']\n"
        "assert x.sum().item() == 499500\n"
        "sys.late.kept = x.value.node.storage, sys.modules['weft.backends.disk.file']\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(_file(tmp_path))], capture_output=True, text=True, check=True
    )
    assert not ended.stderr
