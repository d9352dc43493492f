"""What the libraries below say, and who hears it.

Every process that npukit starts calls `install`, before it imports torch; so do the command itself and a simulated NPU.
Where npukit is what runs, libraries are its own affair: the user hears of their errors, and of nothing less. In a
script of the user's everything is let through but what is of no use to anybody; it is listed here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from npukit.errors import NpukitWarning

WARNINGS = (
    # On CPUs without bf16 or fp16 instructions, with all of its C++ frames.
    r"mkldnn_matmul failed, switching to BLAS gemm",
    # torch_npu about its own files, wherever somebody else installed it.
    r"Warning: The .* owner does not match the current user",
    # torch 2.11's profiler, of what `npukit profile` relies on.
    r"Warning: Profiler clears events at the end of each cycle",
)
"""Python's warnings, by how they begin; regular expressions."""

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
    # An error of answers that were cut off: the client is told, and nobody else can mend it.
    "uvicorn.error": ("Cancel ",),
    "torch.distributed.elastic.multiprocessing.redirects": ("NOTE: Redirects are currently not supported",),
}
"""Messages of these loggers, by how they begin."""

NATIVE = (
    "require processing for 32 padding size, with memory allocation",
    "tensor will be created with base format",  # the words before are spelt differently from version to version
    # torch_npu's allocator, before it raises an exception with the same text.
    "NPU out of memory. Tried to allocate",
    # torch_npu's profiler, of operators' attributes, which nobody asked for.
    "FMW or CANN do not support feature",
)
"""Parts of what C++ code says: as a Python warning, or on stderr, where only the simulated NPU can hold it back."""

_NPUKIT = str(Path(__file__).parent)
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_LIBRARY = re.compile(r"/(site-packages|dist-packages|torch_npu|transformers_modules)/|^<")


VERBOSITY = "NPUKIT_VERBOSITY"  # what `npukit -q` and `npukit -v` hand on to the processes that they start
Verbosity = Literal["quiet", "normal", "verbose"]


def verbosity() -> Verbosity:
    """How much the user wants to see."""
    level = os.environ.get(VERBOSITY)
    return "quiet" if level == "quiet" else "verbose" if level == "verbose" else "normal"


def install(own: bool = False) -> None:
    """Keep noise from the user, in this process; `own` if npukit is what runs in it, not a script of the user's.

    >>> install()
    """
    _hiding.close()
    if own:
        _hiding.enter_context(hide_libraries())
    hide_useless()


def hide_useless() -> None:
    """Hide what is of no use to anybody, whoever runs."""
    if verbosity() == "verbose":
        return
    for pattern in (*WARNINGS, *(f".*{re.escape(part)}" for part in NATIVE)):
        warnings.filterwarnings("ignore", pattern)
    for pattern in ONCE:
        warnings.filterwarnings("once", pattern)
    for name, beginnings in LOGGERS.items():
        logging.getLogger(name).addFilter(_Without(beginnings))


def hide_native() -> None:
    """The same for C++ code, which warns on stderr; it must be called before torch is imported."""
    if verbosity() != "verbose":
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


_hiding = contextlib.ExitStack()


@contextlib.contextmanager
def hide_libraries() -> Iterator[None]:
    """Show only what npukit or a file of the user's warns of or logs, and errors.

    At the last place that every warning and every record passes: libraries set filters, levels and handlers of their
    own, whenever they are imported.

    >>> with hide_libraries():
    ...     model.gradient_checkpointing_enable()
    """
    module: Any = warnings
    logger: Any = logging.Logger
    show, handle = module._showwarnmsg_impl, logger.handle

    def show_users(message: warnings.WarningMessage) -> None:
        if issubclass(message.category, NpukitWarning):
            print(f"npukit: {message.message}", file=sys.stderr, flush=True)
        elif _is_heard(message.filename):
            show(message)

    def handle_users(self: logging.Logger, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or _is_heard(record.pathname):
            handle(self, record)

    module._showwarnmsg_impl, logger.handle = show_users, handle_users
    try:
        yield
    finally:
        module._showwarnmsg_impl, logger.handle = show, handle


def _is_heard(file: str) -> bool:
    """Whether a file is neither a library's nor npukit's, such as one with reward functions; with -v, every file."""
    is_below = file.startswith((_NPUKIT, _STANDARD_LIBRARY)) or _LIBRARY.search(file)
    return not is_below or verbosity() == "verbose"


class _Without(logging.Filter):
    """Lets through what begins otherwise."""

    def __init__(self, beginnings: tuple[str, ...]) -> None:
        super().__init__()
        self.beginnings = beginnings

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(self.beginnings)
