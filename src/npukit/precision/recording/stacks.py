"""Find the line of the user's code that made a call."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from npukit.precision.recording.files import Frame

_OUTSIDE = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]), "<frozen", "<string>", "<__array")
_MAX_FRAMES = 24
_is_outside: dict[str, bool] = {}  # by file


def user_stack(known: tuple[Any, tuple[Frame, ...]] = (None, ())) -> tuple[Frame, ...]:
    """The caller's stack frames outside torch and npukit, innermost first.

    `known` is a frame that may be among them, with the frames above it: the search ends there.
    """
    frames: list[Frame] = []
    frame: Any = sys._getframe(1)
    last, above = known
    while frame is not None and len(frames) < _MAX_FRAMES:
        if frame is last:
            return (*frames, *above)[:_MAX_FRAMES]
        code = frame.f_code
        file = code.co_filename
        outside = _is_outside.get(file)
        if outside is None:
            outside = _is_outside[file] = file.startswith(_OUTSIDE)
        if not outside:
            frames.append((file, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(frames)
