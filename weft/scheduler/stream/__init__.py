"""Computing what does not fit in memory, in pieces: tensors on disk that are larger than it, results written to files.

A value is split along one of its own axes (pieces are put one after the other), or, where it is a reduction, along an
axis that it reduces over (partial results are combined). A slice of the result is pushed through the graph to the
leaves, op by op, so that a piece needs a slice of each file only.

    slices.py    what a slice of an op's result is made from: one rule per op
    split.py     which axis a value is split along, and into pieces of which size
    pieces.py    running the one plan of all pieces, with the files read ahead
    compute.py   which values of a graph have to be computed so, in which order
    picked.py    rows of files for devices that do not read files themselves
"""
# Tests: tests/scheduler/stream/test_stream.py

from __future__ import annotations

from weft.scheduler.stream.compute import compute, needed, needed_for, write
from weft.scheduler.stream.picked import with_rows_read

__all__ = ["compute", "needed", "needed_for", "with_rows_read", "write"]
