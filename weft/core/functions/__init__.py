"""Functions of many elements: sums, products, running sums, orders, bins, rearrangements, random draws.

Imports `views` and the rooms below it.
"""
# Tests: tests/core/test_surface.py, tests/core/test_against_torch.py
