"""The one place that states weft's version."""

__version__ = "0.1.0"
