"""weft: a tensor framework. A lazy, torch-like Tensor whose graph is fused into kernels and compiled for the machine.

Names are torch's wherever torch has the thing: `weft/surface/table.py` lists them. Importing opens no device; that
happens when the first tensor needs one. It has Python's cyclic garbage collector run less often, unless the program has
said how often it shall: see `weft/ir/garbage.py`.
"""
# Tests: tests/core/tensor/test_tensor.py, tests/core/test_surface.py

from weft.core.tensor.tensor import Tensor as Tensor  # the class of what every module makes
from weft.ir.garbage import expect_graphs
from weft.surface.namespaces import offer

expect_graphs()
offer(globals(), "weft")
