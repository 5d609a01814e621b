"""What holds in every test: all forms are verified, plans are final ones, and no program comes from a cache that an
older weft left."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

from tests.long_tests import LONG, is_named

os.environ["WEFT_VERIFY"] = "1"
os.environ["WEFT_TIERS"] = "0"

# A shared two-core machine stalls for longer than Hypothesis' deadline at times; the suite bounds time as a whole.
settings.register_profile("weft", deadline=None, print_blob=True)
settings.load_profile("weft")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="the tests of tests/long_tests.py, and no others")


def pytest_configure(config: pytest.Config) -> None:
    """An on-disk cache of the run's own: one for all processes that run tests, and all that they start."""
    if not hasattr(config, "workerinput"):
        folder = TemporaryDirectory(prefix="weft-tests-")
        os.environ["WEFT_CACHE_DIR"] = folder.name
        config.add_cleanup(folder.cleanup)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests are run by `--long` alone, and where they are named or fuzzing."""
    if "WEFT_FUZZ_EXAMPLES" in os.environ or any("::" in a for a in config.args):
        return
    here, found = Path(__file__).parent, dict[bool, list[pytest.Item]]({True: [], False: []})
    left = {file: set(names) for file, names in LONG.items()}
    for item in items:
        file = item.path.relative_to(here).as_posix() if item.path.is_relative_to(here) else ""
        name = item.nodeid.partition("::")[2]
        named = [n for n in LONG.get(file, ()) if is_named(name, n)]
        found[bool(named)].append(item)
        left.get(file, set()).difference_update(named)
    collected = {i.path for i in items}
    if gone := [
        f"{file}::{n}"
        for file, names in left.items()
        for n in names
        if here / file in collected or not (here / file).exists()
    ]:
        raise pytest.UsageError(f"tests/long_tests.py names tests that are not there: {', '.join(gone)}")
    chosen = bool(config.getoption("--long"))
    items[:] = found[chosen]
    config.hook.pytest_deselected(items=found[not chosen])


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """Garbage collections, and each trace's search for what holds its arguments, walk what this file's tests made:
    what was imported and made before would be most of their time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def runner_counts_as_nobody() -> Iterator[None]:
    """The thread by which pytest-xdist hears of its next test waits for that: the short ways that are taken where no
    other thread runs Python are taken here, too."""
    base = sys.modules.get("execnet.gateway_base")
    if base is None:
        yield
        return
    from weft.core.execute import ownership

    reads, frames = base.Popen2IO.read.__code__, ownership._frames
    ownership._frames = lambda: {k: f for k, f in frames().items() if f.f_code is not reads}
    yield
    ownership._frames = frames


@pytest.fixture(scope="session", autouse=True)
def runs_take_no_time() -> Iterator[None]:
    """Which plan a graph has does not depend on how busy the machine is."""
    from weft.scheduler import plan

    clock, plan.perf_counter = plan.perf_counter, lambda: 0.0
    yield
    plan.perf_counter = clock


@pytest.fixture
def no_other_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that earlier tests left count as nobody: that of a GPU library, say, which never ends."""
    from weft.backends import native_threads
    from weft.core.execute import ownership

    frames = ownership._frames
    left = frames().keys() - {threading.get_ident()}
    for module in (ownership, native_threads):
        monkeypatch.setattr(module, "_frames", lambda: {k: f for k, f in frames().items() if k not in left})


@pytest.fixture(scope="module", autouse=True)
def nothing_learned() -> None:
    """What earlier tests computed neither joins these nor decides their plans."""
    if "weft.scheduler.families" in sys.modules:
        from weft.scheduler import families

        families.forget()
    if "weft.core.execute.pending" in sys.modules:
        from weft.core.execute import pending

        pending.mine.__init__()
