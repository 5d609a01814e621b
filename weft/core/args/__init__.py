"""Conversion of arguments to operands, axes, sizes, dtypes and modes, checked. Imports no other room."""
