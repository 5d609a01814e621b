"""torch.nn.parameter: what modules keep."""
# Tests: tests/nn/test_module.py

from weft.nn.module import Buffer, Parameter

__all__ = ["Buffer", "Parameter"]
