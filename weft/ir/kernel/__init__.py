"""Kernels: an algorithm (what is computed), a schedule (where, and in what order), and the transforms of it."""
# Tests: tests/ir/kernel/test_transforms.py
