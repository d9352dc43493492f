"""Copy the code of every English page into its Chinese one: `python scripts/update_translations.py`.

What a command prints changes with the code; only the words around it have to be translated.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)


def main() -> None:
    written = [page for page in ROOT.glob("docs/**/*.zh.md") if "reference" not in page.parts]  # which is generated
    for chinese in [ROOT / "README.zh.md", *written]:
        english = chinese.with_suffix("").with_suffix(".md").read_text(encoding="utf-8")
        blocks = [found[0] for found in FENCED.finditer(english)]
        text = chinese.read_text(encoding="utf-8")
        if len(FENCED.findall(text)) != len(blocks):
            print(f"{chinese.relative_to(ROOT)}: add or remove a block of code by hand")
            continue
        words = FENCED.split(text)[::2]  # the pattern has one group, which split returns as well
        between = [*blocks, ""]
        chinese.write_text("".join(map(str.__add__, words, between)), encoding="utf-8")


if __name__ == "__main__":
    main()
