"""Kernels: an algorithm (what is computed) and a schedule (where and in what order), and the transforms between them."""
