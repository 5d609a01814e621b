"""What stands around functions where users find them."""

from __future__ import annotations

from typing import Any

import pytest

import weft
from weft.core.functional.activations import silu
from weft.core.layout.movement import reshape
from weft.core.pointwise.elementwise import cos
from weft.core.surface.offering import as_method, function_of, offered
from weft.errors import DTypeError
from weft.surface.table import Form, Row, rows


def row(name: str, form: Form) -> Row:
    return Row(name, "m", name, form, listed=True, late=False)


def test_plain_functions_and_other_things_are_offered_as_they_are() -> None:
    assert offered(cos, row("cos", Form.PLAIN), "cos", "weft.m") is cos
    assert offered(weft.Generator, row("Generator", Form.MADE), "Generator", "weft.m") is weft.Generator


def test_checked_functions_are_one_object_and_refuse_other_types() -> None:
    found = offered(silu, row("silu", Form.CHECKED), "silu", "weft.m")
    assert found is offered(silu, row("silu", Form.CHECKED), "silu", "weft.n") is weft.nn.functional.silu
    with pytest.raises(DTypeError, match="silu: inplace must be True or False"):
        found(weft.ones(1), inplace="no")


def test_out_is_taken_under_the_name_that_the_user_called() -> None:
    found = offered(cos, row("cosine", Form.OUT), "cosine", "weft.m")
    out = weft.empty(1)
    assert found(x=weft.zeros(1), out=out) is out and out.tolist() == [1.0]
    assert (found.__module__, found.__name__) == ("weft.m", "cosine")
    with pytest.raises(DTypeError, match="cosine: out must be a Tensor"):
        found(weft.zeros(1), out=1)


def test_made_results_look_at_the_input_or_are_others() -> None:
    found = offered(reshape, row("reshape", Form.MADE), "reshape", "weft.m")
    x = weft.zeros(4)
    y = found(x, (2, 2))
    y.fill_(3)
    assert x.tolist() == [3.0] * 4
    copy = offered(reshape, row("reshape_copy", Form.MADE), "reshape_copy", "weft.m")(x, (4,))
    copy.fill_(5)
    assert x.tolist() == [3.0] * 4


def test_late_methods_import_their_module_when_they_are_called() -> None:
    calls = function_of(Row("sqrt", "math", "sqrt", Form.MADE, listed=True, late=True))
    assert calls.__name__ == "sqrt" and calls(9.0) == 3.0
    missing: Any = function_of(Row("x", "weft.no_such_module", "x", Form.MADE, listed=True, late=True))
    with pytest.raises(ModuleNotFoundError):
        missing()


def test_methods_are_the_functions_of_their_rows() -> None:
    assert function_of(rows("Tensor")["cos"]) is cos
    assert as_method("cos", cos)(weft.zeros(1)).tolist() == [1.0]
    assert all(hasattr(weft.Tensor, name) for name in rows("Tensor"))
    assert all(hasattr(weft.Tensor, f"{name}_") for name in rows("Tensor_"))


def test_methods_in_place_have_the_name_that_the_user_called() -> None:
    with pytest.raises(weft.WeftError, match="fix_"):
        weft.tensor([1.5], requires_grad=True).fix_()
