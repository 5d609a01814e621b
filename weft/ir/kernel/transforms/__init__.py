"""Schedule transforms: one class, one file each. A transform never changes what a kernel computes (but for the order
in which a floating-point reduction adds, which those that do so state)."""

from __future__ import annotations
