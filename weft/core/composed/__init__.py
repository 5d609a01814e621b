"""Tools for functions composed of several ops: recorded once, cast by autocast, rounded once.

Imports `args` and `execute`.
"""
