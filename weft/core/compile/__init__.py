"""weft.compile: a function traced once per structure of its arguments, then replayed as one plan.

Imports `tensor` and the rooms below it.
"""
# Tests: tests/core/compile/test_compile.py, tests/core/compile/test_compile_breaks.py
