"""Tests that run on simulated NPUs in their own process: `pytest --npu-sim tests/on_npu`.

Without the option they are left alone; tests/simulated/test_on_npu.py runs them, all in one process.
"""

from __future__ import annotations

from pathlib import Path

import pytest

NEED_TORCH = {
    "test_engine.py": "2.6",  # for transformers 5
    "test_images.py": "2.6",
    "test_grpo.py": "2.6",
    "test_quantized_checkpoints.py": "2.6",
    "test_transformers.py": "2.6",
    "test_plan.py": "2.4",  # for its table of operators with their work
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("npu_sim") is None:
        return True
    import torch

    return True if torch.__version__ < NEED_TORCH.get(collection_path.name, "2") else None


def since(version: str, why: str) -> pytest.MarkDecorator:
    """For what older versions of torch_npu do not have, or have wrong."""
    import torch

    return pytest.mark.skipif(torch.__version__ < version, reason=f"before torch_npu {version}, {why}")


def not_with(minor: str, why: str) -> pytest.MarkDecorator:
    """For what this version of torch_npu alone does not have."""
    import torch

    return pytest.mark.skipif(torch.__version__.startswith(f"{minor}."), reason=f"with torch_npu {minor}, {why}")
