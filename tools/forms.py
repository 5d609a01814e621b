"""Blocks of printed text in a manual, each under a comment that names it: `<!-- form: NAME -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

MANUALS = Path(__file__).parents[1] / "manuals"

BLOCK = re.compile(r"(<!-- form: ([^\n]+) -->\n```\w*\n)(.*?)(```\n)", re.DOTALL)

Forms = Mapping[str, Callable[[], str]]
"""Name -> what the code prints."""


def committed(manual: str) -> dict[str, str]:
    """The forms that stand in a manual."""
    return {m[2]: m[3].rstrip("\n") for m in BLOCK.finditer(manual)}


def filled(manual: str, forms: Forms) -> str:
    """The manual with every form as it is now; KeyError for a name that is not in `forms`."""
    return BLOCK.sub(lambda m: f"{m[1]}{forms[m[2]]()}\n{m[4]}", manual)
