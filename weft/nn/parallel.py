"""torch.nn.parallel for programs that wrap their model: here it runs as it is, on its device."""
# Tests: tests/distributed/test_processes.py

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from weft import distributed
from weft.errors import ArgumentError
from weft.nn.module import Module


class DataParallel(Module):
    """module(...): one device, and no copies. Parameters are named "module.*", as in torch's checkpoints of such."""

    def __init__(
        self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0
    ) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*inputs, **kwargs)


class DistributedDataParallel(Module):
    """module(...) in a group of one process: there are no gradients of others to average.

    Parameters are named "module.*", as in torch's checkpoints of such. weft.distributed.init_process_group comes first.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Any = None,
        param_to_hook_all_reduce: Any = None,
        mixed_precision: Any = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
    ) -> None:
        super().__init__()
        if not any(p.requires_grad for p in module.parameters()):
            raise ArgumentError(
                "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a "
                "gradient."
            )
        self.process_group = process_group if process_group is not None else distributed.new_group()
        self.module, self.device_ids, self.output_device, self.dim = module, device_ids, output_device, dim
        self.broadcast_buffers, self.find_unused_parameters = broadcast_buffers, find_unused_parameters
        self.static_graph, self.gradient_as_bucket_view = static_graph, gradient_as_bucket_view
        self.require_backward_grad_sync = True

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Generator[None]:
        """A block in which gradients are not averaged, as they never are here."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextmanager
    def join(self, *args: Any, **kwargs: Any) -> Generator[None]:
        """A block in which processes may have inputs of different number: there is one."""
        yield

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        """Accepted: there is nothing to communicate."""
