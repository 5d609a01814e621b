"""Kernels on disk: what another plan has compiled is not compiled again, and never believed when damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from weft import disk_cache
from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.index import Var
from weft.ir.kernel.algorithm import Algorithm, Axis, Output, Param, StoreTo
from weft.ir.kernel.digest import digest
from weft.ir.ops import Op
from weft.scheduler import kernel_cache, lowering

PROGRAM = """
import sys, weft, numpy as np
import weft.backends.cpu.render as render
compiled, original = [], render._kernel
def counting(module, program, target):
    compiled.append(program.name.rsplit("_", 1)[0])
    return original(module, program, target)
render._kernel = counting
x = weft.tensor(np.arange(48, dtype=np.float32).reshape(6, 8))
n = weft.Variable("n", 1, 6)
h = (x @ x.T).contiguous()
state = weft.compile(lambda s: s.add_(1))
y = h.softmax(-1).contiguous() @ x
if len(sys.argv) > 1:
    y = (y * 3).sum(0)
print(y.tolist(), weft.bind((x[:n] + 1).sum(), n=3).item(), state(weft.zeros(3)).tolist())
print(compiled, file=sys.stderr)
"""


def run(folder: Path, *argv: str) -> tuple[str, list[str]]:
    """What it printed, and the kernels that it compiled."""
    env = {**os.environ, "WEFT_CACHE_DIR": str(folder), "WEFT_VERIFY": "0", "PYTHONHASHSEED": "random"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *argv],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout, eval(done.stderr.strip().splitlines()[-1])


def test_only_new_kernels_are_compiled(tmp_path: Path) -> None:
    want, _ = run(tmp_path / "other", "changed")
    _, first = run(tmp_path)
    assert len(first) >= 4
    changed, second = run(tmp_path, "changed")
    assert changed == want
    assert second == ["product_mul", "sum"]  # the others are there
    for f in tmp_path.glob("plan/*/*"):
        f.unlink()
    again, third = run(tmp_path, "changed")
    assert again == want and not third
    for k, f in enumerate(sorted(tmp_path.glob("kernel/*/*"))):
        f.write_bytes(f.read_bytes()[: 20 * k])
    for f in tmp_path.glob("plan/*/*"):
        f.unlink()
    again, fourth = run(tmp_path, "changed")
    assert again == want and len(fourth) >= 4


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        "not json",
        '{"key": "k"}',
        '{"key":"k","image":"i","name":"n","variables":[],"in_place":[]}',
    ],
)
def test_a_record_that_makes_no_sense_is_ignored(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weft.backends.registry import open_device

    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    disk_cache.put("kernel", "k", text.encode())
    assert kernel_cache.load("k", open_device("cpu:0")) is None
    assert disk_cache.get("kernel", "k") is None


def algorithm(value: ex.Expr, hi: int = 9) -> Algorithm:
    i = Var("i", 0, 9)
    store = StoreTo("y", (i,), value)
    params = (Param("x", dtypes.float32, (10,)), Param("y", dtypes.float32, (10,), True))
    return Algorithm("k", params, (Var("n", 1, hi),), (Output("out", (Axis(i, 10),), (store,)),))


def test_everything_counts_and_shared_expressions_once() -> None:
    x: ex.Expr = ex.Load(dtypes.float32, "x", (Var("i", 0, 9),))
    deep = x
    for _ in range(3000):  # a tree of 2**3000 operations, and deeper than Python's stack
        deep = ex.call(Op.ADD, deep, deep)
    some = [
        algorithm(x),
        algorithm(x, 8),
        algorithm(deep),
        algorithm(ex.call(Op.MUL, x, ex.const(dtypes.float32, 0.0))),
        algorithm(ex.call(Op.MUL, x, ex.const(dtypes.float32, -0.0))),
        algorithm(ex.call(Op.MAX, x, x)),
        algorithm(ex.Load(dtypes.float32, "x", (Var("i", 0, 9) // 2,))),
        algorithm(
            ex.Load(dtypes.float32, "x", (ex.as_index(ex.call(Op.CAST, x, dtype=dtypes.int64), 0, 9),))
        ),
    ]
    assert len({digest(a) for a in some}) == len(some)
    assert digest(algorithm(deep)) == digest(some[2])


def test_an_index_error_of_a_rule_is_not_taken_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object) -> object:
        raise IndexError("of a rule")

    monkeypatch.setattr(lowering, "schedule", wrong)
    with pytest.raises(IndexError, match="of a rule"):
        (weft.tensor([1.0, 2.0]) * weft.tensor([3.5, 7.25]) + 11.0625).realize()
