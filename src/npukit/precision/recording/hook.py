"""Start recording in a process that npukit starts. npukit.launch.script calls this before it runs the user's script."""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from npukit.launch.script import HOOK
from npukit.precision.recording.options import RecordOptions
from npukit.shim.children import run_first_in_spawned

VARIABLE = "NPUKIT_CAPTURE"


def recording(options: RecordOptions, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables with which a process started by npukit.launch records itself.

    >>> run(["train.py"], recording(RecordOptions("dump"), os.environ))
    """
    return {**environment, VARIABLE: options.dumps(), HOOK: f"{__name__}:{begin.__name__}"}


def begin() -> None:
    """Record from the moment the script has imported torch. Until then it can still set environment variables."""
    if "torch" in sys.modules:
        _record()
    else:
        sys.meta_path.insert(0, _AfterTorch())
    run_first_in_spawned("from npukit.precision.recording.hook import begin; begin()")


def _record() -> None:
    from npukit.precision.recording.recorder import Recorder

    recorder = Recorder(RecordOptions.loads(os.environ[VARIABLE]))
    recorder.start()
    atexit.register(recorder.stop)


class _AfterTorch(importlib.abc.MetaPathFinder):
    """An import hook that finds torch as Python would, and starts recording once it has been imported."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def execute_and_record(module: ModuleType) -> None:
                execute(module)
                _record()

            spec.loader.exec_module = execute_and_record  # type: ignore[method-assign]
        return spec
