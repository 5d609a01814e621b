"""Counts of what a program asked of torch and weft did not give: `python -m weft run` lists them last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import field

from weft.lazy_dataclass import dataclass

SHOWN = 40
"""So many names of a kind are listed, the most frequent first."""


def _counter() -> Counter[str]:
    return Counter()


@dataclass(slots=True)
class Record:
    """Counts by torch's full names."""

    missing: Counter[str] = field(default_factory=_counter)
    """Names that were asked for and are not there: AttributeError or ImportError, which programs may expect."""
    unused: Counter[str] = field(default_factory=_counter)
    """Stand-ins that were called and changed nothing."""
    refused: Counter[str] = field(default_factory=_counter)
    """Stand-ins that were called and raised."""
    on_host: Counter[str] = field(default_factory=_counter)
    """Operations of weft that NumPy computed on the host."""

    def clear(self) -> None:
        """Count from 0 again."""
        for counter in (self.missing, self.unused, self.refused, self.on_host):
            counter.clear()

    def lines(self) -> Iterator[str]:
        """The list, a line for each name; one line where there is nothing to say."""
        kinds = (
            ("refused: weft lacks it, and says so when it is called", self.refused),
            ("asked for, and not there", self.missing),
            ("called, and changes nothing", self.unused),
            ("computed on the host, by NumPy", self.on_host),
        )
        if not any(counter for _, counter in kinds):
            yield "weft in torch's place: nothing was missed"
            return
        yield "weft in torch's place missed, with counts:"
        for title, counter in kinds:
            if not counter:
                continue
            yield f"  {title}"
            for name, count in counter.most_common(SHOWN):
                yield f"    {count:7d}  {name}"
            if len(counter) > SHOWN:
                yield f"    and {len(counter) - SHOWN} more"


record = Record()
"""The record of this process."""
