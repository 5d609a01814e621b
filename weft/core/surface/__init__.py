"""Functions as they are offered under torch's names: keywords, `out=`, overrides, late imports.

Imports `linear_algebra` and the rooms below it.
"""
