"""Functions and classes that cannot run without a library or kernels for CUDA stay, with a note; others do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.migrate.test_for_cuda_only import BODY, migrated

TE = "try:\n    import transformer_engine.pytorch as te\n    HAVE_TE = True\nexcept ImportError:\n    HAVE_TE = False\n"


@pytest.mark.parametrize(
    "text",
    [
        f"{TE}class Layer:\n  def __init__(self):\n    if not HAVE_TE:\n      raise ImportError('no TE')\n{BODY}",
        f"{TE}def train():\n    assert HAVE_TE\n{BODY}",
        f"{TE}def train():\n{BODY}    for _ in x:\n        with te.fp8_autocast():\n            x += 1\n"
        f"def main():\n{BODY}    train()\n",
        f"{TE}if HAVE_TE:\n  class Layer(te.Linear):\n{BODY}else:\n  Layer = None\n",
        "def copy():\n    try:\n        from nixl._api import agent\n    except ImportError as e:\n"
        f"        raise ImportError('install nixl') from e\n{BODY}",
        f"def attend(q):\n    import flash_attn\n{BODY}",
        "import importlib\ndef _optional():\n    try:\n"
        "        return importlib.import_module('nvidia_resiliency_ext.inprocess')\n"
        f"    except ImportError:\n        return None\ndef run(f):\n    module = _optional()\n    if module is None:\n"
        f"        return f\n{BODY}",
        "from torch.utils.cpp_extension import load_inline\ndef build():\n"
        "    return load_inline('a', cpp_sources=[''], with_cuda=True)\n"
        f"def pool(p):\n    if p is None:\n        return\n{BODY}    build()\n",
    ],
)
def test_what_cannot_run_without_it_stays_and_is_reported(tmp_path: Path, text: str) -> None:
    result = migrated(tmp_path, model=text)
    assert not result.changes
    assert any(finding.code == "NPK101" and finding.what.endswith("is for CUDA only") for finding in result.left)


@pytest.mark.parametrize(
    "text",
    [
        f"{TE}def train(fp8):\n    if fp8 and not HAVE_TE:\n        raise ImportError('no TE')\n{BODY}",
        f"{TE}def train(args):\n    if args.fp8:\n        with te.fp8_autocast():\n            run()\n{BODY}",
        f"{TE}def is_layer(x):\n{BODY}    return HAVE_TE and isinstance(x, te.Linear)\n",
        f"{TE}def f(x):\n    if not HAVE_TE:\n        return x\n    return te.f(x)\ndef main():\n    f(1)\n{BODY}",
        "try:\n    from flash_attn import attend\nexcept ImportError:\n    from ours import attend\n"
        f"def run():\n{BODY}    attend(x)\n",
        f"def fp8_context():\n    ...\ndef train():\n    with fp8_context():\n        pass\n{BODY}",
        f"def get_layers():\n    from core.transformer_engine import TELinear\n{BODY}",
    ],
)
def test_what_can_do_without_it_is_migrated(tmp_path: Path, text: str) -> None:
    (change,) = migrated(tmp_path, model=text).changes
    assert "device=torch.accelerator.current_accelerator()" in change.after and "device='cuda'" not in change.after


def test_what_stays_keeps_its_import_and_what_goes_gets_the_full_name(tmp_path: Path) -> None:
    method = "    @custom_fwd\n    def forward(ctx, x): ...\n"
    text = f"from torch.cuda.amp import custom_fwd\nclass F:\n{method}class cast_fp8:\n{method}"
    (change,) = migrated(tmp_path, model=text).changes
    assert "from torch.cuda.amp import custom_fwd\n" in change.after
    assert f"class cast_fp8:\n{method}" in change.after and "@torch.amp.custom_fwd(device_type=" in change.after
