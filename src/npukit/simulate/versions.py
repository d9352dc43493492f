"""The versions of torch and torch_npu that the simulated NPU was tested with, and what it uses of a torch_npu wheel."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import replace

from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.facts.compatibility import newest_cann, pythons_by_torch
from npukit.facts.target import Target
from npukit.facts.versions import key

TESTED = (
    *("2.14.0", "2.13.0", "2.12.0", "2.11.0", "2.10.0", "2.9.1"),
    *("2.9.0", "2.8.0", "2.7.1", "2.6.0", "2.5.1", "2.4.0", "2.1.0"),
)
"""Releases of torch, each with the newest torch_npu for it. A new one: run `python -m benchmarks torch_versions`."""

OLD_HEADERS = frozenset({"2.9.1", "2.8.0", "2.6.0", "2.5.1", "2.4.0", "2.1.0"})
NEWER_HEADERS, NEWER_HEADERS_PYTHON = "2.9.0", "3.11"
"""The wheels for these have headers of a CANN that lacks what the runtime answers; it is compiled with newer ones."""

NUMPY_2_SINCE = "2.5"
"""Wheels of torch and torch_npu before this one were made with numpy 1 and do not load with numpy 2."""

HEADERS = ("include", "include/third_party/acl/inc", "include/third_party/hccl/inc")
"""Where a torch_npu wheel keeps the headers of torch_npu, CANN and HCCL, below its package."""


def release(torch_version: str) -> str:
    """The torch version without its build suffix.

    >>> release("2.13.0+cpu")
    '2.13.0'
    """
    return torch_version.partition("+")[0]


def headers(torch_version: str) -> str:
    """The torch whose torch_npu contains the CANN headers for compiling the runtime."""
    return NEWER_HEADERS if release(torch_version) in OLD_HEADERS else torch_version


def requirement(torch_version: str) -> str:
    """The torch_npu requirement for a torch: the newest post-release of the same version.

    >>> requirement("2.13.0+cpu")
    'torch_npu==2.13.0.*'
    """
    return f"torch_npu=={release(torch_version)}.*"


def target(torch_version: str, card: str = DEFAULT_CARD) -> Target:
    """The target that the simulated NPU stands for. If no CANN is known for this torch yet, the newest one.

    >>> target("2.6.0+cpu").cann
    '8.5.0'
    """
    target = Target.of(torch=release(torch_version), card=card)
    return target if target.cann else replace(target, cann=newest_cann())


def installed() -> str:
    """The torch release installed for this Python; "" if there is none."""
    try:
        return release(importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        return ""


def supported(torch_npu: str) -> str:
    """The torch release for a requested torch_npu. A minor version alone means its newest release.

    >>> supported("2.7")
    '2.7.1'
    """
    for version in TESTED:
        if torch_npu in (version, version.rpartition(".")[0]):
            return version
    raise NpukitError(
        f"The simulated NPU was not tested with torch_npu {torch_npu}: choose one of {', '.join(TESTED)}; "
        "npukit uses the newest post-release of each."
    )


def numpy(torch_version: str) -> str:
    """The numpy requirement for a torch.

    >>> numpy("2.1.0")
    'numpy<2'
    """
    return "numpy<2" if key(torch_version) < key(NUMPY_2_SINCE) else "numpy"


def pythons(torch_version: str) -> list[str]:
    """The Python versions for which this torch has a torch_npu, as far as known."""
    return pythons_by_torch().get(release(torch_version), [])


def advised(python: tuple[int, int] = sys.version_info[:2]) -> str:
    """The torch that npukit's documentation and images use: the newest tested one with known facts.

    For a Python that has no torch_npu for it, an older one.

    >>> advised((3, 11))
    '2.13.0'
    """
    newest = key(Target.of().torch)
    known = [version for version in TESTED if key(version)[: len(newest)] <= newest]
    major, minor = python
    return next((version for version in known if f"{major}.{minor}" in pythons(version)), known[0])


def check(torch_version: str) -> None:
    """Refuse a torch that the simulated NPU was not tested with, because it would not compile or would break in use."""
    if release(torch_version) not in TESTED:
        raise NpukitError(
            f"The simulated NPU was tested with torch {' and '.join(TESTED)}, and this is {torch_version}: "
            f"run `{sys.executable} -m pip install torch=={advised()}`, preferably in an environment of its own."
        )
