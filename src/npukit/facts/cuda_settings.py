"""Settings of libraries that request CUDA-only features, and what to set for NPUs."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from npukit.facts.data import load_rows


@dataclass(frozen=True)
class CudaSetting:
    """A setting. The comments at the head of cuda_settings.yaml explain the fields."""

    name: str
    values: str
    what: str
    why: str
    remedy: str
    calls: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    computed: bool = False
    data_only: bool = False
    note: str = ""

    def requests_cuda(self, value: str) -> bool:
        """Whether this value of the setting requests CUDA."""
        return bool(re.fullmatch(self.values, value, re.IGNORECASE))

    def is_for(self, imported: Iterable[str]) -> bool:
        """Whether a file that imports these modules may use this setting."""
        names = [f"{name}." for name in imported]
        return not self.imports or any(name.startswith(f"{module}.") for name in names for module in self.imports)

    def is_note(self, value: str) -> bool:
        """Whether the value deserves only a note."""
        return bool(self.note and re.fullmatch(self.note, value, re.IGNORECASE))


@functools.cache
def cuda_settings() -> dict[str, CudaSetting]:
    """Every known setting, by name.

    >>> cuda_settings()["tf32"].requests_cuda("True")
    True
    """
    return {setting.name: setting for setting in load_rows("cuda_settings.yaml", CudaSetting)}
