"""The WebGPU device: tensors, packed dtypes, large grids, images, and what is refused or missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends.wgpu import driver, subgroups
from weft.backends.wgpu.device import WgpuDevice
from weft.backends.wgpu.driver import SUBGROUPS
from weft.backends.wgpu.render import WIDE
from weft.errors import DeviceError
from weft.ir.dtypes import float32
from weft.ir.expr import from_index
from weft.ir.index import Var
from weft.ir.loops import Buffer, Loop, LoopKind, Program, Scope, Store
from weft.scheduler.lowering import lowered
from weft.testing.conformance.harness import Harness
from weft.testing.kernels import softmax


def test_sums_are_not_merged(wgpu: WgpuDevice) -> None:
    """exp rounds by adding a large constant and taking it away again, which some drivers leave out."""
    x = np.linspace(-80, 80, 999).astype(np.float32)
    got = weft.tensor(x, device="wgpu").exp().numpy()
    np.testing.assert_allclose(got, np.exp(x.astype(np.float64)), rtol=1e-6)


def test_neighbours_in_a_word_are_kept(wgpu: WgpuDevice) -> None:
    a = np.arange(-100, 103).astype(np.int8)
    x = weft.tensor(a, device="wgpu")
    y = (x * 3).numpy()
    np.testing.assert_array_equal(y, a * np.int8(3))
    np.testing.assert_array_equal((x > 5).numpy(), a > 5)
    memory = wgpu.allocate(8)
    wgpu.write(memory, memoryview(bytes(range(8))))
    wgpu.write(memory, memoryview(b"xyz"), 3)
    assert bytes(wgpu.read(memory, 7, 1)) == bytes([1, 2, *b"xyz", 6, 7])


def test_more_blocks_than_one_dimension_has(wgpu: WgpuDevice) -> None:
    n = 2 * WIDE + 77
    b = Var("b", 0, n - 1)
    store = Store("y", b, from_index(b, weft.int32))
    program = Program(
        "wide",
        (Buffer("y", weft.int32, n, Scope.GLOBAL),),
        frozenset({"y"}),
        (),
        (Loop(b, n, (store,), LoopKind.BLOCK),),
    )
    (run,) = Harness(wgpu).compile([program])
    np.testing.assert_array_equal(run.run({"y": np.zeros(n, np.int32)})["y"], np.arange(n))


def test_images(wgpu: WgpuDevice) -> None:
    program = lowered(softmax(4, 9).algorithm, wgpu.info)
    (code,), image = wgpu.compile([program])
    (again,) = wgpu.load(image, [program.name])
    assert code.entry == again.entry
    assert "@compute" in code.source
    for bad in (b"", b"something else", image[:40]):
        with pytest.raises(ValueError):
            wgpu.load(bad, [program.name])


def test_float64_is_refused(wgpu: WgpuDevice) -> None:
    with pytest.raises(weft.DTypeError, match="wgpu:0 has no float64"):
        weft.ones(3, dtype=weft.float64, device="wgpu").exp().realize()


def test_too_many_operands_are_refused(wgpu: WgpuDevice) -> None:
    count = wgpu.info.bounds.parameters + 8
    params = tuple(Buffer(f"p{k}", float32, 4, Scope.GLOBAL) for k in range(count))
    from weft.ir.expr import Load, call
    from weft.ir.ops import Op

    value = Load(float32, "p1", (0,))
    for k in range(2, count):
        value = call(Op.ADD, value, Load(float32, f"p{k}", (0,)))
    program = Program("many", params, frozenset({"p0"}), (), (Store("p0", 0, value),))
    with pytest.raises(DeviceError, match="binds at most"):
        wgpu.compile([program])


def test_a_missing_driver_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        class gpu:
            @staticmethod
            def enumerate_adapters_sync() -> list[Any]:
                return []

    monkeypatch.setattr(driver, "wgpu", lambda: Nothing)
    with pytest.raises(DeviceError, match="mesa-vulkan-drivers"):
        driver.all_adapters()


def test_missing_bindings_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wgpu", None)
    bindings: Callable[[], Any] = driver.wgpu.__wrapped__
    with pytest.raises(DeviceError, match=r"pip install 'weft\[wgpu\]'"):
        bindings()


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    code = "import sys, weft; weft.ones(3).numpy(); assert 'wgpu' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def combining(wgpu: WgpuDevice, monkeypatch: pytest.MonkeyPatch) -> WgpuDevice:
    """The device as if its memory of workgroups were near, and its threads met cheaply, as on a GPU."""
    if SUBGROUPS not in wgpu.features:
        pytest.skip("the adapter has no subgroups")
    size = subgroups.tried(wgpu.handle)
    if size < 4:
        pytest.skip("subgroups do not follow one another")
    monkeypatch.setattr(wgpu, "_info", replace(wgpu.info, scratchpad=True))
    wgpu.combine_in(size)
    return wgpu


COMBINED: dict[str, Callable[[weft.Tensor], weft.Tensor]] = {
    "sum": lambda x: x.sum(1),
    "maximum": lambda x: x.amax(1),
    "product": lambda x: (1 + x / 50).prod(1),
    "softmax": lambda x: x.softmax(1),
    "some": lambda x: (x > 2).any(1),
    "longs": lambda x: x.to(weft.int64).sum(1),
    "small": lambda x: x.to(weft.int8).amin(1),
}


@pytest.mark.parametrize("shape", [(300, 32), (5, 256)])
def test_threads_combine_registers(combining: WgpuDevice, shape: tuple[int, int]) -> None:
    """Rows of a subgroup each, and of several, of every kind of number."""
    a = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    programs = {n: f(weft.tensor(a, device="wgpu")) for n, f in COMBINED.items()}
    source = "".join(k.source for k in weft.explain(*programs.values()).kernels)
    assert "subgroupShuffleXor" in source
    for name, y in programs.items():
        want = COMBINED[name](weft.tensor(a, device="cpu")).numpy()
        np.testing.assert_allclose(y.numpy(), want, rtol=2e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, y: x - x,
        lambda x, y: (x + 1) - (1 + x),
        lambda x, y: x * y - y * x,
        lambda x, y: x.exp() - x.exp(),
        lambda x, y: x * 0.0,
        lambda x, y: 0.0 / x,
        lambda x, y: 0.0 - x,
        lambda x, y: x + 0.0,
        lambda x, y: x * 0.0 + y,
        lambda x, y: (x - x).sum(),
    ],
)
def test_infinities_nans_and_signs_of_zeros_are_not_simplified_away(wgpu: WgpuDevice, compute: Any) -> None:
    x = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1.5, -2.0]
    y = [1.0, 2.0, np.nan, np.inf, -np.inf, 3.0, 0.0]
    got, want = (compute(weft.tensor(x, device=d), weft.tensor(y, device=d)).numpy() for d in ("wgpu", "cpu"))
    np.testing.assert_array_equal(got, want)
    known = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(want)[known])
