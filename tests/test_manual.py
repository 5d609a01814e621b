"""The printed forms in the manuals are what the code prints now; links in the manuals lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import architecture_forms
import forms
import performance_forms
import pytest

ROOT = Path(__file__).parents[1]
MANUALS = sorted((ROOT / "manuals").glob("*.md"))
PAGES = {"architecture.md": architecture_forms.FORMS, "performance.md": performance_forms.FORMS}


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, made in PAGES.items() for name in made])
def test_a_form_is_what_the_code_prints(page: str, name: str) -> None:
    form = forms.committed((forms.MANUALS / page).read_text(encoding="utf-8"))[name]
    printed = PAGES[page][name]()
    if name == "machine" and form.partition("\n")[0] != printed.partition("\n")[0]:
        pytest.skip("another LLVM made the machine code in the manual")
    assert form == printed, f"run tools/architecture_forms.py, and read what changed in manuals/{page}"


@pytest.mark.parametrize("page", PAGES)
def test_every_form_stands_in_the_manual_once(page: str) -> None:
    text = (forms.MANUALS / page).read_text(encoding="utf-8")
    assert re.findall(r"<!-- form: (.+) -->", text) == list(PAGES[page])


@pytest.mark.parametrize("page", MANUALS, ids=lambda p: p.name)
def test_files_that_a_manual_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [page.parent / t for t in re.findall(r"\]\((?!https?:)([^)#]+)\)", text)]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    named = re.findall(r"`((?:weft/|tests/|tools/)?[a-z_/]+/[a-z_]+(?:\.py)?)`", prose)
    missing = [n for n in named if not any((base / n).exists() for base in (ROOT, ROOT / "weft"))]
    assert not missing and not [link for link in links if not link.exists()]


@pytest.mark.parametrize("page", MANUALS, ids=lambda p: p.name)
def test_anchors_of_a_manual_are_headings_in_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.+)$", text, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings
