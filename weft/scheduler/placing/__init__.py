"""Placing: which device computes what, in which layout and when. All but the last are algorithms on tables of costs.

    Links      what a message between two devices takes              links.py
    Routes     the cheapest way from one layout to another           routes.py
    Problem    blocks with options, edges with tables, limits        problem.py, bounds.py, search.py, clusters.py
    Tasks      a DAG, devices of unequal speed, pools: an order      tasks.py, order.py
    parts      divisible work by speed, small collectives joined     shares.py, buckets.py
    Pipeline   contiguous stages, and the order of microbatches      pipeline.py
    choose     layouts for a graph on a mesh: a Problem from it      layouts.py

All times are in nanoseconds. Every answer says how far it can be from the best one, or what else would do.
"""
