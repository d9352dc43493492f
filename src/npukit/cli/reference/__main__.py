"""Write the pages into docs/reference of the checkout that the package runs from."""

from __future__ import annotations

from pathlib import Path

from npukit.cli.reference import FOLDERS, pages
from npukit.report.writing import write_text

FOLDER = Path(__file__).parents[4] / "docs" / "reference"


def main() -> None:
    """Write all pages, and remove pages of codes that are gone."""
    written = pages()
    for folder in FOLDERS:
        for file in (FOLDER / folder).glob("*.md"):
            if f"{folder}/{file.name}" not in written:
                file.unlink()
    for name, text in written.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(FOLDER / name, text)
    print(f"{FOLDER}: {len(written)} pages")


if __name__ == "__main__":
    main()
