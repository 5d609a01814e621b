"""Creation, and which element stands where: movement, gather, indexing.

Imports `pointwise` and the rooms below it.
"""
# Tests: tests/core/test_surface.py, tests/core/tensor/test_tensor.py
