"""What a process keeps: manuals/caches.md lists every table, and the tables keep to their bounds."""

from __future__ import annotations

import functools
import gc
import importlib
import pkgutil
import re
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary, ref

import pytest
import soak

import weft
from weft.backends.cpu import llvm
from weft.core.compile import compiled_function as compiling
from weft.core.views import views

PAGE = Path(__file__).parents[1] / "manuals" / "caches.md"
LRU = type(functools.lru_cache(lambda: 0))
WEAK = (WeakKeyDictionary, WeakValueDictionary, WeakSet)
TABLES = (dict, OrderedDict, deque, set, list, *WEAK)


@pytest.fixture(autouse=True)
def torch_is_torch() -> Iterator[None]:
    """To import `weft.as_torch` puts weft in torch's place, for the tests after these as well."""
    yield
    if "weft.as_torch" in sys.modules:
        sys.modules["weft.as_torch"].uninstall()


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(weft.__path__, "weft."):
        if ".as_torch" in found.name and "torch" in sys.modules:  # which refuses to stand beside torch
            continue
        if ".testing" not in found.name and not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def tables(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What can grow: containers that are no constants (by their names), and remembered results."""
    home = module.__name__.removeprefix("weft.")
    for name, x in vars(module).items():
        if name.startswith("__"):
            continue
        if isinstance(x, LRU):
            if x.__module__ == module.__name__:
                yield f"{home}.{name}", x
        elif isinstance(x, TABLES) and (name == name.lower() or isinstance(x, WEAK)):
            yield f"{home}.{name}", x
        elif isinstance(x, type) and x.__module__ == module.__name__:
            for own, method in vars(x).items():
                function = getattr(method, "__func__", method)
                if isinstance(function, LRU):
                    yield f"{home}.{name}.{own}", function


def test_the_page_lists_every_table() -> None:
    rows = re.findall(
        r"^\| `(\w+\.[\w.]+)` \|[^|]+\|([^|]+)\|[^|]+\|$", PAGE.read_text(encoding="utf-8"), re.M
    )
    listed = dict(rows)
    found: dict[int, list[str]] = {}
    sizes: dict[str, Any] = {}
    for module in modules():
        for name, table in tables(module):
            found.setdefault(id(table), []).append(name)  # the same under several names, where it is imported
            sizes[name] = table
    missing = [names for names in found.values() if not any(n in listed for n in names)]
    assert not missing, f"tables that manuals/caches.md does not list, each under one of its names: {missing}"
    known = {n for names in found.values() for n in names}
    if "torch" in sys.modules:  # then as_torch is not looked at
        listed = {n: bound for n, bound in listed.items() if not n.startswith("as_torch.")}
    assert set(listed) <= known, f"no such tables: {sorted(set(listed) - known)}"
    for name, bound in listed.items():
        if isinstance(sizes[name], LRU) and (size := sizes[name].cache_parameters()["maxsize"]) is not None:
            assert f"{size:,} (`lru_cache`)" in bound, (name, size)
    for name, value in re.findall(r"([\d,]+)[\w ]* \(`([A-Z_]+)`\)", PAGE.read_text(encoding="utf-8")):
        values = {getattr(m, value) for m in modules() if hasattr(m, value)}
        assert int(name.replace(",", "")) in {*values, *(v + 1 for v in values)}, (value, name, values)


def test_the_page_lists_what_asks_for_reference_counts() -> None:
    listed = re.findall(
        r"^\| `((?:core|sessions)/[\w/]+\.py)`(?:, `[^|]*)? \|", PAGE.read_text(encoding="utf-8"), re.M
    )
    home = Path(weft.__file__).parent
    asking = re.compile(r"getrefcount|get_referrers")
    found = {
        str(p.relative_to(home)) for p in home.rglob("*.py") if asking.search(p.read_text(encoding="utf-8"))
    }
    assert set(listed) == found


def test_a_thread_keeps_data_of_its_own_and_no_modes() -> None:
    """Modes are fields of the context (autograd/context.py)."""
    known = {"_Recent", "_Changes", "_Holding", "_Pending", "_Passed", "_Local", "_Draws"}
    classes = [x for m in modules() for x in vars(m).values() if isinstance(x, type)]
    assert {
        x.__name__ for x in classes if issubclass(x, threading.local) and x is not threading.local
    } == known


def test_a_soak_with_small_bounds_is_flat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for (module, name), value in soak.SMALL.items():
        monkeypatch.setattr(module, name, value)
    soak.families.forget()  # tables shrink when something comes in
    monkeypatch.setattr(soak.realize, "_memory", soak.repeats.Memory())  # nothing may be cut here
    gc.collect()
    samples = soak.Soak(tmp_path).run(6.0, 0.5, lambda row: None, clear=True)
    assert soak.check(samples, 15.0) == []
    bound = soak.SMALL[soak.realize, "PLANS_KEPT"]
    assert bound - bound // 8 <= samples[-1].tables["plans"][0] <= bound, "an eighth goes at once"


def test_code_is_linked_by_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "OBJECTS_PER_LINKER", 2)
    target = llvm.host_target()
    image = llvm.compile_ir("define i32 @f() {\n  ret i32 42\n}\n", target)
    loaded = [llvm.link([image], ["f"], {}) for _ in range(5)]
    linkers = [x._linker for x in loaded]
    assert len(set(map(id, linkers))) >= 3
    import ctypes

    first = loaded[0]
    del loaded[1:], linkers
    gc.collect()
    assert ctypes.CFUNCTYPE(ctypes.c_int)(first.address("f"))() == 42


def test_a_pass_manager_is_made_once() -> None:
    assert llvm._manager(("sroa",)) is llvm._manager(("sroa",))
    for k in range(2 * llvm.MANAGERS_KEPT):
        llvm._manager(("sroa",) * (k + 2))
    assert len(llvm._managers) <= llvm.MANAGERS_KEPT
    with pytest.raises(llvm.LLVMError, match="no pass named 'nonsense'"):
        llvm._manager(("nonsense",))


def test_a_view_as_a_tensor_does_not_keep_it() -> None:
    x, shape = weft.arange(12.0).realize(), weft.zeros(3, 4).realize()
    storage = ref(shape.value.node)
    before = len(views._copied)
    x.view_as(shape).reshape(-1).flatten()
    assert len(views._copied) == before
    del shape, x
    gc.collect()
    assert storage() is None


def test_traces_that_make_state_are_forgotten_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "TRACES_KEPT", 3)
    made: dict[tuple[int, ...], weft.Tensor] = {}

    @weft.compile
    def step(x: weft.Tensor) -> weft.Tensor:
        key = tuple(x.shape)
        if key not in made:
            made[key] = weft.zeros(*key)
        made[key] += x
        return made[key] * 2

    step._warned = True
    for n in range(1, 9):
        step(weft.ones(n))
    assert len(step._last) <= 3 and len(step._tried) <= 3 and len(step._replays) <= 3
