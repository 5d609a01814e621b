"""weft.compile: a function traced once per structure of its arguments, then replayed as one plan.

Imports `tensor` and the rooms below it.
"""
