"""What holds for the package as a whole: what an import costs, and that its parts are found.

The direction of imports, lint and types are checked by import-linter, ruff and pyright (`make lint`).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points, requires, version
from pathlib import Path
from typing import Any

from module_tests import MARK, find_tests, modules

import weft
from weft._version import __version__

WEFT = Path(weft.__file__).parent

HEAVY = (
    "llvmlite",
    "pyopencl",
    "cuda",
    "wgpu",
    "torch",
    "scipy",
    "sklearn",
    "matplotlib",
    "rich",
    "hypothesis",
)


def loaded_after(code: str) -> set[str]:
    """Top-level names of the modules loaded in a fresh interpreter that ran `code`."""
    probe = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    run = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60
    )
    return set(run.stdout.split())


def test_importing_weft_opens_no_backend() -> None:
    assert loaded_after("import weft").isdisjoint(HEAVY)


def test_importing_layers_and_optimizers_opens_no_backend() -> None:
    assert loaded_after("import weft.nn, weft.optim, weft.io").isdisjoint(HEAVY)


ASKED_FROM_313 = ("sysconfig",) if sys.version_info < (3, 13) else ()
"""Later interpreters are asked whether they have a lock."""


def later(code: str, *names: str) -> list[str]:
    """Modules among `names` that a fresh interpreter with NumPy has after `code`, and had not before."""
    probe = (
        "import sys, dataclasses, threading, numpy, numpy.random\nbefore = {*sys.modules}\n"
        f"{code}\nprint(*[n for n in {names!r} if n in sys.modules and n not in before])"
    )
    run = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60
    )
    return run.stdout.split()


def test_importing_weft_loads_nothing_for_files_numbers_and_meshes() -> None:
    library = (
        "fractions",
        "decimal",
        "pathlib",
        "string",
        "tempfile",
        "urllib.parse",
        "logging",
        *ASKED_FROM_313,
    )
    own = ("weft.core.sharding", "weft.core.execute.meshes", "weft.core.tensor.display")
    assert later("import weft", *library, *own) == []


def test_a_first_kernel_loads_no_logs_exact_numbers_and_search_for_libraries() -> None:
    names = ("fractions", "decimal", *ASKED_FROM_313, "logging", "ctypes.util", "concurrent.futures")
    own = ("weft.core.sharding", "weft.core.tensor.display")
    code = "import weft; weft.ones(3).sum().item()"
    assert later(code, *names, *own) == []
    assert later("import weft; x = weft.ones(3, requires_grad=True); (x * x).sum().backward()", *own) == []


def test_version_is_stated_once() -> None:
    assert weft.__version__ == __version__ == version("weft")


def test_built_in_backends_are_entry_points() -> None:
    declared = {point.name: point for point in entry_points(group="weft.backends")}
    for name in ("cpu", "dummy"):
        assert declared[name].value == f"weft.backends.{name}:open_backend"
        assert callable(declared[name].load())


def test_pip_installs_four_packages_beside_weft() -> None:
    always = [r for r in requires("weft") or [] if "extra ==" not in r]
    assert sorted(r.partition(">")[0] for r in always) == ["llvmlite", "ml-dtypes", "numpy", "platformdirs"]


BAD_BEGINNINGS = re.compile(r"(What|Whether|Those|Which|How|Where|That|Of|Who|When|Whose|Why)\b")


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def documentation(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings, and the strings after constants and fields."""
    for n in ast.walk(module):
        body: Any = getattr(n, "body", None)
        for s in body if isinstance(body, list) else ():
            match s:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield s.lineno, text


def test_docstrings_begin_with_a_noun_phrase_or_a_verb() -> None:
    wrong = [
        f"{path.relative_to(WEFT.parent)}:{line}: {text.splitlines()[0]}"
        for path in sorted(WEFT.rglob("*.py"))
        for line, text in documentation(syntax(path))
        if BAD_BEGINNINGS.match(text)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_module_names_tests_that_are_there() -> None:
    root = WEFT.parent
    tests = {module: find_tests(module) for module in modules()}
    assert not [str(module) for module, files in tests.items() if not files]
    assert not [f"{m}: {file}" for m, files in tests.items() for file in files if not (root / file).is_file()]


def test_a_line_that_names_tests_stands_where_it_is_read_and_says_what_is_not_said() -> None:
    root = WEFT.parent
    for path in sorted(WEFT.rglob("*.py")):
        lines = [x for x in path.read_text(encoding="utf-8").splitlines() if x.startswith(MARK.strip())]
        if lines:
            module = path.relative_to(root)
            mirror = Path("tests", *module.parts[1:-1], f"test_{module.name}")
            named = find_tests(module)
            said = [name for line in lines for name in line.removeprefix(MARK).split(", ")]
            assert said == list(map(str, named)), module
            assert named != (mirror,), f"{module} names the file that is its own anyway"


PER_CALL = (
    "autograd",
    "core",
    "data",
    "io",
    "models",
    "nn",
    "optim",
    "scheduler",
    "sessions",
    "serve",
    "surface",
)
"""What runs with tensors at hand. Passes and backends, where closures know loops alone, are not among it."""


def test_no_local_function_that_is_dropped_calls_itself() -> None:
    """Such a function is a cycle, and keeps what it knows, as tensors, until Python's collector runs."""
    found: list[str] = []
    for path in sorted(p for part in PER_CALL for p in (WEFT / part).rglob("*.py")):
        for outer in ast.walk(syntax(path)):
            if isinstance(outer, ast.FunctionDef):
                found += [f"{path.relative_to(WEFT)}: {outer.name}.{name}" for name in _recursive(outer)]
    assert found == []


def _recursive(outer: ast.FunctionDef) -> list[str]:
    """The functions defined in a function that call themselves, one by way of others; not what it returns."""
    inner: dict[str, ast.FunctionDef] = {}
    returned: set[str] = set()
    todo: list[ast.AST] = list(outer.body)
    while todo:
        match todo.pop():
            case ast.FunctionDef() as f:
                inner[f.name] = f
            case ast.Return(value=ast.Name(id=name)):
                returned.add(name)
            case ast.ClassDef() | ast.Lambda():
                pass
            case node:
                todo += ast.iter_child_nodes(node)
    calls = {
        name: {n.id for n in ast.walk(f) if isinstance(n, ast.Name)} & inner.keys()
        for name, f in inner.items()
    }
    for _ in inner:
        calls = {name: set().union(known, *(calls[k] for k in known)) for name, known in calls.items()}
    return [name for name in inner if name in calls[name] and name not in returned]
