"""Transformations of lowered loops, `Program -> Program`, one file each; `pipeline` puts them in order."""
