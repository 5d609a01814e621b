"""Lowered loops as source text of C-like languages: OpenCL C, C, WGSL. What differs between them is in `Language`."""
