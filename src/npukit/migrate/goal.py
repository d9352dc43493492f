"""What migrated code is to run on, and in which style it is written."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path

from npukit.facts.compatibility import releases
from npukit.facts.target import Target
from npukit.facts.versions import key
from npukit.migrate.requirements import allowed_torch

_DEVICE_NAMES_SINCE = "2.7"  # torch.get_device_module and get_default_backend_for_device for every device
_AUTOCAST_NAMES_DEVICES_SINCE = "2.4"  # torch.amp.custom_fwd, torch.is_autocast_enabled("npu")
_AUTOLOAD_SINCE = "2.5"
OLDEST_TORCH_NPU = "2.1"  # on PyPI; those before are for cards and CANN releases that are no longer served


class Style(str, Enum):
    """How migrated code names the device."""

    portable = "portable"  # the same file runs on CUDA, NPU and CPU
    npu = "npu"  # torch_npu, .npu(), hccl


@dataclass(frozen=True)
class Goal:
    """The target that rules judge by and write for, and how they write."""

    style: Style = Style.portable
    target: Target = field(default_factory=Target.of)
    oldest_torch: str = ""  # that the project allows, where that is older than the target's
    newest_torch: str = ""  # likewise
    patched: frozenset[str] = frozenset()  # functions of torch.cuda that the project's tests replace
    distributed: bool = False  # whether scripts for one card become scripts for several

    @cached_property
    def torch(self) -> str:
        """The oldest torch that migrated code must run with: in the portable style on CUDA as well."""
        return (self.oldest_torch if self.portable else "") or self.torch_on_npus

    @property
    def torch_on_npus(self) -> str:
        """The newest torch that may be chosen on NPUs."""
        return self.newest_torch or self.target.torch

    @cached_property
    def names_devices(self) -> bool:
        """Whether torch's functions take any device by name: GradScaler, get_device_module, the default backend."""
        return key(self.torch) >= key(_DEVICE_NAMES_SINCE)

    @cached_property
    def autocast_names_devices(self) -> bool:
        """Whether the functions of autocast take any device by name."""
        return key(self.torch) >= key(_AUTOCAST_NAMES_DEVICES_SINCE)

    @cached_property
    def loads_torch_npu(self) -> bool:
        """Whether `import torch` loads an installed torch_npu, too, with the torch that runs on NPUs.

        That is the target's where the project is held to one that has no torch_npu.
        """
        torch = self.torch_on_npus
        there_is_one = key(torch) >= key(OLDEST_TORCH_NPU) and any(
            release.torch.split(".")[:2] == torch.split(".")[:2] for release in releases()
        )
        return key(torch if there_is_one else self.target.torch) >= key(_AUTOLOAD_SINCE)

    def for_project(self, root: Path) -> Goal:
        """The goal for a project, whose requirements may allow or want an older torch."""
        oldest, newest = (release if key(release) < key(self.target.torch) else "" for release in allowed_torch(root))
        return replace(self, oldest_torch=oldest, newest_torch=newest)

    @property
    def portable(self) -> bool:
        return self.style is Style.portable
