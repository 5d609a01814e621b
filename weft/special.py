"""Special functions under torch's names."""
# Tests: tests/core/composed/test_halves.py

from weft.surface.namespaces import offer

offer(globals(), "special")
