"""torch.serialization: reading, writing, and which classes files may hold."""

from weft.io.allowed import add_safe_globals, clear_safe_globals, get_safe_globals, safe_globals
from weft.io.nested import load, save

__all__ = ["add_safe_globals", "clear_safe_globals", "get_safe_globals", "load", "safe_globals", "save"]
