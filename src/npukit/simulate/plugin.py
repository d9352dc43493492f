"""pytest --npu-sim[=N]: any project's tests on simulated NPUs. Without the option it does nothing."""

from __future__ import annotations

import pytest

OPTION = "--npu-sim"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("npukit").addoption(
        OPTION, nargs="?", const="1", metavar="N", help="run the tests on N simulated Ascend NPUs (default: 1)"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Activate before any conftest or test module can import torch."""
    known = early_config.known_args_namespace
    devices = known.npu_sim
    if devices is None:
        return
    if not devices.isdigit():
        if OPTION not in args:
            raise pytest.UsageError(f"{OPTION} takes a number of devices, not {devices!r}.")
        # What follows a bare --npu-sim is not its value but the first path to test.
        args[args.index(OPTION)] = f"{OPTION}=1"
        known.file_or_dir.insert(0, devices)
        devices = "1"

    from npukit.errors import NpukitError
    from npukit.simulate import activate

    try:
        activate(int(devices))
    except NpukitError as error:
        raise pytest.UsageError(str(error)) from error
