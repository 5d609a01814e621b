"""Namespaces offer the names of the table, each imported when it is first asked for."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import weft
from weft.surface.namespaces import offer
from weft.surface.table import rows


def ran(code: str) -> str:
    """What a fresh interpreter says."""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    return run.stdout + run.stderr


@pytest.mark.parametrize("module", [weft, weft.nn, weft.nn.functional, weft.optim, weft.linalg, weft.special])
def test_all_and_dir_have_the_names_of_the_table(module: object) -> None:
    space = vars(module)
    place = space["__name__"].removeprefix("weft.")
    listed = {name for name, row in rows(place).items() if row.listed}
    assert space["__all__"] == sorted(listed)
    assert listed <= set(dir(module)) and not any("*" in name for name in dir(module))


def test_a_module_is_imported_when_a_name_of_it_is_asked_for() -> None:
    code = (
        "import sys, weft; before = 'weft.nn.recurrent' in sys.modules, 'weft.core.functions.sorting' in sys.modules\n"
        "weft.nn.LSTM, weft.sort; print(before, {'weft.nn.recurrent', 'weft.core.functions.sorting'} <= {*sys.modules})"
    )
    assert ran(code) == "(False, False) True\n"


def test_a_training_step_leaves_out_layers_and_functions_that_it_does_not_use() -> None:
    code = """
import sys, weft
from weft import nn, optim
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
step = optim.SGD(model.parameters(), lr=0.1)
nn.functional.cross_entropy(model(weft.randn(5, 3)), weft.tensor([0, 1, 0, 1, 0])).backward()
step.step()
unused = ("nn.recurrent", "nn.transformer", "core.functional.attention", "core.linear_algebra", "optim.lbfgs")
print([m for m in unused if f"weft.{m}" in sys.modules])
"""
    assert ran(code) == "[]\n"


def test_a_name_is_one_object_wherever_it_is_offered() -> None:
    assert weft.conv2d is weft.nn.functional.conv2d and weft.relu is weft.nn.functional.relu
    assert weft.sort is weft.sort and weft.acos_ is weft.Tensor.acos_


@pytest.mark.parametrize(
    "function",
    [weft.sort, weft.nn.functional.gelu, weft.nn.functional.silu, weft.linalg.det, weft.special.entr],
)
def test_functions_are_pickled_by_the_names_that_users_know(function: object) -> None:
    assert pickle.loads(pickle.dumps(function)) is function


def test_a_missing_name_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(AttributeError, match=r"^module 'weft.nn' has no attribute 'Liner'$"):
        weft.nn.Liner
    assert "Did you mean: 'Linear'?" in ran("import weft\nweft.nn.Liner")


def test_modules_of_a_package_are_found_by_their_names() -> None:
    assert ran("import weft; print(weft.nn.recurrent.__name__, weft.random.seed is not None)") == (
        "weft.nn.recurrent True\n"
    )


def test_a_beginning_stands_for_all_names_that_the_module_has() -> None:
    weft._foreach_neg([weft.ones(1)])
    with pytest.raises(AttributeError, match="_foreach_nothing"):
        weft._foreach_nothing


def test_a_namespace_keeps_what_was_found() -> None:
    space: dict[str, object] = {"__name__": "weft.special"}
    offer(space, "special")
    find = space["__getattr__"]
    assert callable(find) and find("entr") is find("entr") is space["entr"]
