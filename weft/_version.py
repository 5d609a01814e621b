"""The one place that states weft's version."""
# Tests: tests/test_architecture.py

__version__ = "0.1.0"
