"""What is larger than memory is computed in pieces, and is the same; memory stays bounded."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.backends.disk.ahead import ReadAhead
from weft.backends.registry import open_device
from weft.io import load_safetensors, save_safetensors
from weft.scheduler.stream.pieces import Pieces
from weft.scheduler.stream.split import Kind

# A file of 25 MB beside a limit of 21.
ROWS = 100_000
LIMIT = 20 << 20

Make = Callable[[weft.Tensor, weft.Tensor], weft.Tensor]

# (rows, 64) in f32 and bf16, far larger than a piece; how many values of each are computed in pieces
EXPRESSIONS: dict[str, tuple[Make, int]] = {
    "sum": (lambda x, h: x.sum(), 1),
    "mean of rows": (lambda x, h: x.mean(1), 1),
    "maximum of columns": (lambda x, h: x.amax(0), 1),
    "product of few": (lambda x, h: (1 + x.double() / 1e5).prod(), 1),
    "standard deviation": (lambda x, h: x.std(), 2),
    "16-bit sum": (lambda x, h: h.sum(0), 1),
    "both": (lambda x, h: (x * h).sum(1).max(), 1),
    "product": (lambda x, h: x @ weft.arange(64 * 3.0).reshape(64, 3), 1),
    "inner product": (lambda x, h: x.T @ x, 1),
    "softmax of rows": (lambda x, h: x.softmax(-1).sum(0), 1),
    "softmax of columns": (lambda x, h: x.softmax(0).amax(1), 3),
    "differences": (lambda x, h: (x[1:] - x[:-1]).square().sum(), 1),
    "largest where": (lambda x, h: x.argmax(0), 2),
    "flattened": (lambda x, h: (x.flatten() * 2).sum(), 1),
    "halved": (lambda x, h: (x.reshape(2, -1, 64)[1] - x.reshape(2, -1, 64)[0]).mean(), 1),
    # rows are split anew, so no axis of the result is one of the file: it is read at once, mapped
    "no axis": (lambda x, h: x.reshape(2, -1).amax(0).sum(), 0),
    "few rows": (lambda x, h: x[7:9] + x[weft.tensor([3, 1])], 0),
    "small part": (lambda x, h: x[:, 3].sum(), 1),
}


class Count:
    """How many values were computed in pieces, and in how many pieces at least."""

    def __init__(self) -> None:
        self.values = 0
        self.pieces: list[int] = []
        self.kinds: set[Kind] = set()


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> Count:
    count = Count()
    run = Pieces.run

    def counted(self: Pieces, sink: Callable[..., object]) -> None:
        count.values += 1
        count.pieces.append(int(np.prod([level.count for level in self.levels])))
        count.kinds |= {level.kind for level in self.levels}
        run(self, sink)

    monkeypatch.setattr(Pieces, "run", counted)
    return count


def little(device: str, nbytes: int) -> weft.memory_limit:
    """So many bytes may be allocated beside those in use: nothing of these can be given up for them any more."""
    gc.collect()
    with weft.memory_limit(0, device), pytest.raises(weft.MemoryPlanError):
        weft.full((1 << 16,), 0.5, device=device).clone().realize()  # the device's workspace has gone
    return weft.memory_limit(open_device(f"{device}:0").used_bytes() + nbytes, device)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[weft.Tensor, weft.Tensor]]:
    rng = np.random.default_rng(5)
    x = rng.random((ROWS, 64)).astype(np.float32)
    path = tmp_path_factory.mktemp("files") / "x"
    save_safetensors({"x": weft.tensor(x), "h": weft.tensor(x).to(weft.bfloat16)}, path)
    tensors = load_safetensors(path, device="disk")
    yield tensors["x"], tensors["h"]


def test_the_same_as_at_once(files: tuple[weft.Tensor, weft.Tensor], streamed: Count) -> None:
    x, h = files
    at_once = {name: make(x, h).numpy() for name, (make, _) in EXPRESSIONS.items()}
    assert streamed.values == 0
    for name, (make, values) in EXPRESSIONS.items():
        streamed.values = 0
        with little("cpu", LIMIT):
            got = make(x, h).numpy()
        np.testing.assert_allclose(
            got.astype(np.float64), at_once[name].astype(np.float64), rtol=3e-6, atol=1e-7, err_msg=name
        )
        assert streamed.values == values, (name, streamed.values)
    assert 4 < min(streamed.pieces) <= max(streamed.pieces) < 40 and streamed.kinds == {
        Kind.ROWS,
        Kind.COMBINE,
    }


def test_on_a_device_that_does_not_read_files(streamed: Count, tmp_path: Path) -> None:
    a = np.random.default_rng(7).random((2000, 16)).astype(np.float32)
    x = weft.tensor(a).to(f"disk:{tmp_path / 'x'}")
    two, one = weft.tensor(2.0, device="dummy"), weft.tensor(1.0, device="dummy")
    with little("dummy", 200 << 10):
        total, rows = (x * two).sum(0), (x * one).amax(1)
        assert total.device == rows.device == "dummy:0"
        np.testing.assert_allclose(total.numpy(), a.sum(0) * 2, rtol=1e-5)
        np.testing.assert_array_equal(rows.numpy(), a.max(1))
        assert streamed.values == 2
    with weft.device("dummy"), little("dummy", 200 << 10):
        total, streamed.values = (x + 1).sum(0), 0
    with little("dummy", 200 << 10):
        assert total.device == "dummy:0"
        np.testing.assert_allclose(total.numpy(), (a + 1).sum(0), rtol=1e-5)
        assert streamed.values == 1
    with little("dummy", 110 << 10), pytest.raises(weft.MemoryPlanError, match="no axis splits <"):
        (x * one).reshape(2, -1).amax(0).sum().item()


def test_reductions_of_one_file_read_it_once(files: tuple[weft.Tensor, weft.Tensor], streamed: Count) -> None:
    x, h = files

    def made() -> list[weft.Tensor]:
        return [x.mean(0), x.amax(), x.square().sum(1).max(), (x * 2).sum(0), x.std(0), h.sum(0)]

    want = [t.numpy() for t in made()]
    assert streamed.values == 0
    results = made()
    with little("cpu", LIMIT):
        weft.realize(*results)
    for t, expected in zip(results, want, strict=True):
        np.testing.assert_allclose(t.double().numpy(), expected.astype(np.float64), rtol=5e-6)
    # the deviation needs the mean first; the rows' sums and the other file are read by themselves
    assert streamed.values <= 4


def test_rows_of_a_file_on_a_device_that_reads_none(tmp_path: Path) -> None:
    """A batch takes memory for the batch; the file is sixteen times as large as the limit."""
    a = np.random.default_rng(3).random((1000, 64)).astype(np.float32)
    labels = np.arange(1000) % 7
    save_safetensors({"x": weft.tensor(a), "y": weft.tensor(labels)}, tmp_path / "x")
    loaded = load_safetensors(tmp_path / "x", device="disk")
    x, y = loaded["x"], loaded["y"]
    with weft.device("dummy"), little("dummy", 16_000):
        index = weft.tensor([3, -4, 5])
        for got, want in (
            (x[[3, 4, -5]], a[[3, 4, -5]]),
            (x[index] * 2 + x[index].amax(0), a[[3, -4, 5]] * 2 + a[[3, -4, 5]].max(0)),
            (x[index.abs() % 7].sum(0), a[[3, 4, 5]].sum(0)),
            (x.gather(0, weft.tensor([[1, 2, 3]])), a[[1, 2, 3], [0, 1, 2]][None]),
            (x[[1, 2], [3, 4]], a[[1, 2], [3, 4]]),
            (x[3:9, ::2] + weft.ones(32), a[3:9, ::2] + 1),
            (x[7] * weft.ones(64), a[7]),
        ):
            assert got.device == "dummy:0"
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
        weft.manual_seed(0)
        loader = weft.data.DataLoader(weft.data.TensorDataset(x, y), batch_size=8, shuffle=True)
        rows = {tuple(row): int(label) for row, label in zip(a[:, :3].tolist(), labels, strict=True)}
        for batch, (xb, yb) in enumerate(loader):
            assert xb.device == "dummy:0"
            for row, label in zip(xb.numpy()[:, :3].tolist(), yb.tolist(), strict=True):
                assert rows[tuple(row)] == label
            if batch == 5:
                break


def test_results_larger_than_memory_go_to_files(
    files: tuple[weft.Tensor, weft.Tensor], streamed: Count, tmp_path: Path
) -> None:
    x, h = files
    a = x.numpy().astype(np.float64)  # NumPy adds rows of float32 one by one
    with little("cpu", LIMIT):
        normal = ((x - x.mean(0)) / x.std(0)).to(f"disk:{tmp_path / 'normal'}")
        made = weft.arange(7_000_003, dtype=weft.float32).to(f"disk:{tmp_path / 'made'}")
        tall = (x * 2).reshape(1, 2, -1).to(f"disk:{tmp_path / 'tall'}")
        save_safetensors({"a": x + 1, "b": h * 2, "c": weft.ones(3)}, tmp_path / "several")
        with pytest.raises(
            weft.MemoryPlanError, match=r"does not fit: .* write it to a file with .to\('disk:PATH'\)"
        ):
            (x * 2).realize()
    assert streamed.values >= 6
    np.testing.assert_allclose(normal.numpy(), (a - a.mean(0)) / a.std(0, ddof=1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(made.numpy(), np.arange(7_000_003, dtype=np.float32))
    np.testing.assert_array_equal(tall.numpy(), (x.numpy() * 2).reshape(1, 2, -1))
    several = load_safetensors(tmp_path / "several")
    np.testing.assert_array_equal(several["a"].numpy(), x.numpy() + 1)
    np.testing.assert_array_equal(several["b"].numpy(), (h * 2).numpy())


def test_compiled_functions_and_gradients(files: tuple[weft.Tensor, weft.Tensor], streamed: Count) -> None:
    x, _ = files
    f = weft.compile(lambda x, w: (x @ w).relu().sum(0))
    w = weft.arange(128.0).reshape(64, 2).requires_grad_()
    loss = ((x @ w - 1) ** 2).mean()
    loss.backward()
    wanted, grad = f(x, w.detach()).numpy(), w.grad.numpy()
    assert streamed.values == 0
    w.grad = None
    with little("cpu", LIMIT):
        g = weft.compile(lambda x, w: (x @ w).relu().sum(0))
        for _ in range(2):
            np.testing.assert_allclose(g(x, w.detach()).numpy(), wanted, rtol=1e-5)
        ((x @ w - 1) ** 2).mean().backward()
        np.testing.assert_allclose(w.grad.numpy(), grad, rtol=1e-4)
    assert streamed.values >= 3


def test_a_file_that_changes_between_pieces_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = weft.zeros(ROWS, 64).to(f"disk:{tmp_path / 'x'}")
    read_ahead = Pieces._read_ahead

    def meddle(self: Pieces, reader: ReadAhead, at: object) -> None:
        with open(tmp_path / "x", "r+b") as file:
            file.write(b" ")
        read_ahead(self, reader, at)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Pieces, "_read_ahead", meddle)
    with little("cpu", LIMIT), pytest.raises(weft.FileError, match="has changed since it was opened"):
        x.sum().item()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_bounded(tmp_path: Path) -> None:
    """A file of 256 MiB with a limit of 64 MiB: the process's peak grows by less than the limit, mapped pages
    included."""
    code = textwrap.dedent(
        f"""
        import weft
        from pathlib import Path

        def peak():
            status = Path("/proc/self/status").read_text()
            return int(status.partition("VmHWM:")[2].split()[0]) << 10

        def steps(x, out):
            total, columns = x.sum().item(), x.amax(0).numpy()
            rows = (x @ weft.ones(1024, 16)).sum().item()
            (x * 2 + 1).to("disk:" + out).sum().item()
            return total, rows / 16

        path = {str(tmp_path)!r}
        with weft.memory_limit(64 << 20):
            small = ((weft.arange(1024 * 9000) % 8).float()).reshape(-1, 1024).to("disk:" + path + "/small")
            steps(small, path + "/small2")
            before = peak()
            x = ((weft.arange(1024 * 65536) % 8).float()).reshape(-1, 1024).to("disk:" + path + "/x")
            total, rows = steps(x, path + "/y")
        assert total == rows == 3.5 * 1024 * 65536, (total, rows)
        print(peak() - before)
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 64 << 20, run.stdout
    assert (tmp_path / "y").stat().st_size > 256 << 20
