"""Linear algebra under torch's names. Factorizations run through LAPACK on the host, at the call."""
# Tests: tests/core/test_against_torch.py

from weft.surface.namespaces import offer

offer(globals(), "linalg")
