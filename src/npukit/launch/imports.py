"""Import torch and transformers in less time.

Their imports make more than a million objects that stay alive. Python's garbage collector scans these again and again,
which takes a fifth to a third of the time.
"""

from __future__ import annotations

import gc
import re
from functools import cache, wraps
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
        gc.set_threshold(0)  # not gc.disable(), which a library may call itself
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
    """Exclude all existing objects from collection. No tensor exists yet, so none is kept alive by this."""
    gc.freeze()


def _scan_quickly(import_utils: ModuleType) -> None:
    """Let transformers, which reads all its files for their `__all__`, look for it from their ends.

    Its cache of what it found is smaller than the number of its folders, and is enlarged.
    """
    if scan := getattr(import_utils, "create_import_structure_from_path", None):
        import_utils.create_import_structure_from_path = cache(scan.__wrapped__)  # type: ignore[attr-defined]
    if fetch := getattr(import_utils, "fetch__all__", None):

        @wraps(fetch)
        def fetch_last(content: str) -> list[str]:
            return fetch(content[content.rfind("\n__all__") + 1 :])  # type: ignore[no-any-return]

        import_utils.fetch__all__ = fetch_last  # type: ignore[attr-defined]


_FINISH = {"torch": _freeze, "transformers.utils.import_utils": _scan_quickly}
# Python leaves frames with this name of its import system out of tracebacks.
_execute_module.__code__ = _execute_module.__code__.replace(co_filename="<frozen importlib._bootstrap_external>")
