"""Tensors on meshes: how they are laid out, and what asks for that."""
