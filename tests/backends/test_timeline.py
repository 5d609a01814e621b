"""Timelines: what they measure, and what they look like."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from weft.backends.timeline import ROWS_DRAWN, Span, Timeline

SVG = "{http://www.w3.org/2000/svg}"
MADE = Timeline(
    (
        Span("farm:10", 100.0, 400.0, "product"),
        Span("0->1", 200.0, 500.0, "farm:0 <to> farm:1"),
        Span("farm:2", 450.0, 600.0, "sum"),
        Span("farm:10", 400.0, 700.0, "product"),
    ),
    100.0,
)


def test_lengths() -> None:
    assert MADE.makespan_ns == 600 and Timeline(()).makespan_ns == 0
    assert MADE.busy_ns("farm:10") == 600 and MADE.busy_ns() == 600 and MADE.busy_ns("farm:2", "0->1") == 400
    assert MADE.overlap_ns(["0->1"], ["farm:10"]) == 300
    assert MADE.overlap_ns(["0->1"], ["farm:2"]) == 50


def test_it_prints_in_a_line() -> None:
    assert repr(MADE) == "<timeline: 4 spans of 3 resources in 600 ns>"


def test_resources_are_in_the_order_of_their_numbers() -> None:
    assert MADE.resources == ["0->1", "farm:2", "farm:10"] or MADE.resources == ["farm:2", "farm:10", "0->1"]
    assert MADE.resources.index("farm:2") < MADE.resources.index("farm:10")


def test_the_trace_has_a_row_for_each_resource_and_times_in_microseconds() -> None:
    events = json.loads(MADE.chrome_trace())["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    work = [(rows[e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert work == [
        ("farm:10", "product", 0.0, 0.3),
        ("0->1", "farm:0 <to> farm:1", 0.1, 0.3),
        ("farm:2", "sum", 0.35, 0.15),
        ("farm:10", "product", 0.3, 0.3),
    ]


def test_the_picture_is_to_scale() -> None:
    root = ET.fromstring(MADE.svg(750))
    drawn = {(g.findtext(f"{SVG}title") or ""): g.find(f"{SVG}rect") for g in root.iter(f"{SVG}g")}
    assert set(drawn) == {
        "product: 300 ns from 0 ns",
        "product: 300 ns from 300 ns",
        "sum: 150 ns from 350 ns",
        "farm:0 <to> farm:1: 300 ns from 100 ns",
    }
    copied = drawn["farm:0 <to> farm:1: 300 ns from 100 ns"]
    assert copied is not None and (copied.get("x"), copied.get("width")) == ("250.00", "300.00")
    assert {"600 ns", "farm:10", "0->1"} <= {t.text for t in root.iter(f"{SVG}text")}


def test_a_picture_of_many_rows_and_spans_stays_small() -> None:
    spans = [Span(f"farm:{k % 100}", k, k + 0.5, "k") for k in range(20_000)]
    text = Timeline(tuple(spans)).svg()
    assert f"and {100 - ROWS_DRAWN} more" in text and len(text) < 4_000_000
    close = Timeline(tuple([Span("one", k, k + 0.5, f"k{k % 2}") for k in range(100_000)])).svg()
    assert close.count("<rect") < 1000 and "several: " in close


def test_files_are_told_by_their_names(tmp_path: Path) -> None:
    MADE.save(tmp_path / "t.svg")
    MADE.save(tmp_path / "t.json")
    assert (tmp_path / "t.svg").read_text().startswith("<svg ")
    assert json.loads((tmp_path / "t.json").read_text())["displayTimeUnit"] == "ns"
    with pytest.raises(ValueError, match=r"t\.png: a timeline is written as \.svg or \.json"):
        MADE.save(tmp_path / "t.png")
