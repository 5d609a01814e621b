"""The functions that layers are made of, under torch's names; `import weft.nn.functional as F`."""

from weft.core.functional import *  # noqa: F403  (the list is there, once)
from weft.core.functional import __all__ as __all__
from weft.core.surface.keywords import offer_out
from weft.core.surface.overrides import offer_namespace

offer_out(
    globals(),
    ("avg_pool2d", "avg_pool3d", "gelu", "hardshrink", "logsigmoid", "softplus", "softshrink"),
    "weft.nn.functional",
)
offer_namespace("weft.nn.functional")
