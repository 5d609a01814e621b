"""torch.nn.parallel for programs that wrap their model: here it runs as it is, on its device."""

from __future__ import annotations

from typing import Any

from weft.nn.module import Module


class DataParallel(Module):
    """module(...): one device, and no copies. Parameters are named "module.*", as in torch's checkpoints of such."""

    def __init__(
        self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0
    ) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """What the module gives."""
        return self.module(*inputs, **kwargs)
