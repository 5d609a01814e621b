"""Layers, losses and their functions, under torch's names. Built on what `weft` offers everybody; see `Module`."""
# Tests: tests/nn/test_layers.py

from weft.surface.namespaces import offer

offer(globals(), "nn")
