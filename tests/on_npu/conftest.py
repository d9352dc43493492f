"""Tests that run on simulated NPUs in their own process: `pytest --npu-sim tests/on_npu`.

Without the option they are left alone; tests/simulated/test_on_npu.py runs them, all in one process.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("npu_sim") is None else None
