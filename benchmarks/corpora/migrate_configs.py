"""Load configurations with mmengine before and after their migration, and print how many load.

    pip install --no-deps --target PACKAGES mmengine addict yapf termcolor platformdirs mmpretrain 'setuptools<81'
    PYTHONPATH=PACKAGES python -m benchmarks migrate_configs mmdetection/configs [--count 60]

Takes so many of the folder's files, evenly spread. A configuration that names a file the checkout lacks, or imports a
package that is not installed, fails both times.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from mmengine.config import Config  # type: ignore[import-not-found]  # not a dependency of npukit

from npukit.migrate.goal import Goal, Style
from npukit.migrate.journal import write_copy
from npukit.migrate.migration import migrate


def loads(path: Path) -> bool:
    try:
        text = repr(Config.fromfile(str(path)))
    except Exception:
        return False
    return "device(type=" not in text  # a torch.device, which the copy beside a run's checkpoints could not hold


def main(folder: Path, count: int = 60) -> None:
    folder = folder.resolve()
    files = [path.relative_to(folder) for path in sorted(folder.rglob("*.py"))]
    files = files[:: max(1, len(files) // count)][:count]
    before = [file for file in files if loads(folder / file)]
    print(f"{len(before)} of {len(files)} configurations load", flush=True)
    for style in Style:
        with tempfile.TemporaryDirectory() as temporary:
            migration = migrate(folder, Goal(style))
            write_copy(migration, folder, Path(temporary, folder.name))
            after = [file for file in before if loads(Path(temporary, folder.name, file))]
        print(f"{style.value}: {len(after)} of {len(before)} load after the migration", flush=True)
        print(f"  {len(migration.changes)} files changed, {len(migration.by_hand)} places left by hand", flush=True)
