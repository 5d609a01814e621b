"""Modules of functions that few programs use: each is imported at the first call of one of its functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import LazyModule

if TYPE_CHECKING:
    from weft.core import arithmetic as arithmetic
    from weft.core import arrangement as arrangement
    from weft.core import float_format as float_format
    from weft.core import histograms as histograms
    from weft.core import interchange as interchange
    from weft.core import linear_algebra as linear_algebra
    from weft.core import products as composed_products
    from weft.core import scans as scans
    from weft.core import sorting as sorting
    from weft.core import special_functions as special
    from weft.core import trigonometry as trigonometry
    from weft.core import ufuncs as ufuncs
else:
    arithmetic = LazyModule("weft.core.arithmetic")
    arrangement = LazyModule("weft.core.arrangement")
    float_format = LazyModule("weft.core.float_format")
    histograms = LazyModule("weft.core.histograms")
    interchange = LazyModule("weft.core.interchange")
    linear_algebra = LazyModule("weft.core.linear_algebra")
    scans = LazyModule("weft.core.scans")
    sorting = LazyModule("weft.core.sorting")
    ufuncs = LazyModule("weft.core.ufuncs")
    trigonometry = LazyModule("weft.core.trigonometry")
    composed_products = LazyModule("weft.core.products")
    special = LazyModule("weft.core.special_functions")

__all__ = [
    "arithmetic", "arrangement", "composed_products", "float_format", "histograms", "interchange", "linear_algebra",
    "scans", "sorting", "special", "trigonometry", "ufuncs",
]  # fmt: skip
