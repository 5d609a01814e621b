"""Lowered loops -> LLVM IR text: the parts that every LLVM target shares."""
