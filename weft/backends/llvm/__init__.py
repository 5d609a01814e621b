"""Lowered loops -> LLVM IR text: the parts that every LLVM target shares."""
# Tests: tests/backends/llvm/test_text.py, tests/backends/cpu/test_render.py
