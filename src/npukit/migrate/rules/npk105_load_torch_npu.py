"""Load torch_npu where `import torch` does not: once in a package's __init__.py, and in scripts.

The portable style asks whether torch has an `npu`, and a torch before 2.5 gets one only from `import torch_npu`.

    try:
        import torch_npu
    except ImportError:
        pass
"""

from __future__ import annotations

from npukit.migrate.rule import Rule

rule = Rule(
    "NPK105",
    "load-torch-npu",
    words=(),
    why="Before torch 2.5, `import torch` does not load torch_npu.",
    remedy="Import torch_npu once where the package begins.",
    fixes=True,
)
