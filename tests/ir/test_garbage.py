"""Python's collector runs less often, where the program has not said how often."""

from __future__ import annotations

import subprocess
import sys

import pytest

from weft.ir.garbage import NEW_OBJECTS

CODE = "import gc; first = gc.get_threshold(); {before}; import weft; print(gc.get_threshold() {after}, gc.isenabled())"


def printed(before: str, after: str) -> str:
    code = CODE.format(before=before, after=after)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_default_is_raised() -> None:
    assert printed("pass", f"== ({NEW_OBJECTS}, *first[1:])") == "True True\n"


@pytest.mark.parametrize("own", ["500, 5, 5", "0", "50_000"])
def test_what_a_program_has_said_stays(own: str) -> None:
    assert printed(f"gc.set_threshold({own})", f"[0] == {own.split(',')[0]}") == "True True\n"


def test_a_collector_that_rests_stays_so() -> None:
    assert printed("gc.disable()", "== first") == "True False\n"


def test_what_is_said_later_holds() -> None:
    assert printed("import weft; gc.set_threshold(700)", "[0] == 700") == "True True\n"
