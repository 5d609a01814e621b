"""Regions: which elements an operation reads for some of its results, and which results a change of some can reach.

    y = x.reshape(24)             x: (4, 6), each row is six elements of y

    needs(y, [7:20])     =  [1:2, 1:6] | [2:3, 0:6] | [3:4, 0:2]        of x
    reaches(y, [1:3, :]) =  [6:18]                                      of y

One calculus for what slices, shards, pads with halos or computes again only what changed:

    boxes.py     boxes: an interval [lo, hi) per axis, whose ends may depend on runtime variables
    region.py    regions: at most a few disjoint boxes, and whether they are exactly what is meant
    access.py    access relations: pairs (element written, element read), as index expressions over common axes
    solve.py     the image of a region under such a relation, in either direction
    ops.py       the access relations of every primitive: the only table of ops
    kernels.py   those of a kernel's algorithm
    graphs.py    regions through graphs, loops and calls included
    reach.py     what changes reach wherever they begin, fast for large graphs;  tables.py  intervals at every start
    parts.py     nodes that compute boxes of an op's result from boxes of its inputs;  loop_parts.py  of a loop's
"""
