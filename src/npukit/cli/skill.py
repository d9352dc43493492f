"""npukit skill"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from npukit.cli.options import JsonOption, output_option
from npukit.cli.results import show
from npukit.errors import NpukitError
from npukit.report.writing import make_folder

PROJECT, HOME = Path(".agents/skills"), Path("~/.agents/skills")


def skill(
    install: Annotated[bool, typer.Option("--install", help="Write it to a folder instead of printing it.")] = False,
    everywhere: Annotated[
        bool, typer.Option("--global", help="Install it for all projects of this user, in ~/.agents/skills.")
    ] = False,
    output: Annotated[
        Path | None,
        output_option("Install it in this folder of skills, such as .claude/skills.", "FOLDER", ".agents/skills", None),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Print or install an Agent Skill for npukit.

    The skill is a folder with SKILL.md and references, and matches this version of npukit. Most agents read
    .agents/skills; for Claude Code, use --output .claude/skills.

    Examples:
        npukit skill  # print it
        npukit skill --install  # into .agents/skills of this project
        npukit skill --output .claude/skills
    """
    from npukit.skill import install as install_skill
    from npukit.skill import skill_files

    if everywhere and output:
        raise NpukitError("Give either --global or --output.")
    if not (install or everywhere or output):
        files = skill_files(_helps())
        show({"files": files}, files["SKILL.md"], json)
        return
    parent = output or (HOME.expanduser() if everywhere else PROJECT)
    make_folder(parent)
    target = install_skill(parent, _helps())
    show({"folder": target}, f"Wrote {target}. An agent that reads {parent} finds it at its next start.", json)


def _helps() -> dict[str, str]:
    """Each command of npukit, with its help."""
    from npukit.cli.verbs import VERBS, load

    helps: dict[str, str] = {}
    for verb in (verb for group in VERBS.values() for verb in group):
        command = load(verb)
        for name, subcommand in (getattr(command, "commands", None) or {"": command}).items():
            title = f"npukit {verb.name} {name}".strip()
            context: Any = typer.Context(subcommand, info_name=title)
            helps[title] = subcommand.get_help(context)
    return helps
