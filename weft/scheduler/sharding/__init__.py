"""One graph over many devices: a graph of global shapes on a mesh becomes local graphs, joined by copies of boxes.

    terms.py       the part of a sum, of a scatter or a gather that a block of its operand has
    lower.py       the local nodes of each device, for layouts of the cuts
    propagate.py   layouts of all cuts, from those of leaves and from wishes, by the bytes that they move

Nothing here knows an op but for what it reduces over: which box of a node needs which boxes of others follows from the
index expressions of `weft.ir.regions`.
"""
