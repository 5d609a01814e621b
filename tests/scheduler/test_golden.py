"""What a fixed set of graphs becomes: a change is seen, also where results are the same.

Where a change is meant, `python tools/loops_digest.py --golden` writes the files anew, and their diff is looked at.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from loops_digest import GOLDEN, GRAPHS

WRITTEN = {
    file: dict(zip(GRAPHS, file.read_text(encoding="utf-8").rstrip("\n").split("\n\n"), strict=True))
    for file in GOLDEN
}


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_becomes_what_it_became(name: str, file: Path) -> None:
    written, found = WRITTEN[file][name], GOLDEN[file](name)
    assert found == written, "\n".join(
        difflib.unified_diff(written.splitlines(), found.splitlines(), "written", "found", lineterm="")
    )
