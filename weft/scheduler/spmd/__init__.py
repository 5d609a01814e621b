"""One graph for all devices of a mesh that hold equal blocks: what it takes to plan it does not grow with their number.

    lower.py    the graph of any device, with its coordinates as runtime variables, and exchanges as formulas
    order.py    the order of its steps, and which events of which devices they wait for
    plan.py     running it

Meshes of few devices, uneven blocks, devices of several kinds: a graph for each device (`scheduler/sharding/lower.py`).
"""
