"""Marks: what something was built to reach, beside what is found; and runs in turns, by one clock."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from benchmarks.results import say

clock: list[Callable[[], float]] = [time.perf_counter]
"""The clock that all is measured by."""

Work = Callable[[int], object]
"""Something to be timed: it is given the number of its turn, and returns when it is done."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a mark asks for: `value` is to be at most `most`, or at least `least`."""

    mark: int
    what: str
    value: float
    most: float | None = None
    least: float | None = None
    unit: str = "x"

    @property
    def text(self) -> str:
        """A line of the table."""
        bound = self.least if self.most is None else self.most
        met = (self.most is None or self.value <= self.most) and (
            self.least is None or self.value >= self.least
        )
        sign = ">=" if self.most is None else "<="
        asked = "" if bound is None else f"{sign} {bound:g} {self.unit}"
        verdict = "" if bound is None else "met" if met else "**missed**"
        return f"| {self.mark} | {self.what} | {self.value:.3g} {self.unit} | {asked} | {verdict} |"


def turns(works: Sequence[Work], rounds: int, warm: int = 3) -> list[float]:
    """The median seconds of each, which are done in turns, the first one first and last by turns."""
    times: list[list[float]] = [[] for _ in works]
    for k in range(rounds + warm):
        order = list(range(len(works)))
        for n in order if k % 2 else order[::-1]:
            begin = clock[0]()
            works[n](k)
            if k >= warm:
                times[n].append(clock[0]() - begin)
    return [statistics.median(t) for t in times]


def table(
    program: str,
    about: str | None,
    marks: Mapping[str, Callable[[int], Iterator[Row]]],
    rounds: int,
    given: Sequence[str] | None = None,
) -> None:
    """Measure what the command line asks for, and print a Markdown table. `marks`: by numbers with commas, what finds
    the rows when it is given the number of rounds."""
    p = argparse.ArgumentParser(
        prog=program, description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    p.add_argument("--only", default="", help="numbers of marks (default: all)")
    p.add_argument("--threads", type=int, default=0, help="threads (default: all cores)")
    p.add_argument("--rounds", type=int, default=rounds, help=f"runs of each way (default: {rounds})")
    p.add_argument("--busy", action="store_true", help="others use the machine: processor time")
    chosen = p.parse_args(given)
    if chosen.threads:
        _threads(chosen.threads)
    if chosen.busy:
        clock[0] = time.process_time
    wanted = set(chosen.only.split(",")) - {""}
    rows: list[str] = []
    for numbers, measure in marks.items():
        if wanted and not wanted & set(numbers.split(",")):
            continue
        for row in measure(chosen.rounds):
            say(row.text)
            rows.append(row.text)
    print("\n".join(["| mark | what | found | asked for | |", "|---|---|---:|---:|---|", *rows]))


def _threads(count: int) -> None:
    import weft

    weft.set_num_threads(count)
    if find_spec("torch"):
        import torch

        torch.set_num_threads(count)
