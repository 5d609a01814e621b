"""Functions of each element by itself, and what a dtype can hold.

Imports `args`, `execute` and `composed`.
"""
# Tests: tests/core/test_against_torch.py, tests/core/composed/test_halves.py
