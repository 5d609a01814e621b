"""A pool's limit, divided among its sessions: each keeps what is worth most per byte, and loses it at nobody's turn.

    taking turns    a session that runs takes what it needs, and those that ran longest ago lose all that they kept
    divided         each has bytes of its own; scratch, which runs take one after the other, counts once

Dividing costs time in every run, taking turns a run of everything after each change of turns: what is less by the turns
so far is done. Steps down are taken where they cost least per byte, as for the values of one session.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Rung:
    """A choice of what to keep: its bytes with those of results, the most scratch of a run, a run's expected time."""

    kept: int
    scratch: int
    ns: float


@dataclass(frozen=True, slots=True)
class Ladder:
    """The choices of a session, the one that keeps most first; the time of a run that computes everything; the runs so
    far, and those that came after a run of another session."""

    rungs: tuple[Rung, ...]
    whole_ns: float
    runs: int
    turns: int


def divided(ladders: Sequence[Ladder], nbytes: int) -> list[Rung] | None:
    """A choice for each session, such that all have room; None where there is none, or where taking turns takes less
    time."""
    at = [0] * len(ladders)

    def chosen() -> list[Rung]:
        return [ladder.rungs[k] for ladder, k in zip(ladders, at, strict=True)]

    while needed(chosen()) > nbytes:
        downs = [
            (_cost(ladder, k, j), m, j)
            for m, (ladder, k) in enumerate(zip(ladders, at, strict=True))
            for j in range(k + 1, len(ladder.rungs))
            if ladder.rungs[j].kept < ladder.rungs[k].kept
        ]
        if not downs:
            return None
        _, m, at[m] = min(downs)
    apart = sum(x.runs * r.ns for x, r in zip(ladders, chosen(), strict=True))
    in_turns = sum((x.runs - x.turns) * x.rungs[0].ns + x.turns * x.whole_ns for x in ladders)
    return chosen() if apart < in_turns else None


def needed(chosen: Sequence[Rung]) -> int:
    """The bytes that sessions with these choices take together."""
    return sum(r.kept for r in chosen) + max([r.scratch for r in chosen], default=0)


def _cost(ladder: Ladder, k: int, j: int) -> float:
    """The time per byte that a step down takes."""
    a, b = ladder.rungs[k], ladder.rungs[j]
    return ladder.runs * (b.ns - a.ns) / (a.kept - b.kept)
