"""The suite's devices, and how far it looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from weft import settings as weft_settings
from weft.backends.protocol import Device
from weft.backends.registry import canonical, open_device
from weft.errors import DeviceError
from weft.testing.conformance.harness import Harness

_CHECKS = (
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.too_slow,
    HealthCheck.large_base_example,
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test runs on every device asked for."""
    if "device_name" in metafunc.fixturenames:
        names: list[str] = metafunc.config.getoption("weft_devices", None) or [weft_settings.device()]
        metafunc.parametrize("device_name", [canonical(n) for n in names], scope="session")


@pytest.fixture(scope="session", autouse=True)
def checked_and_fresh() -> Iterator[None]:
    """All forms are verified, and no program comes from a cache that an earlier state of the backend has left."""
    with TemporaryDirectory(prefix="weft-conformance-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_VERIFY", "1")
        patch.setenv("WEFT_CACHE_DIR", folder)
        yield


@pytest.fixture(scope="session")
def device(device_name: str) -> Device:
    """The device under test."""
    try:
        return open_device(device_name)
    except DeviceError as error:
        pytest.fail(f"{device_name} is not available: {error.message}", pytrace=False)


@pytest.fixture(scope="session")
def harness(device: Device) -> Harness:
    """Compiles programs for the device and runs them on arrays."""
    return Harness(device)


@pytest.fixture(scope="session")
def examples(request: pytest.FixtureRequest) -> Callable[[int], Any]:
    """`examples(n)`: Hypothesis settings for `n` examples in a quick run, else for as many as `--examples` says."""
    wanted: int | None = request.config.getoption("weft_examples", None)

    def chosen(n: int) -> settings:
        return settings(
            max_examples=wanted or n,
            derandomize=wanted is None,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink) if wanted else (Phase.generate,),
            suppress_health_check=_CHECKS,
            print_blob=True,
        )

    return chosen
