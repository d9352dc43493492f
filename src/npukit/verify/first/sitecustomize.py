"""Runs first in every Python process of a launcher, because this folder is on PYTHONPATH."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path

with contextlib.suppress(ImportError):  # another Python without npukit
    from npukit.verify.started import begin

    begin()

# Run the user's own sitecustomize, which this one hides.
sys.path[:] = [path for path in sys.path if Path(path or ".").absolute() != Path(__file__).parent]
this = sys.modules.pop(__name__)
try:
    importlib.import_module(__name__)
except ImportError:
    sys.modules[__name__] = this
