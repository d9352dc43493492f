"""Import torch and transformers in less time.

They make more than a million objects on import, none of them garbage, and Python's garbage collector walks over these
again and again as they come: a fifth to a third of the time that the imports take.
"""

from __future__ import annotations

import gc
import re
from functools import cache
from importlib.machinery import SourceFileLoader
from types import ModuleType

_LIBRARY = re.compile(r"/(site-packages|dist-packages|torch_npu)/")
_execute = SourceFileLoader.exec_module


def quicken_imports() -> None:
    """Pause Python's garbage collector in this process while installed libraries are imported.

    >>> quicken_imports()
    >>> import torch
    """
    SourceFileLoader.exec_module = _execute_module  # type: ignore[assignment,method-assign]


def _execute_module(self: SourceFileLoader, module: ModuleType) -> None:
    thresholds = gc.get_threshold()
    if thresholds[0] and _LIBRARY.search(self.path):
        gc.set_threshold(0)  # and not gc.disable(), which may be what the library itself does
        try:
            _execute(self, module)
        finally:
            if not gc.get_threshold()[0]:
                gc.set_threshold(*thresholds)
    else:
        _execute(self, module)
    if finish := _FINISH.get(module.__name__):
        finish(module)


def _freeze(torch: ModuleType) -> None:
    """Have the collector pass over what exists: no tensor does yet, so it can keep none of them alive."""
    gc.freeze()


def _scan_once(import_utils: ModuleType) -> None:
    """Let transformers remember what its files export: its cache is smaller than the number of its folders."""
    if scan := getattr(import_utils, "create_import_structure_from_path", None):
        import_utils.create_import_structure_from_path = cache(scan.__wrapped__)  # type: ignore[attr-defined]


_FINISH = {"torch": _freeze, "transformers.utils.import_utils": _scan_once}
# Python leaves the frames of its import system out of tracebacks, and this one is among them.
_execute_module.__code__ = _execute_module.__code__.replace(co_filename="<frozen importlib._bootstrap_external>")
