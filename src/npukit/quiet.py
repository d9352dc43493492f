"""What the libraries below say that is of no use to anybody: kept from the user. All else they say is let through.

Every process that npukit starts calls `install`, before it imports torch; so does a simulated NPU.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from typing import Any, Literal

WARNINGS = (
    # On CPUs without bf16 or fp16 instructions, with all of its C++ frames.
    r"mkldnn_matmul failed, switching to BLAS gemm",
    # torch_npu about its own files, wherever somebody else installed it.
    r"Warning: The .* owner does not match the current user",
    # torch 2.11's profiler, of what `npukit profile` relies on.
    r"Warning: Profiler clears events at the end of each cycle",
)
"""Python's warnings, by how they begin; regular expressions."""

OWN_WARNINGS = (
    # torch about DeepSpeed's process group, in which every rank has one device.
    r"barrier\(\): using the device under current context",
)
"""The same, where npukit is what runs: in a script of the user's they may be about that script."""

ONCE = (
    # More data workers than cores: torch says it from two of its lines, for every loader.
    r"This DataLoader will create \d+ worker processes",
)
"""Warnings that concern the user, but need to be said only once."""

LOGGERS = {
    # A model's class decides about its loss; that the configuration is silent about it is the usual case.
    "transformers.modeling_utils": ("`loss_type=None` was set in the config",),
    # DeepSpeed is imported by other libraries to see whether it is there.
    "DeepSpeed": ("Setting accelerator to CPU",),
    # About a client's mistake, and about answers that were cut off: the client is told, and nobody else can mend it.
    "uvicorn.error": ("Invalid HTTP request received", "Cancel "),
    "torch.distributed.elastic.multiprocessing.redirects": ("NOTE: Redirects are currently not supported",),
}
"""Messages of these loggers, by how they begin."""

NATIVE = [
    "require processing for 32 padding size, with memory allocation",
    "tensor will be created with base format",  # the words before are spelt differently from version to version
    # torch_npu's allocator, before it raises an exception with the same text.
    "NPU out of memory. Tried to allocate",
    # torch_npu's profiler, of operators' attributes, which nobody asked for.
    "FMW or CANN do not support feature",
]
"""Parts of what C++ code says: as a Python warning, or on stderr, where only the simulated NPU can hold it back."""

OWN_NATIVE = (
    # torch_npu about DeepSpeed's flat gradients and its sums in float64.
    "npu::npu_format_cast: an autograd kernel was not registered",
    "Device do not support double dtype now",
)
"""The same, where npukit is what runs; `install` adds them to NATIVE."""


VERBOSITY = "NPUKIT_VERBOSITY"  # what `npukit -q` and `npukit -v` hand on to the processes that they start
Verbosity = Literal["quiet", "normal", "verbose"]


def verbosity() -> Verbosity:
    """How much the user wants to see."""
    wanted = os.environ.get(VERBOSITY)
    return "quiet" if wanted == "quiet" else "verbose" if wanted == "verbose" else "normal"


def install(own: bool = False) -> None:
    """Keep this noise from the user, in this process; `own` if npukit is what runs in it, not a script of the user's.

    What a library says about its deprecated functions is for whoever calls them: in a script that is the user.

    >>> install()
    """
    if verbosity() == "verbose":
        return
    if own:
        _hide_deprecations()
        NATIVE.extend(name for name in OWN_NATIVE if name not in NATIVE)
    for pattern in (*WARNINGS, *(OWN_WARNINGS if own else ()), *(f".*{re.escape(part)}" for part in NATIVE)):
        warnings.filterwarnings("ignore", pattern)
    for pattern in ONCE:
        warnings.filterwarnings("once", pattern)
    for name, beginnings in LOGGERS.items():
        logging.getLogger(name).addFilter(_Without(beginnings))


def _hide_deprecations() -> None:
    """At the last place that every warning passes: torch_npu sets filters and a `showwarning` of its own."""
    module: Any = warnings
    show = module._showwarnmsg_impl

    def show_others(message: warnings.WarningMessage) -> None:
        if not issubclass(message.category, FutureWarning | DeprecationWarning | PendingDeprecationWarning):
            show(message)

    module._showwarnmsg_impl = show_others


class _Without(logging.Filter):
    """Lets through what begins otherwise."""

    def __init__(self, beginnings: tuple[str, ...]) -> None:
        super().__init__()
        self.beginnings = beginnings

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(self.beginnings)
