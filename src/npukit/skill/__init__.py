"""An Agent Skill: how an agent moves a project to NPUs with npukit, as files that match the installed version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from npukit import __version__
from npukit.errors import NpukitError

NAME = "npukit"
_FOLDER = Path(__file__).parent


def skill_files(commands: Mapping[str, str]) -> dict[str, str]:
    """The files of the skill by their path in its folder; `commands` is each command with its help.

    >>> sorted(skill_files({"npukit doctor": "Usage: …"}))[0]
    'SKILL.md'
    """
    files = {"SKILL.md": (_FOLDER / "SKILL.md").read_text(encoding="utf-8").replace("{version}", __version__)}
    for file in sorted((_FOLDER / "references").glob("*.md")):
        files[f"references/{file.name}"] = file.read_text(encoding="utf-8")
    helps = "\n".join(f"## {name}\n\n```text\n{text.strip()}\n```\n" for name, text in commands.items())
    files["references/commands.md"] = f"# All commands of npukit {__version__}, with their options\n\n{helps}"
    return files


def install(folder: Path, commands: Mapping[str, str]) -> Path:
    """Write the skill below `folder`, in place of an older one, and return its own folder.

    >>> install(Path(".agents/skills"), helps)
    PosixPath('.agents/skills/npukit')
    """
    from npukit.report.writing import whole_folder

    target = folder / NAME
    if target.exists() and not (target / "SKILL.md").is_file():
        raise NpukitError(f"{target} exists and is not a skill: move it, or choose another folder with --output.")
    with whole_folder(target, replace=True) as beside:
        (beside / "references").mkdir()
        for name, text in skill_files(commands).items():
            (beside / name).write_text(text, encoding="utf-8")
    return target
