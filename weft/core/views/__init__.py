"""Tensors that look at the same elements, their strides and storages.

Imports `layout` and the rooms below it.
"""
