"""Signal processing under torch's names: window functions."""

from weft.signal import windows

__all__ = ["windows"]
