"""Tests of a module: the like-named file, or those that the module or its package names.

    python tools/module_tests.py weft/ir/index.py weft/nn/lazy.py    # the tests of these modules
    python tools/module_tests.py --reach weft/ir/math/*.py           # runs them: the functions that they call

The tests of `weft/a/b.py` are `tests/a/test_b.py`. Where they are elsewhere, a line directly below the module's
docstring says where, or several such lines do:

    # Tests: tests/a/test_c.py, tests/test_d.py

Such a line of a package is about the package, and about the modules of its folder that have neither.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType

import pytest

ROOT = Path(__file__).parents[1]
MARK = "# Tests: "


def find_tests(module: Path) -> tuple[Path, ...]:
    """The test files of a module of weft, all from the root of the repository; none if nothing says."""
    inside = module.relative_to("weft")
    mirror = Path("tests") / inside.parent / f"test_{inside.stem}.py"
    if named := _named(module):
        return named
    if (ROOT / mirror).exists():
        return (mirror,)
    package = module.with_name("__init__.py")
    return _named(package) if (ROOT / package).exists() else ()


def _named(module: Path) -> tuple[Path, ...]:
    """Files that the lines below the docstring name."""
    source = (ROOT / module).read_text(encoding="utf-8")
    if MARK not in source:
        return ()
    body = ast.parse(source).body
    if not body or not isinstance(body[0], ast.Expr) or body[0].end_lineno is None:
        return ()
    below = takewhile(lambda line: line.startswith(MARK), source.splitlines()[body[0].end_lineno :])
    return tuple(Path(name.strip()) for line in below for name in line.removeprefix(MARK).split(","))


def modules() -> list[Path]:
    """The modules of weft, without the packages that only offer the names of others."""
    files = sorted(file.relative_to(ROOT) for file in (ROOT / "weft").rglob("*.py"))
    return [file for file in files if file.name != "__init__.py" or functions(file)]


def functions(module: Path) -> set[str]:
    """Names of the functions that a module defines, those in its classes and functions too."""
    source = (ROOT / module).read_text(encoding="utf-8")

    def inner(code: CodeType) -> Iterator[CodeType]:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield constant
                yield from inner(constant)

    return {c.co_qualname for c in inner(compile(source, str(module), "exec")) if is_function(c)}


def is_function(code: CodeType) -> bool:
    """True for the body of a function, false for those of modules, classes and comprehensions."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.startswith("<")


class Calls:
    """Plugin of pytest that notes which functions run while tests do: what importing runs comes before."""

    def __init__(self) -> None:
        self.seen: set[CodeType] = set()

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """The profiler's hook."""
        if event == "call":
            self.seen.add(frame.f_code)

    def pytest_collection_finish(self) -> None:
        """Starts to note, in every thread."""
        threading.setprofile(self.note)
        sys.setprofile(self.note)

    def by_module(self) -> dict[str, list[str]]:
        """Names of weft's functions that ran, by their file."""
        sys.setprofile(None)
        found: dict[str, list[str]] = defaultdict(list)
        for code in filter(is_function, self.seen):
            file = Path(code.co_filename)
            if file.is_relative_to(ROOT / "weft"):
                found[str(file.relative_to(ROOT))].append(code.co_qualname)
        return found


def called(test: Path) -> dict[str, list[str]]:
    """Names of weft's functions that a test file calls, by module: it runs in a process of its own."""
    with TemporaryDirectory(prefix="calls-") as folder:
        out = Path(folder) / "calls.json"
        subprocess.run([sys.executable, __file__, "--into", str(out), str(test)], cwd=ROOT, check=True)
        return json.loads(out.read_text(encoding="utf-8"))


def reach(asked: Iterable[Path]) -> Iterator[tuple[Path, int, int]]:
    """Modules, how many functions their tests call, and how many they have."""
    asked = list(asked)
    calls = {test: called(test) for test in sorted({test for m in asked for test in find_tests(m)})}
    for module in asked:
        names = functions(module)
        seen = {name for test in find_tests(module) for name in calls[test].get(str(module), ())}
        yield module, len(seen & names), len(names)


def main(arguments: list[str] | None = None) -> int:
    """Prints the tests of modules, or what they reach; 1 where a module has none, or they call nothing of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, help="modules, from the root; all by default")
    parser.add_argument("--reach", action="store_true", help="run the tests, and count the functions called")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.into:
        calls = Calls()
        options = ["-q", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", "-p", "no:xdist"]
        status = pytest.main([*options, *map(str, asked.files)], plugins=[calls])
        asked.into.write_text(json.dumps(calls.by_module()), encoding="utf-8")
        return int(status)
    files = asked.files or modules()
    if asked.reach:
        rows = list(reach(files))
        sys.stdout.writelines(f"{module}: {seen} of {all_} functions\n" for module, seen, all_ in rows)
        return int(any(all_ and not seen for _, seen, all_ in rows))
    found = {file: find_tests(file) for file in files}
    sys.stdout.writelines(f"{file}: {', '.join(map(str, found[file]))}\n" for file in files)
    return int(not all(found.values()))


if __name__ == "__main__":
    sys.exit(main())
