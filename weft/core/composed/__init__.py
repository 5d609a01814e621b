"""What functions composed of several ops are made with: recorded once, cast by autocast, rounded once.

Imports `args` and `execute`.
"""
