"""Kernelizer: fusion of a graph's nodes into kernels, and the algorithm of each kernel."""
# Tests: tests/scheduler/test_golden.py
# Tests: tests/scheduler/kernelize/test_structure.py, tests/scheduler/kernelize/test_decisions.py
