"""Building blocks of tests of weft, and of backends for it: the reference, and strategies for random programs."""

from weft.testing.comparison import assert_close

__all__ = ["assert_close"]
