"""Reverse-mode differentiation over the graph: one table of vector-Jacobian products and the backward walk."""
