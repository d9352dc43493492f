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
OLDEST_TORCH_NPU = "2.1"  # the oldest on PyPI for cards and CANN releases that are still served


class Style(str, Enum):
    """How migrated code names the device."""

    portable = "portable"  # the same file runs on CUDA, NPU and CPU
    npu = "npu"  # torch_npu, .npu(), hccl


@dataclass(frozen=True)
class Goal:
    """What migrated code is written for: the target, the versions of torch, and the style."""

    style: Style = Style.portable
    target: Target = field(default_factory=Target.of)
    oldest_torch: str = ""  # the oldest that the project allows, if older than the target's
    newest_torch: str = ""  # likewise
    patched: frozenset[str] = frozenset()  # functions of torch.cuda that the project's tests replace
    distributed: bool = False  # whether scripts for one card become scripts for several

    @cached_property
    def torch(self) -> str:
        """The oldest torch that migrated code must support, in the portable style on CUDA as well."""
        return (self.oldest_torch if self.portable else "") or self.torch_on_npus

    @property
    def torch_on_npus(self) -> str:
        """The newest torch that may be used on NPUs."""
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
        """Whether `import torch` also loads an installed torch_npu, with the torch that is used on NPUs.

        If no torch_npu exists for the project's torch, the target's torch decides.
        """
        torch = self.torch_on_npus
        there_is_one = key(torch) >= key(OLDEST_TORCH_NPU) and any(
            release.torch.split(".")[:2] == torch.split(".")[:2] for release in releases()
        )
        return key(torch if there_is_one else self.target.torch) >= key(_AUTOLOAD_SINCE)

    def for_project(self, root: Path) -> Goal:
        """Return the goal for a project whose requirements may allow or demand an older torch."""
        oldest, newest = (release if key(release) < key(self.target.torch) else "" for release in allowed_torch(root))
        return replace(self, oldest_torch=oldest, newest_torch=newest)

    @property
    def portable(self) -> bool:
        return self.style is Style.portable
