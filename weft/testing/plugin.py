"""The pytest plugin behind `pytest --pyargs weft.testing.conformance --device NAME`.

It is loaded in every run of pytest where weft is installed, and does nothing unless the suite is among the arguments:
its options belong to the suite alone.
"""
# Tests: tests/testing/test_conformance.py

from __future__ import annotations

import pytest

SUITE = "conformance"


def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Add the suite's options where the suite is asked for."""
    if any(f"weft.testing.{SUITE}" in a or f"testing/{SUITE}" in a for a in args):
        add_options(parser)


def add_options(parser: pytest.Parser) -> None:
    """The command-line options of the suite."""
    group = parser.getgroup("weft", "weft's conformance suite for backends")
    group.addoption(
        "--device",
        action="append",
        dest="weft_devices",
        metavar="NAME",
        help="a device to test, such as cpu or dummy:1; may be given several times (default: the default device)",
    )
    group.addoption(
        "--examples",
        type=int,
        dest="weft_examples",
        metavar="N",
        help="how many random programs and schedules of each kind, other ones in each run "
        "(default: a few, the same in each run)",
    )
