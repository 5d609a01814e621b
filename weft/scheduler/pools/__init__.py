"""Plans within limits: values of long life leave a pool of memory, and come back where they are read.

    kept         from the kernel that makes it to the last one that reads it, in memory of its own
    recomputed   made again, by the same kernels, shortly before it is read again
    spilled      copied to a slower pool (host, disk) and back

Nothing here is looked at before a plan has been refused for want of memory.

    schedule.py   which values leave, when, and how they come back, chosen by cost; on tables, apart from graphs
    again.py      kernels run again: the kernels of a job, some of them several times, are a job's kernels too
    spilling.py   plans in stretches, with copies to and from a slower pool between them
    within.py     plans by limit, and the refusal that says which limit would do
"""

from __future__ import annotations
