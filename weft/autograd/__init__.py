"""Reverse-mode differentiation over the graph: one table of vector-Jacobian products and the backward walk.

For users, `weft.autograd` also offers torch's tools (grad, Function, functional.jacobian ...). They take Tensors, of
which this package knows nothing, so they are in weft.core, and looked up there when first asked for.
"""
# Tests: tests/autograd/test_reverse.py, tests/autograd/test_tools.py

from weft.surface.namespaces import offer

offer(globals(), "autograd")
