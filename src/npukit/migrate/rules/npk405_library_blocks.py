"""Imports of libraries that do not run on NPUs and have no replacement.

bad:
    import MinkowskiEngine as ME

good:
    import torch_geometric
"""

from __future__ import annotations

from npukit.migrate.imported_libraries import LibraryRule
from npukit.migrate.rule import Effort

rule = LibraryRule(
    "NPK405",
    "library-blocks",
    verdicts=("blocks",),
    why="The library does not run on NPUs, and nothing replaces it.",
    remedy="Remove what depends on it, or port the operators that you need.",
    effort=Effort(2400, 60),
)
