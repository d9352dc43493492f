"""Which versions of torch_npu, torch, CANN and Python belong together."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npukit.facts.versions import key


@dataclass(frozen=True)
class Release:
    """A published torch_npu, with the torch and the CANN it was released for."""

    torch_npu: str
    torch: str
    cann: str


@functools.cache
def _data() -> dict[str, Any]:
    text = Path(__file__).with_name("compatibility.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def releases() -> list[Release]:
    """All known releases, newest first."""
    return [Release(**row) for row in _data()["rows"]]


def newest_cann() -> str:
    """The newest CANN that a torch_npu was released for, which is the version that the simulated NPU reports.

    >>> newest_cann()
    '9.1.0'
    """
    return releases()[0].cann


def aborts_beside_cuda(torch_npu: str) -> bool:
    """Whether this torch_npu aborts when it is imported next to a CUDA build of torch.

    >>> aborts_beside_cuda("2.12.0")
    True
    """
    return key(torch_npu) >= key(str(_data()["aborts_beside_cuda_since"]))


def cann_image() -> str:
    """A published container image that contains CANN."""
    return str(_data()["image"])


def pythons_by_torch() -> dict[str, list[str]]:
    """The torch versions that have a torch_npu, newest first, with the Python versions it is built for."""
    pythons: dict[str, list[str]] = _data()["python"]
    return pythons
