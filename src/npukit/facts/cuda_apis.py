"""Names in torch's CUDA API that have no counterpart, or a different one, on an NPU."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from npukit.facts.data import load_rows, longest_entry
from npukit.facts.target import Target
from npukit.facts.torch_npu.names import names_of


@dataclass(frozen=True)
class CudaApi:
    """A name in the CUDA API. The comments at the head of cuda_apis.yaml explain the fields."""

    name: str
    kind: Literal["none", "differs", "ignored"]
    why: str
    remedy: str
    needs: tuple[str, ...] = ()  # names of torch.npu that the remedy uses and some versions lack
    otherwise: str = ""  # the remedy for those versions
    is_none: bool = False

    def remedy_for(self, target: Target) -> str:
        """What to do with the target's torch_npu."""
        return self.remedy if names_of("npu", target.torch_npu).issuperset(self.needs) else self.otherwise


@functools.cache
def _by_name() -> dict[str, CudaApi]:
    return {api.name: api for api in load_rows("cuda_apis.yaml", CudaApi)}


def cuda_apis() -> list[CudaApi]:
    """All known names, in the order of the data."""
    return list(_by_name().values())


@functools.cache
def last_names() -> frozenset[str]:
    """The last parts of all known names."""
    return frozenset(name.rpartition(".")[2] for name in _by_name())


def cuda_api(name: str) -> CudaApi | None:
    """What is known about a dotted name: the entry with the longest matching prefix.

    >>> cuda_api("torch.cuda.nvtx.range_push").name
    'torch.cuda.nvtx'
    """
    return longest_entry(_by_name(), name, least=2)
