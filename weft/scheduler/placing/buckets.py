"""Small collectives are done as one: below latency * bandwidth bytes a message costs what it costs to begin it."""

from __future__ import annotations

from collections.abc import Sequence

from weft.scheduler.placing.links import Way


def worth_joining(ways: Sequence[Way]) -> float:
    """The bytes at which half of the time is the fixed one: of the algorithm for many bytes."""
    last = min(ways, key=lambda w: w.ns_per_byte)
    return last.fixed_ns / last.ns_per_byte if last.ns_per_byte > 0 else 0.0


def buckets(nbytes: Sequence[int], ways: Sequence[Way]) -> list[list[int]]:
    """Consecutive collectives that are done at once, in the order in which their inputs are ready.

    A bucket is closed when it has as many bytes as are worth joining: it can then be sent while the next is made.
    """
    if not ways:
        return [[k] for k in range(len(nbytes))]
    enough = worth_joining(ways)
    found: list[list[int]] = []
    held = enough
    for k, n in enumerate(nbytes):
        if held >= enough or n >= enough:
            found.append([])
            held = 0.0
        found[-1].append(k)
        held += n
    return found
