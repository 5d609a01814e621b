"""Plans of parts: one plan for a graph whose nodes live on several devices, joined by COPY.

    cpu:0    part 0: y = x @ w  ------.            exchange 1: y[:, :8] -> opencl:0
    opencl:0                           `- part 2: z = relu(y) ...

A *part* is what one device computes at one go: today's plan of a graph on one device. An *exchange* moves a box of a
value into the memory of another device. Parts wait for exchanges, and exchanges for parts, by events; nothing waits
for a whole device.

    cut.py       from a graph to parts and exchanges: which nodes go together, which values are stored between
    stretches.py parts divided, so that exchanges go on beside the rest of a part
    timing.py    when steps would run, by what they take: list scheduling, with lanes and wires as resources
    order.py     in which order they are started on which queues, who waits for whom, which values share memory
    proof.py     the steps put together again: they compute the graph, each box and each term of it once
    verify.py    the order followed step by step: each read after its write, nothing overwritten that is still read
    plan.py      running it
    found.py     plans by signature, and the values of nodes over several devices
"""

from __future__ import annotations

from weft.scheduler.parts.found import compute, kept_plan, steps_of, values_over

__all__ = ["compute", "kept_plan", "steps_of", "values_over"]
