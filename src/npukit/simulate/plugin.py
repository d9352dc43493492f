"""pytest --npu-sim[=N] [--npu-sim-torch-npu VERSION]: run any project's tests on simulated NPUs."""

from __future__ import annotations

import os
import re
import sys

import pytest

OPTION = "--npu-sim"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("npukit")
    group.addoption(
        OPTION, nargs="?", const="1", metavar="N", help="run the tests on N simulated Ascend NPUs (default: 1)"
    )
    group.addoption(
        f"{OPTION}-torch-npu",
        metavar="VERSION",
        help="with this torch_npu and the torch it needs, in an environment of their own",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Activate the simulated NPUs before any conftest or test module can import torch."""
    known = early_config.known_args_namespace
    devices = known.npu_sim
    if devices is None:
        if known.npu_sim_torch_npu:
            raise pytest.UsageError(f"{OPTION}-torch-npu is for simulated NPUs: add {OPTION}.")
        return
    if not devices.isdigit():
        if OPTION not in args:
            raise pytest.UsageError(f"{OPTION} takes a number of devices, not {devices!r}.")
        # The argument after a bare --npu-sim is not its value but the first path to test.
        args[args.index(OPTION)] = f"{OPTION}=1"
        known.file_or_dir.insert(0, devices)
        devices = "1"

    from npukit.errors import NpukitError

    try:
        _give_npus(int(devices), early_config)
    except NpukitError as error:
        raise pytest.UsageError(str(error)) from error


def _give_npus(devices: int, config: pytest.Config) -> None:
    """Give this process simulated NPUs, or restart pytest with them if another plugin has already imported torch."""
    from npukit.simulate import activate, environment, other_torch

    version, arguments = config.known_args_namespace.npu_sim_torch_npu, config.invocation_params.args
    is_late = "torch" in sys.modules
    starts_again = is_late and os.environ.get("NPUKIT_SIM_DEVICES") != str(devices)
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture and (version or starts_again):
        # pytest already captures output, so the restarted process would write to nowhere.
        capture.suspend_global_capture(in_=True)
    if version:
        other_torch.switch_to(version, "pytest", arguments)
    if starts_again:
        os.execve(sys.executable, [sys.executable, "-m", "pytest", *arguments], environment(devices))
    if not is_late:
        activate(devices)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Explain what to do about tests that asked for CUDA, which no torch for NPUs has."""
    if terminalreporter.config.getoption("npu_sim") is None:
        return
    from npukit.facts.errors import known_errors
    from npukit.report.report import counted

    error = known_errors()["no-cuda"]
    failed = [report for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, [])]
    asking = sum(bool(re.search(error.pattern, report.longreprtext)) for report in failed)
    if asking:
        terminalreporter.section("npukit")
        terminalreporter.write_line(
            f"{counted(asking, 'failure')} because the tests need CUDA, which a torch for NPUs does not have. "
            "Rewrite the code with `npukit migrate`, "
            "or run the tests unchanged: npukit run --auto --device sim -m pytest"
        )
