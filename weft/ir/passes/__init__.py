"""Transformations of lowered loops, `Program -> Program`, one file each; `pipeline` puts them in order."""
# Tests: tests/ir/passes/test_golden.py, tests/ir/passes/test_meaning.py
