"""A file that imported before the migration and does not after it. `npukit migrate --test` puts such a file back.

The file is imported in a process of its own, before and after, without a device and on a simulated NPU.
"""

from __future__ import annotations

from npukit.migrate.rule import Effort, Rule

rule = Rule(
    "NPK003",
    "import-breaks",
    words=(),
    why="The migrated file failed to import, so it was left as it was.",
    remedy="Migrate this file by hand: `npukit migrate FILE --diff` shows the change that breaks it.",
    effort=Effort(30, 15),
)
