"""Backends: what turns lowered loops into running code, each in a package of its own."""
