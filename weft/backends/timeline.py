"""Timelines: the resources' work over simulated or predicted time, to measure, draw, and open in a trace viewer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from zlib import crc32

from weft.lazy_dataclass import dataclass

ROWS_DRAWN = 64
_ROW, _LEFT, _TOP = 18, 150, 24
_MIN_PIXELS = 0.5
"""Narrower spans of a row are drawn as one with the span before, if that is as near."""


@dataclass(frozen=True, slots=True)
class Span:
    """Work of that name that occupied a resource from `begin_ns` to `end_ns`."""

    resource: str
    begin_ns: float
    end_ns: float
    name: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans in the order of their ends. `origin_ns` is when the timeline began."""

    spans: tuple[Span, ...]
    origin_ns: float = 0.0

    def __repr__(self) -> str:
        return f"<timeline: {len(self.spans)} spans of {len(self.resources)} resources in {_time(self.makespan_ns)}>"

    @property
    def makespan_ns(self) -> float:
        """The time from the beginning to the end of the last span."""
        return max([s.end_ns for s in self.spans], default=self.origin_ns) - self.origin_ns

    @property
    def resources(self) -> list[str]:
        """The names of what was ever busy, numbers in them in order."""
        return sorted({s.resource for s in self.spans}, key=_natural)

    def busy_ns(self, *resources: str) -> float:
        """The time in which at least one of the resources was busy; of all, where none is named."""
        named = set(resources)
        return _length(_union([s for s in self.spans if not named or s.resource in named]))

    def overlap_ns(self, first: Sequence[str], second: Sequence[str]) -> float:
        """The time in which one of `first` and one of `second` were busy at once: hidden copies, for instance."""
        return self.busy_ns(*first) + self.busy_ns(*second) - self.busy_ns(*first, *second)

    def chrome_trace(self) -> str:
        """The spans as JSON, as chrome://tracing and ui.perfetto.dev read it. Times are in microseconds there."""
        rows = {name: k for k, name in enumerate(self.resources)}
        names = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": k, "args": {"name": name}}
            for name, k in rows.items()
        ]
        order = [
            {"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": k, "args": {"sort_index": k}}
            for k in rows.values()
        ]
        work = [
            {
                "ph": "X",
                "name": s.name,
                "pid": 0,
                "tid": rows[s.resource],
                "ts": (s.begin_ns - self.origin_ns) / 1e3,
                "dur": (s.end_ns - s.begin_ns) / 1e3,
            }
            for s in self.spans
        ]
        return json.dumps({"traceEvents": [*names, *order, *work], "displayTimeUnit": "ns"})

    def svg(self, width: int = 1000) -> str:
        """A picture: a row for each resource, time from left to right. At most 64 rows are drawn."""
        names = self.resources
        drawn = names[:ROWS_DRAWN]
        rows: dict[str, list[Span]] = {name: [] for name in drawn}
        for s in self.spans:
            if s.resource in rows:
                rows[s.resource].append(s)
        scale = (width - _LEFT) / max(self.makespan_ns, 1e-9)

        def x(ns: float) -> float:
            return _LEFT + (ns - self.origin_ns) * scale

        out: list[str] = []
        for k in range(5):
            ns = self.makespan_ns * k / 4
            at, anchor = _LEFT + ns * scale, "end" if k == 4 else "middle"
            out.append(f'<text x="{at:.1f}" y="14" text-anchor="{anchor}">{_time(ns)}</text>')
            out.append(f'<path d="M{at:.1f} 18V{_TOP + _ROW * len(drawn)}" stroke="#ccc"/>')
        for k, (name, spans) in enumerate(rows.items()):
            top = _TOP + _ROW * k
            out.append(
                f'<text x="{_LEFT - 6}" y="{top + 13}" text-anchor="end">{escape(_short(name, 22))}</text>'
            )
            for begin, end, label in _drawable(spans, _MIN_PIXELS / scale):
                wide = max((end - begin) * scale, _MIN_PIXELS)
                inside = _short(label, int(wide / 6.5))
                out.append(
                    f"<g><title>{escape(label)}: {_time(end - begin)} from {_time(begin - self.origin_ns)}</title>"
                    f'<rect x="{x(begin):.2f}" y="{top + 1}" width="{wide:.2f}" height="{_ROW - 2}" '
                    f'fill="{_colour(label)}"/>'
                    + (
                        f'<text x="{x(begin) + 3:.2f}" y="{top + 13}">{escape(inside)}</text>'
                        if inside
                        else ""
                    )
                    + "</g>"
                )
        height = _TOP + _ROW * len(drawn) + 6
        if len(names) > len(drawn):
            out.append(f'<text x="6" y="{height + 10}">and {len(names) - len(drawn)} more</text>')
            height += 18
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
            f'font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
            + "\n".join(out)
            + "\n</svg>\n"
        )

    def save(self, path: str | Path) -> None:
        """Write the picture to a file whose name ends in .svg, the trace to one that ends in .json. ValueError for
        others."""
        makers: dict[str, Callable[[], str]] = {".svg": self.svg, ".json": self.chrome_trace}
        suffix = Path(path).suffix
        if suffix not in makers:
            raise ValueError(f"{path}: a timeline is written as .svg or .json")
        Path(path).write_text(makers[suffix](), encoding="utf-8")


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers in a name by their value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _union(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """The times in which any span lasts, in order."""
    out: list[tuple[float, float]] = []
    for begin, end in sorted((s.begin_ns, s.end_ns) for s in spans):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out


def _length(times: Sequence[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in times)


def _drawable(spans: Sequence[Span], least_ns: float) -> list[tuple[float, float, str]]:
    """Spans to draw: those that would be invisible are joined to their neighbours."""
    out: list[tuple[float, float, str]] = []
    for s in sorted(spans, key=lambda s: s.begin_ns):
        if out and s.end_ns - s.begin_ns < least_ns and s.begin_ns - out[-1][1] < least_ns:
            begin, end, label = out[-1]
            out[-1] = (begin, max(end, s.end_ns), label if label == s.name else "several")
        else:
            out.append((s.begin_ns, s.end_ns, s.name))
    return out


def _time(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns:.4g} ns"


def _short(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…" if letters > 3 else ""


def _colour(name: str) -> str:
    return f"hsl({crc32(name.encode()) % 360}, 60%, 75%)"
