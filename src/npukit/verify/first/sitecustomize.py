"""Python runs this first in every process below a launcher, where this folder is on PYTHONPATH."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path

with contextlib.suppress(ImportError):  # another Python, without npukit, is left alone
    from npukit.verify.started import begin

    begin()

# The user's own, which this one hides.
sys.path[:] = [path for path in sys.path if Path(path or ".").absolute() != Path(__file__).parent]
this = sys.modules.pop(__name__)
try:
    importlib.import_module(__name__)
except ImportError:
    sys.modules[__name__] = this
