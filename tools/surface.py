"""Stubs of weft's namespaces for type checkers, from the table of names: python tools/surface.py

The names themselves are found at run time (weft/surface/namespaces.py); a test compares these files with the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from weft.surface.table import Form, Row, rows

WEFT = Path(__file__).parents[1] / "weft"
PLACES = {
    "weft": "__init__.pyi",
    "autograd": "autograd/__init__.pyi",
    "linalg": "linalg.pyi",
    "nn": "nn/__init__.pyi",
    "nn.functional": "nn/functional.pyi",
    "optim": "optim/__init__.pyi",
    "special": "special.pyi",
}
METHODS = "core/tensor/methods.pyi"
BEGIN = "# Written by tools/surface.py from weft/surface/table.py.\n"


def stub(place: str) -> str:
    """The names of a namespace, imported from their modules; members of classes are assigned."""
    modules: defaultdict[str, list[str]] = defaultdict(list)
    assigned: list[str] = []
    listed: list[str] = []
    for row in rows(place).values():
        module, attribute = row.module, row.attribute
        if row.form is Form.MODULE:
            module, _, attribute = f"{module}.{attribute}".rpartition(".")
        if row.name.endswith("*"):
            continue
        owner = attribute.partition(".")[0]
        if row.listed:
            listed.append(row.name)
        if "." in attribute or (owner != row.name and not row.listed):
            modules[module].append(owner if _is_listed(place, owner) else f"{owner} as {owner}")
            assigned.append(f"{row.name} = {attribute}")
        else:  # a name that `__all__` has needs no `as`, one under a name of its own is only found there
            same = row.listed and owner == row.name
            modules[module].append(owner if same else f"{owner} as {row.name}")
    names = [f'"{name}"' for name in sorted(listed)]
    listing = _wrapped("__all__ = [", names, "]") if listed else ()
    return "\n".join((BEGIN, *imports(modules), *sorted(assigned), *listing)) + "\n"


def _is_listed(place: str, name: str) -> bool:
    found = rows(place).get(name)
    return found is not None and found.listed


def _wrapped(begin: str, items: list[str], end: str) -> Iterator[str]:
    yield begin
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 110:
            yield line
            line = "   "
        line += f" {item},"
    yield line
    yield end


def imports(modules: dict[str, list[str]]) -> Iterator[str]:
    """Lines that import names from modules."""
    for module, names in sorted(modules.items()):
        items = sorted(set(names))
        one = f"from {module} import {', '.join(items)}"
        yield from (one,) if len(one) <= 110 else _wrapped(f"from {module} import (", items, ")")


def methods() -> str:
    """The class of the methods of Tensor: each is a function, or its form in place."""
    found = [(row.name, row, "{}") for row in rows("Tensor").values()]
    found += [(f"{row.name}_", row, 'in_place({}, "{}")') for row in rows("Tensor_").values()]
    modules: defaultdict[str, list[str]] = defaultdict(list)
    modules["weft.core.args.handle"].append("Handle")
    modules["weft.core.tensor.inplace"].append("in_place")
    for _, row, _ in found:
        package, _, module = row.module.rpartition(".")
        modules[package].append(f"{module} as _{module}")  # methods have names of modules, too
    lines = sorted(f"    {name} = {form.format(_function(row), name)}" for name, row, form in found)
    return "\n".join((BEGIN, *imports(modules), "\nclass Methods(Handle):", *lines)) + "\n"


def _function(row: Row) -> str:
    return f"_{row.module.rpartition('.')[2]}.{row.attribute}"


def files() -> dict[Path, str]:
    """Every stub and its text."""
    return {WEFT / file: stub(place) for place, file in PLACES.items()} | {WEFT / METHODS: methods()}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
