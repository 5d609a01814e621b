"""Elementary functions, written once as scalar expressions for every backend whose own are not as good.

exp, exp2, log, log2, sin, cos, tanh, erf and pow, in float32 and float64, each within 4 ULP of the true value over
the whole range with IEEE 754's special cases, in straight-line code. The pass and its table are in
`weft.ir.math.expand`.
"""
# Tests: tests/ir/test_math.py
