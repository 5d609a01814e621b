"""Python's operators on tensors."""
# Tests: tests/core/tensor/test_tensor.py, tests/core/surface/test_overrides.py

from __future__ import annotations

from types import FunctionType

from weft.core.args.handle import Handle
from weft.core.functions import matmul as products
from weft.core.layout import indexing
from weft.core.pointwise import elementwise
from weft.core.surface.offering import as_method, as_operator
from weft.core.tensor.methods import Methods
from weft.core.views import views


class Operators(Handle):
    """Operators that give a new Tensor. Tensor inherits them."""

    __slots__ = ()

    __add__ = __radd__ = elementwise.add
    __sub__, __rsub__ = elementwise.sub, elementwise.rsub
    __mul__ = __rmul__ = elementwise.mul
    __truediv__, __rtruediv__ = elementwise.div, elementwise.rdiv
    __floordiv__, __rfloordiv__ = elementwise.floor_divide, elementwise.rfloor_divide
    __mod__, __rmod__ = elementwise.remainder, elementwise.rremainder
    __pow__, __rpow__ = elementwise.pow, elementwise.rpow
    __matmul__, __rmatmul__ = products.matmul, products.rmatmul
    __and__ = __rand__ = elementwise.bitwise_and
    __or__ = __ror__ = elementwise.bitwise_or
    __xor__ = __rxor__ = elementwise.bitwise_xor
    __lshift__, __rlshift__ = elementwise.bitwise_left_shift, elementwise.rshl
    __rshift__, __rrshift__ = elementwise.bitwise_right_shift, elementwise.rshr
    __lt__, __le__, __gt__, __ge__ = elementwise.lt, elementwise.le, elementwise.gt, elementwise.ge
    __neg__, __pos__, __abs__ = elementwise.neg, elementwise.positive, elementwise.abs
    __invert__ = elementwise.bitwise_not
    __getitem__ = views.picking(indexing.getitem)


_OF_ONE = frozenset({"__neg__", "__pos__", "__abs__", "__invert__"})

for _name, _function in list(vars(Operators).items()):
    if isinstance(_function, FunctionType):
        setattr(Operators, _name, (as_method if _name in _OF_ONE else as_operator)(_name, _function))


class InPlaceOperators(Handle):
    """Operators that have the handle stand for the result. Tensor inherits them."""

    __slots__ = ()

    __iadd__ = Methods.add_
    __isub__ = Methods.sub_
    __imul__ = Methods.mul_
    __itruediv__ = Methods.div_
    __ifloordiv__ = Methods.floor_divide_
    __imod__ = Methods.remainder_
    __ipow__ = Methods.pow_
    __iand__ = Methods.bitwise_and_
    __ior__ = Methods.bitwise_or_
    __ixor__ = Methods.bitwise_xor_
    __ilshift__ = Methods.bitwise_left_shift_
    __irshift__ = Methods.bitwise_right_shift_
