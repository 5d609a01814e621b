"""Printed forms in the manuals are what the code prints now; links lead somewhere; decision records are complete."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import architecture_forms
import forms
import performance_forms
import pytest

from benchmarks import report
from weft.ir.kernel import transforms
from weft.ir.kernel.transforms.base import Transform

ROOT = Path(__file__).parents[1]
RECORDS = sorted((ROOT / "manuals" / "decisions").glob("[0-9]*.md"))
TEXTS = [*sorted((ROOT / "manuals").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES = {
    "architecture.md": architecture_forms.FORMS,
    "walks.md": architecture_forms.WALKS,
    "performance.md": performance_forms.FORMS,
}
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)")
"""A link within the repository: a file, and a heading in it; either may be empty."""


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


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


@pytest.mark.parametrize("page", TEXTS, ids=lambda p: p.name)
def test_files_that_a_manual_names_are_there(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = re.findall(r"`((?:weft/|tests/|tools/)?[a-z_0-9/]+/[a-z_0-9]+(?:\.py)?)`", prose)
    assert not [n for n in named if not any((base / n).exists() for base in (ROOT, ROOT / "weft"))]


@pytest.mark.parametrize("page", TEXTS, ids=lambda p: p.name)
def test_links_of_a_manual_lead_to_files_and_headings(page: Path) -> None:
    broken: list[str] = []
    for file, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{file}#{anchor}")
    assert not broken


@pytest.mark.parametrize("record", RECORDS, ids=lambda p: p.name)
def test_a_record_has_its_headings_and_stands_in_the_index(record: Path) -> None:
    text = record.read_text(encoding="utf-8")
    head = re.match(
        r"# (\d{3}): (.+)\n\nStatus: (holds|superseded by \d{3})\. Recorded: \d{4}-\d\d-\d\d.*\.\n", text
    )
    assert head is not None and record.name.startswith(head[1] + "-")
    assert re.findall(r"^## (.+)$", text, re.M) == [
        "Context",
        "Choice",
        "Rejected",
        "Measured",
        "Consequences",
    ]
    index = (record.parent / "README.md").read_text(encoding="utf-8")
    assert f"\n| [{head[1]}]({record.name}) | {head[2]} | {head[3]} | " in index


def test_records_are_numbered_from_one_and_the_index_has_no_other() -> None:
    assert [int(r.name[:3]) for r in RECORDS] == list(range(1, len(RECORDS) + 1))
    index = (ROOT / "manuals" / "decisions" / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[\d{3}\]\((.+?)\)", index, re.M) == [r.name for r in RECORDS]


def test_architecture_is_short_and_states_no_times() -> None:
    text = (ROOT / "manuals" / "architecture.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 450
    assert not re.findall(r"\d (?:ms|us)\b", text)


def test_the_table_of_transforms_has_all_of_them() -> None:
    for module in pkgutil.iter_modules(transforms.__path__):
        importlib.import_module(f"{transforms.__name__}.{module.name}")
    found: list[type[Transform]] = [Transform]
    for kind in found:
        found += kind.__subclasses__()
    kinds = [kind.__name__ for kind in found[1:] if kind.__module__.startswith(transforms.__name__)]
    names = {re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower() for name in kinds}
    text = (ROOT / "manuals" / "performance.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?`) \|", text.partition("### The transforms")[2].partition("\n### ")[0], re.M)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == names


def test_the_page_of_figures_is_what_benchmarks_write() -> None:
    assert (ROOT / "manuals" / "measured.md").read_text(encoding="utf-8").startswith(report.PAGE)
