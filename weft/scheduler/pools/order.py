"""An order of kernels that needs less memory: what frees more than it makes does not wait.

A weight's gradient reads an activation for the last time, and its result has memory anyway. In the order of the graph
it may come after all other gradients, which keeps all activations until then.
"""
# Tests: tests/scheduler/pools/test_within.py

from __future__ import annotations

from dataclasses import replace

from weft.ir.graph import Node
from weft.scheduler.assembly import Assembly, Prepared
from weft.scheduler.loops import nbytes


def reordered(made: Prepared) -> Prepared:
    """The job with its kernels in another order, in which all leaves that were updated in place still are."""
    assembly, specs = Assembly(made), made.specs
    waits: list[set[int]] = [set() for _ in specs]
    readers: dict[Node, set[int]] = {}
    touched = [tuple(dict.fromkeys((*s.reads, *s.inplace.values()))) for s in specs]
    for k, nodes in enumerate(touched):
        for n in nodes:
            readers.setdefault(n, set()).add(k)
            if n in assembly.made:
                waits[k].add(assembly.made[n])
    overwritten = [(made.job.leaves[i], made.job.outputs[o]) for o, i in assembly.replaces.items()]
    overwritten += [(base, n) for s in specs for n in s.writes if (base := assembly.base(n)) is not None]
    for n, output in assembly.early.items():  # which may be made in the memory of a leaf
        i = assembly.replaces.get(assembly.output[output])
        if i is not None:
            overwritten.append((made.job.leaves[i], n))
    for old, new in overwritten:  # those that read it later read a copy
        writer = assembly.made[new]
        waits[writer].update([k for k in readers.get(old, ()) if k < writer])
    users: list[list[int]] = [[] for _ in specs]
    for k, before in enumerate(waits):
        for j in before:
            users[j].append(k)
    left = [len(before) for before in waits]
    to_read = {n: len(ks) for n, ks in readers.items() if n in assembly.owner}

    def grows(k: int) -> int:
        """The bytes that are in use afterwards, less those before."""
        made_here = sum([nbytes(n) for n in specs[k].writes if to_read.get(n)])
        return made_here - sum([nbytes(n) for n in touched[k] if to_read.get(n) == 1])

    ready = [k for k, n in enumerate(left) if not n]
    order: list[int] = []
    while ready:
        growth, first = min((grows(k), k) for k in ready)
        k = first if growth <= 0 else min(ready)
        ready.remove(k)
        order.append(k)
        for n in touched[k]:
            if n in to_read:
                to_read[n] -= 1
        for u in users[k]:
            left[u] -= 1
            if not left[u]:
                ready.append(u)
    return replace(made, specs=tuple([specs[k] for k in order]))
