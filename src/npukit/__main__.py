"""The `npukit` command from its first moment: Ctrl-C while it is still importing itself is no error of anybody's."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from npukit.cli import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
