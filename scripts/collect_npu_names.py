"""Write which names the real torch_npu has beside those of torch.cuda, for facts/torch_npu_names.json.

npukit run --device sim scripts/collect_npu_names.py src/npukit/facts/torch_npu_names.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import torch
import torch_npu


def public_names(module: ModuleType) -> list[str]:
    found = (name for name in dir(module) if not name.startswith("_"))
    return sorted(name for name in found if not _is_foreign_module(getattr(module, name)))


def _is_foreign_module(value: object) -> bool:
    return isinstance(value, ModuleType) and not value.__name__.startswith("torch")


def main(output: Path) -> None:
    names = {
        "torch_npu": torch_npu.__version__.split("+")[0],
        "npu": public_names(torch_npu.npu),
        "accelerator": public_names(torch.accelerator),
        "cpu": public_names(torch.cpu),
    }
    output.write_text(json.dumps(names, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
