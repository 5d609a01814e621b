"""Kernels of forms on disk: found without the kernelizer, never believed when they are others."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import disk_cache, pack
from weft.ir.calls import expand_calls
from weft.ir.graph import Node
from weft.ir.kernel import digest as digests
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.digest import digest, digest_of
from weft.ir.ops import Op
from weft.scheduler.basic import form_kernels as kept
from weft.scheduler.basic.form import Form, Read
from weft.scheduler.pickles import pickled

PROGRAM = """
import contextlib, sys, weft, numpy as np
from weft.scheduler.basic import tiers
n = int(sys.argv[1])
with tiers.ahead() if "ahead" in sys.argv else contextlib.nullcontext():
    x = weft.tensor(np.arange(6 * n, dtype=np.float32).reshape(6, n) / 8)
    y = (x * 3 + 1).softmax(-1) @ x.T
    z = weft.cat([x[:, 1:], y[:, :2]], 1)
    print(repr((y.tolist(), z.tolist(), weft.scan(lambda c, r: (c + r, c * r), x[0], x)[1].tolist())))
print(*sorted(m for m in sys.modules if m.startswith("weft.")), sep="\\n", file=sys.stderr)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own, where nothing is verified and no form is in memory."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_VERIFY", "0")
    kept._forms.clear()
    yield tmp_path
    kept._forms.clear()


def run(*argv: str) -> tuple[str, set[str]]:
    """What the program printed, and the modules that it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *argv], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout, set(done.stderr.split())


def form(op: Op | None = Op.SUM) -> Form:
    """Rows of numbers, summed."""
    dtype = weft.float32
    return Form(Read(0, (0, 1)), op, 2 if op is None else 1, (1 << 20, 1 << 20), (dtype,), "cpu:0")


def test_other_graphs_of_known_forms_need_no_kernelizer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_TIERS", "1")
    _, modules = run("8", "ahead")
    assert "weft.scheduler.kernelize.kernels" in modules
    found, modules = run("14")
    for heavy in ("kernelize.kernels", "kernelize.emit", "lowering", "optimize.rules", "build", "planned"):
        assert f"weft.scheduler.{heavy}" not in modules
    monkeypatch.setenv("WEFT_VERIFY", "1")
    verified, modules = run("14")
    assert "weft.scheduler.kernelize.kernels" in modules
    for mine, theirs in zip(eval(found), eval(verified), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_kernels_are_as_they_were_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kept.of_form(form(), 31)
    kept._forms.clear()
    monkeypatch.setattr(kept, "kernels_of", None)
    read = kept.of_form(form(), 31)
    assert read is not made and read.variables == made.variables
    assert [n.shape for n in read.leaves] == [n.shape for n in made.leaves]
    (mine,), (theirs,) = read.specs, made.specs
    assert mine.algorithm == theirs.algorithm and mine.why == theirs.why
    assert (mine.flops, mine.bytes) == (theirs.flops, theirs.bytes)
    assert mine.reads == read.leaves and mine.writes == (read.root,)
    assert digest(mine.algorithm) == digest_of(theirs.algorithm)


def _other(data: bytes, **changes: Any) -> bytes:
    return pickled(replace(pickle.loads(data), **changes))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-9],
        lambda data: pickled([1, 2]),
        lambda data: _other(data, name="another"),
        lambda data: data.replace(b"_Entry", b"_Enemy"),
        lambda data: data.replace(b"form_kernels", b"from_kernels"),
    ],
)
def test_other_bytes_are_no_entry(folder: Path, damage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kept.of_form(form(), 31)
    (file,) = folder.glob("form/*/*")
    key = kept._key(kept._name(form(), 31))
    data = disk_cache.get("form", key)
    assert data is not None and file.exists()
    disk_cache.put("form", key, damage(data))
    kept._forms.clear()
    again = kept.of_form(form(), 31)
    assert again.specs[0].algorithm == made.specs[0].algorithm
    assert disk_cache.get("form", key) == data, "it is written anew"


def test_names_differ_where_forms_do() -> None:
    one = form()
    forms = [
        one,
        form(None),
        form(Op.MAX),
        replace(one, bounds=(1 << 20, 1 << 10)),
        replace(one, leaves=(weft.float64,)),
        replace(one, tree=Read(0, (1, 0))),
        replace(one, numbers=1),
    ]
    names = {kept._name(f, buffers) for f in forms for buffers in (8, 31)}
    assert len(names) == 2 * len(forms)


def test_what_has_no_text_of_its_own_has_no_digest() -> None:
    node: Node = weft.ones(3).value.node
    with pytest.raises(TypeError):
        digest_of((1, node))
    with pytest.raises(TypeError):
        digest_of(frozenset({1}))
    assert digest_of((1, "1", 1.0, None, b"1")) != digest_of((1, 1, 1.0, None, b"1"))
    assert digest_of((0.0,)) != digest_of((-0.0,))


def test_kernels_are_on_the_tensors_that_others_write() -> None:
    x = weft.ones(4, 6).realize()
    y = (x.softmax(-1) @ weft.ones(6, 5).realize()).sin().sum(0)
    (root,) = expand_calls([y.value.node])
    specs = kept.kernels_of(root, 31)
    assert len(specs) > 1
    leaves = tuple(dict.fromkeys(n for s in specs for n in s.reads if n.storage is not None))
    made = kept.FormKernels(specs, leaves, root)
    read = kept._decoded(kept._encoded("name", made), "name", form())
    assert read is not None and len(read.specs) == len(specs)
    same: dict[Node, Node] = {}
    for mine, theirs in zip(read.specs, specs, strict=True):
        for a, b in ((mine.reads, theirs.reads), (mine.writes, theirs.writes)):
            assert all(same.setdefault(m, t) is t for m, t in zip(a, b, strict=True))
    assert len(set(same.values())) == len(same)
    assert same[read.root] is root and [same[n] for n in read.leaves] == list(leaves)


def test_entries_are_of_the_sources_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    one = kept._key("name")
    monkeypatch.setattr(disk_cache, "compiler", lambda: "others")
    assert kept._key("name") != one


def test_digests_come_with_entries(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (made,) = kept.of_form(form(), 31).specs
    name = digest(made.algorithm)
    kept._forms.clear()
    digests._digests.clear()
    (read,) = kept.of_form(form(), 31).specs
    monkeypatch.setattr(digests, "digest_of", None)
    assert digest(read.algorithm) == name


def test_digests_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "DIGESTS_KEPT", 3)
    digests._digests.clear()
    (spec,) = kept.of_form(form(), 31).specs
    for k in range(5):
        assert digest(replace(spec.algorithm, name=f"sum{k}"))
    assert len(digests._digests) == 3


def test_nothing_is_read_while_verifying(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.of_form(form(), 31)
    kept._forms.clear()
    monkeypatch.setenv("WEFT_VERIFY", "1")
    for place in (pack, disk_cache):
        monkeypatch.setattr(place, "get", None)
    assert kept.of_form(form(), 31).specs


def test_threads_may_remember_digests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are made with one lock and programs with another: the table changed while the oldest one was looked for."""
    monkeypatch.setattr(digests, "DIGESTS_KEPT", 8)
    monkeypatch.setattr(digests, "_digests", {})
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def remember(thread: int) -> None:
        for k in range(4000):
            digests.remember(Algorithm(f"{thread} {k}", (), (), ()), "digest")

    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(remember, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert len(digests._digests) == 8
