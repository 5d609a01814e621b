"""Grad modes and autocast as contexts, calls and decorators of functions, generators and classes, beside torch's."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

import weft
from weft.autograd.context import context

W = weft.ones(2, requires_grad=True)

DECORATORS: dict[str, tuple[Callable[[], Any], bool]] = {
    "bare no_grad": (lambda: weft.no_grad, False),
    "no_grad": (weft.no_grad, False),
    "bare enable_grad": (lambda: weft.enable_grad, True),
    "enable_grad": (weft.enable_grad, True),
    "bare inference_mode": (lambda: weft.inference_mode, False),
    "inference_mode": (weft.inference_mode, False),
    "inference_mode(True)": (lambda: weft.inference_mode(True), False),
    "inference_mode(mode=False)": (lambda: weft.inference_mode(mode=False), True),
    "set_grad_enabled(False)": (lambda: weft.set_grad_enabled(False), False),
    "set_grad_enabled(mode=True)": (lambda: weft.set_grad_enabled(mode=True), True),
}


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("name", DECORATORS)
def test_decorated_functions_and_generators(name: str, outer: bool) -> None:
    make, inside = DECORATORS[name]
    with weft.set_grad_enabled(outer):

        @make()
        def function(n: int) -> Any:
            """A function."""
            return (W * n).requires_grad, function(n - 1) if n else None

        assert weft.is_grad_enabled() is outer

        @make()
        def steps(n: int) -> Generator[bool, str, str]:
            try:
                got = yield (W * n).requires_grad
            except KeyError:
                got = "caught" if weft.is_grad_enabled() is inside else "wrong"
            yield weft.is_grad_enabled()
            return got

        assert weft.is_grad_enabled() is outer and function.__doc__ == "A function."
        assert function(1) == (inside, (inside, None)) and weft.is_grad_enabled() is outer
        for send in (lambda g: g.send("sent"), lambda g: g.throw(KeyError("x"))):
            g = steps(2)
            assert next(g) is inside and weft.is_grad_enabled() is outer
            assert send(g) is inside and weft.is_grad_enabled() is outer
            with pytest.raises(StopIteration) as end:
                next(g)
            assert end.value.value == ("sent" if "sent" in send.__code__.co_consts else "caught")
        closed = steps(1)
        next(closed)
        closed.close()
        assert weft.is_grad_enabled() is outer


def test_methods_classes_and_errors() -> None:
    class Model:
        @weft.no_grad
        def run(self, x: weft.Tensor) -> weft.Tensor:
            return x * 2

        @staticmethod
        @weft.inference_mode()
        def other(x: weft.Tensor) -> weft.Tensor:
            raise ValueError("on purpose")

    assert not Model().run(W).requires_grad
    with pytest.raises(ValueError, match="on purpose"):
        Model.other(W)
    assert weft.is_grad_enabled()

    class Counts:
        def __init__(self) -> None:
            self.inside = weft.is_grad_enabled()

    with pytest.warns(FutureWarning, match="decorating a class"):
        made = weft.no_grad()(Counts)
    assert made().inside is False and weft.is_grad_enabled()


def test_set_grad_enabled_in_all_its_forms() -> None:
    weft.set_grad_enabled(False)
    assert not weft.is_grad_enabled()
    weft.set_grad_enabled(True)
    with weft.set_grad_enabled(False):
        assert not weft.is_grad_enabled()
        with weft.set_grad_enabled(True):
            assert weft.is_grad_enabled()
        assert not weft.is_grad_enabled()
    assert weft.is_grad_enabled()


def test_inference_mode_is_told() -> None:
    assert not weft.is_inference_mode_enabled()
    with weft.inference_mode():
        assert weft.is_inference_mode_enabled() and not weft.is_grad_enabled()
        with weft.inference_mode(False):
            assert weft.is_grad_enabled() and not weft.is_inference_mode_enabled()
        assert weft.is_inference_mode_enabled()
    assert weft.is_grad_enabled()


def test_autocast_decorates_functions_and_generators() -> None:
    cast = weft.autocast("cpu", dtype=weft.bfloat16)

    @cast
    def function(n: int) -> Any:
        return (weft.ones(2, 2) @ weft.ones(2, 2)).dtype, function(n - 1) if n else None

    @cast
    def steps() -> Generator[Any]:
        yield (weft.ones(2, 2) @ weft.ones(2, 2)).dtype
        yield weft.is_autocast_enabled("cpu")

    assert function(1) == (weft.bfloat16, (weft.bfloat16, None))
    g = steps()
    assert next(g) is weft.bfloat16 and not weft.is_autocast_enabled("cpu") and next(g) is True


def test_devices_decorate_too() -> None:
    @weft.device("dummy:0")
    def steps() -> Generator[Any]:
        yield weft.ones(2).device
        yield weft.ones(2).device

    g = steps()
    assert [next(g).type, weft.ones(1).device.type, next(g).type] == ["dummy", "cpu", "dummy"]


def test_a_mode_that_was_set_is_set_again_where_its_block_begins() -> None:
    off = weft.set_grad_enabled(False)
    weft.set_grad_enabled(True)
    with off:
        assert not weft.is_grad_enabled()
    assert weft.is_grad_enabled()


def test_composed_functions_are_run_where_sums_have_one_order() -> None:
    x = weft.ones(4, 4)
    for mode, inline in (("free", False), ("same", True)):
        with weft.numerics(mode):
            assert context().inline is inline
            weft.nn.functional.gelu(x).sum().item()
    assert not context().inline and not context().pinned
