"""torch.utils: `data` (weft.data), `checkpoint`, and `dlpack`, under torch's paths."""
# Tests: tests/test_torch_paths.py

from weft.module_paths import offer_paths
from weft.utils import dlpack

__all__ = ["dlpack"]

offer_paths(__name__, {
    "data": "weft.data",
    "data.dataset": "weft.data.dataset",
    "data.dataloader": "weft.data.loader",
    "data.sampler": "weft.data.sampler",
    "data.distributed": "weft.data.distributed",
    "_foreach_utils": "weft.core.surface.foreach",
    "checkpoint": "weft.core.grad.checkpointing",
})  # fmt: skip
