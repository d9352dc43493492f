"""Imports of libraries that do not run on NPUs.

Optional imports (inside `try`, or after a check that the library is available) are reported as notes.

bad:
    from flash_attn import flash_attn_func

good:
    from torch.nn.functional import scaled_dot_product_attention
"""

from __future__ import annotations

from npukit.migrate.imported_libraries import LibraryRule
from npukit.migrate.rule import Effort

rule = LibraryRule(
    "NPK401",
    "library-without-npu",
    verdicts=("replace",),
    why="The library does not run on NPUs.",
    remedy="Use its replacement on NPUs (`npukit explain NPK401` lists them), and import it for CUDA only.",
    effort=Effort(120, 15),
)
