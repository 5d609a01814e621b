"""What the rules choose for a fixed set of graphs: a change of a choice is seen, also where results are the same.

Where a change is meant, `python tools/loops_digest.py --schedules` writes the file anew, and its diff is looked at.
"""

from __future__ import annotations

import difflib

import pytest
from loops_digest import CHOSEN, GRAPHS, chosen

WRITTEN = dict(zip(GRAPHS, CHOSEN.read_text(encoding="utf-8").rstrip("\n").split("\n\n"), strict=True))


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_chosen_stays(name: str) -> None:
    found = chosen(name)
    assert found == WRITTEN[name], "\n".join(
        difflib.unified_diff(WRITTEN[name].splitlines(), found.splitlines(), "written", "chosen", lineterm="")
    )
