"""Functions of many elements: sums, products, running sums, orders, bins, rearrangements, random draws.

Imports `views` and the rooms below it.
"""
