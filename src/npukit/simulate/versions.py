"""The versions of torch and torch_npu that the simulated NPU was tested with, and what it uses of a torch_npu wheel."""

from __future__ import annotations

import sys

from npukit.errors import NpukitError
from npukit.facts.compatibility import pythons_by_torch

TESTED = ("2.13.0", "2.9.0")
"""Releases of torch, newest first, each with the newest torch_npu for it. A new one: run the tests with it, add it."""

HEADERS = ("include", "include/third_party/acl/inc", "include/third_party/hccl/inc")
"""Where a torch_npu wheel keeps the headers of torch_npu, CANN and HCCL, below its package."""


def release(torch_version: str) -> str:
    """A version of torch without what says how it was built.

    >>> release("2.13.0+cpu")
    '2.13.0'
    """
    return torch_version.partition("+")[0]


def requirement(torch_version: str) -> str:
    """The torch_npu that pip is to install for a torch: the newest post-release of the same version.

    >>> requirement("2.13.0+cpu")
    'torch_npu==2.13.0.*'
    """
    return f"torch_npu=={release(torch_version)}.*"


def pythons(torch_version: str) -> list[str]:
    """The Pythons that there is a torch_npu for this torch for, as far as is known."""
    return pythons_by_torch().get(release(torch_version), [])


def advised() -> str:
    """The newest tested torch that this Python can have with torch_npu."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return next((version for version in TESTED if python in pythons(version)), TESTED[0])


def check(torch_version: str) -> None:
    """Refuse a torch that the simulated NPU was not tested with: it would not compile, or break in use."""
    if release(torch_version) not in TESTED:
        raise NpukitError(
            f"The simulated NPU was tested with torch {' and '.join(TESTED)}, and this is {torch_version}: "
            f"run `{sys.executable} -m pip install torch=={advised()}`, best in an environment of its own."
        )
