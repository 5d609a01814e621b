"""The Tensor, its methods, how it prints and how it meets other libraries.

Imports `surface` and the rooms below it.
"""
# Tests: tests/core/tensor/test_tensor.py
