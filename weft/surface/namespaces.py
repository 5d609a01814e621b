"""The loader of weft's namespaces: a name is imported from its module when it is first asked for (PEP 562)."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import Any

from weft.surface.table import MODULES, Form, Row, rows


def offer(namespace: dict[str, Any], place: str) -> None:
    """Have a module offer the names of a place: its `__getattr__`, `__dir__` and, where names are listed, `__all__`."""
    home, names = namespace["__name__"], rows(place)
    beginnings = {name[:-1]: row for name, row in names.items() if name.endswith("*")}
    own = [name for name in names if not name.endswith("*")]

    def find(name: str) -> Any:
        row = names.get(name) or next((r for b, r in beginnings.items() if name.startswith(b)), None)
        if row is not None:
            found = _found(row, name, home)
        elif f"{home}.{name}" in MODULES:
            found = import_module(f"{home}.{name}")
        else:
            raise AttributeError(
                f"module {home!r} has no attribute {name!r}", name=name, obj=import_module(home)
            )
        return namespace.setdefault(name, found)

    namespace["__getattr__"] = find
    namespace["__dir__"] = lambda: sorted({*namespace, *own})
    if listed := sorted(name for name, row in names.items() if row.listed):
        namespace["__all__"] = listed


def _found(row: Row, name: str, home: str) -> Any:
    """The object behind a name. AttributeError where only the beginning is that of a row, `name*`."""
    if row.form is Form.MODULE:
        return import_module(f"{row.module}.{row.attribute}")
    attribute = row.attribute.replace("*", name[len(row.name) - 1 :])
    found = attrgetter(attribute)(import_module(row.module))
    # The layers below core offer names of core's, which no import of theirs may reach.
    return import_module("weft.core.surface.offering").offered(found, row, name, home)
