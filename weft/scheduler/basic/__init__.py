"""Basic plans: few, size-free kernels, whose programs all graphs share; see `plan`."""
# Tests: tests/fuzz/test_basic.py, tests/scheduler/test_basic.py
