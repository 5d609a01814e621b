"""Creation, and which element stands where: movement, gather, indexing.

Imports `pointwise` and the rooms below it.
"""
