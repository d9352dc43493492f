"""Load configurations with mmengine before and after their migration, and print how many load.

    pip install --no-deps --target PACKAGES mmengine addict yapf termcolor platformdirs mmpretrain 'setuptools<81'
    PYTHONPATH=PACKAGES python -m benchmarks migrate_configs mmdetection/configs [--count 60]

Takes so many of the folder's files, evenly spread. A configuration that names a file the checkout lacks, or imports a
package that is not installed, fails both times.
"""

from __future__ import annotations

import argparse
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=60)
    arguments = parser.parse_args()
    folder, wanted = arguments.folder.resolve(), arguments.count
    files = [path.relative_to(folder) for path in sorted(folder.rglob("*.py"))]
    files = files[:: max(1, len(files) // wanted)][:wanted]
    before = [file for file in files if loads(folder / file)]
    print(f"{len(before)} of {len(files)} configurations load", flush=True)
    for style in Style:
        with tempfile.TemporaryDirectory() as temporary:
            migration = migrate(folder, Goal(style))
            write_copy(migration, folder, Path(temporary, folder.name))
            after = [file for file in before if loads(Path(temporary, folder.name, file))]
        print(f"{style.value}: {len(after)} of {len(before)} load after the migration", flush=True)
        print(f"  {len(migration.changes)} files changed, {len(migration.by_hand)} places left by hand", flush=True)


if __name__ == "__main__":
    main()
