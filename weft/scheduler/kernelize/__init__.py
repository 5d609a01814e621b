"""Kernelizer: fusion of a graph's nodes into kernels, and the algorithm of each kernel."""
