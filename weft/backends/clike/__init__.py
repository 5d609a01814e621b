"""Lowered loops as source text of C-like languages: OpenCL C, C, WGSL. What differs between them is in `Language`."""
# Tests: tests/backends/clike/test_body.py, tests/backends/opencl/test_device.py
