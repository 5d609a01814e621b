"""Modules that are edited after a session was recorded: the function is recorded again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.core.execute import edits
from weft.errors import DeviceError, DTypeError
from weft.sessions.modules import Modules
from weft.sessions.session import session

rng = np.random.default_rng(3)


def floats(*shape: int) -> weft.Tensor:
    return weft.tensor(rng.standard_normal(shape).astype(np.float32))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0
        self.first, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.rest = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.shifts = nn.ParameterList([nn.Parameter(weft.ones(4))])

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        x = self.norm(self.first(x)) * self.scale
        for layer in self.rest:
            x = layer(x)
        return x + self.shifts[0]


def put(m: Any, path: str, make: Callable[[], Any]) -> None:
    owner, _, name = path.rpartition(".")
    setattr(m.get_submodule(owner), name, make())


def of_other_shapes(m: Any) -> None:
    a, b = m.rest
    a.weight.data, a.bias.data, b.weight.data = floats(2, 4), floats(2), floats(4, 2)


EDITS: dict[str, Callable[[Net], object]] = {
    "parameter": lambda m: put(m, "first.weight", lambda: nn.Parameter(floats(4, 4))),
    "no parameter": lambda m: put(m, "first.bias", lambda: None),
    "module": lambda m: put(m, "first", lambda: nn.Linear(4, 4)),
    "in a list": lambda m: m.rest.__setitem__(1, nn.Linear(4, 4)),
    "appended": lambda m: m.rest.append(nn.Linear(4, 4)),
    "deleted": lambda m: m.rest.__delitem__(1),
    "in a list of parameters": lambda m: m.shifts.__setitem__(0, nn.Parameter(floats(4))),
    "through the dict": lambda m: m.first._parameters.update(weight=nn.Parameter(floats(4, 4))),
    "attribute": lambda m: put(m, "scale", lambda: 2.0),
    "state dict, assigned": lambda m: m.load_state_dict(Net().state_dict(), assign=True),
    "hook": lambda m: m.first.register_forward_hook(lambda module, args, out: out * 2),
    "forward": lambda m: put(m, "first.forward", lambda: weft.zeros_like),
    "other shapes": of_other_shapes,
    "values": lambda m: m.load_state_dict(Net().state_dict()),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_is_edited_is_seen(name: str) -> None:
    m, x = Net().eval(), floats(3, 4)
    s = session(m)
    s(x)
    EDITS[name](m)
    for _ in range(2):
        assert np.array_equal(s(x).numpy(), session(m)(x).numpy())
    assert len(s._forms) == 1


def test_a_hook_of_all_modules_is_seen() -> None:
    m, x = Net().eval(), floats(3, 4)
    s = session(m)
    before = s(x).numpy().copy()
    with nn.modules.module.register_module_forward_hook(lambda module, args, out: out * 2):
        assert not np.array_equal(s(x).numpy(), before)
    assert np.array_equal(s(x).numpy(), before)


def test_parameters_of_another_dtype_or_device_are_refused_as_the_function_refuses_them() -> None:
    for change, error in (("half", DTypeError), ("to", DeviceError)):
        m, x = Net().eval(), floats(3, 4)
        s = session(m)
        s(x)
        m.half() if change == "half" else m.to("dummy")
        for _ in range(2):
            with pytest.raises(error):
                s(x)


def test_modules_that_others_edit_are_looked_at_once() -> None:
    m, other = Net(), Net()
    modules = Modules((m,))
    seen = edits.modules.latest()
    assert modules.are_as_they_were()
    other.scale = 3.0
    assert edits.modules.latest() != seen and modules.are_as_they_were()
    assert modules._edit == edits.modules.latest()
    m.scale = float("nan")
    assert not modules.are_as_they_were()
    m.scale = 1.0
    assert modules.are_as_they_were()


def test_a_method_of_a_module_is_of_the_module() -> None:
    class Two(Net):
        def half_of_it(self, x: weft.Tensor) -> weft.Tensor:
            return x @ self.first.weight

    m, x = Two(), floats(3, 4)
    s = session(m.half_of_it)
    s(x)
    m.first = nn.Linear(4, 4)
    assert np.array_equal(s(x).numpy(), session(m.half_of_it)(x).numpy())
