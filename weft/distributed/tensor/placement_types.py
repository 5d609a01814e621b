"""torch.distributed.tensor.placement_types."""
# Tests: tests/core/sharding/test_placements.py

from weft.core.sharding.placements import Partial, Placement, Replicate, Shard

__all__ = ["Partial", "Placement", "Replicate", "Shard"]
