"""torch.nn.parameter: what modules keep."""

from weft.nn.module import Buffer, Parameter

__all__ = ["Buffer", "Parameter"]
