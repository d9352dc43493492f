"""What the portable style writes, as it stands in migrated files, on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from npukit.migrate.migration import migrate

PROGRAM = """import torch

def draw(seed):
    torch.manual_seed(0)
    torch.cuda.manual_seed(seed)
    return torch.rand(1).item(), torch.rand(1, device="cuda").item()

half = torch.ones(2).cuda().half()
is_half = half.type() == "torch.cuda.HalfTensor"
is_known = isinstance(torch.ones(1).cuda(), (torch.FloatTensor, torch.cuda.FloatTensor))
capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
"""


def test_a_migrated_file_means_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(PROGRAM)
    names: dict[str, Any] = {}
    exec(migrate(tmp_path).changes[0].after, names)
    assert (names["half"].device.type, names["half"].dtype) == ("npu", torch.float16)
    assert names["is_half"] and names["is_known"] and names["capability"] is None
    (host, device), (again, other) = names["draw"](1), names["draw"](2)
    assert host == again and device != other
