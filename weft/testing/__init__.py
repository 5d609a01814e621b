"""Building blocks of tests of weft, and of backends for it: the reference, strategies for random programs, and farms of
simulated devices."""

from weft.backends.dummy.farm import Farm
from weft.backends.dummy.faults import Faults
from weft.backends.dummy.links import all_to_all, fat_tree, groups, host_staged, ring, switch
from weft.backends.links import Link
from weft.testing.comparison import assert_close
from weft.testing.farms import farm

__all__ = [
    "Farm",
    "Faults",
    "Link",
    "all_to_all",
    "assert_close",
    "farm",
    "fat_tree",
    "groups",
    "host_staged",
    "ring",
    "switch",
]
