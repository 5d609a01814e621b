"""Modules of functions that few programs use: each is imported at the first call of one of its functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.surface.lazy import LazyModule

if TYPE_CHECKING:
    from weft.core import linear_algebra as linear_algebra
    from weft.core.functions import arrangement as arrangement
    from weft.core.functions import histograms as histograms
    from weft.core.functions import scans as scans
    from weft.core.functions import sorting as sorting
    from weft.core.linear_algebra import torch_products as composed_products
    from weft.core.pointwise import arithmetic as arithmetic
    from weft.core.pointwise import float_format as float_format
    from weft.core.pointwise import special_functions as special
    from weft.core.pointwise import trigonometry as trigonometry
    from weft.core.tensor import interchange as interchange
    from weft.core.tensor import ufuncs as ufuncs
else:
    arithmetic = LazyModule("weft.core.pointwise.arithmetic")
    arrangement = LazyModule("weft.core.functions.arrangement")
    float_format = LazyModule("weft.core.pointwise.float_format")
    histograms = LazyModule("weft.core.functions.histograms")
    interchange = LazyModule("weft.core.tensor.interchange")
    linear_algebra = LazyModule("weft.core.linear_algebra")
    scans = LazyModule("weft.core.functions.scans")
    sorting = LazyModule("weft.core.functions.sorting")
    ufuncs = LazyModule("weft.core.tensor.ufuncs")
    trigonometry = LazyModule("weft.core.pointwise.trigonometry")
    composed_products = LazyModule("weft.core.linear_algebra.torch_products")
    special = LazyModule("weft.core.pointwise.special_functions")

__all__ = [
    "arithmetic", "arrangement", "composed_products", "float_format", "histograms", "interchange", "linear_algebra",
    "scans", "sorting", "special", "trigonometry", "ufuncs",
]  # fmt: skip
