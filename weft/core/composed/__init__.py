"""Tools for functions composed of several ops: recorded once, cast by autocast, rounded once.

Imports `args` and `execute`.
"""
# Tests: tests/core/composed/test_composite.py, tests/core/composed/test_halves.py
