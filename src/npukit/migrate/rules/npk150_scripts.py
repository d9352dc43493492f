"""Set the environment variables and devices of NPUs in shell scripts, configuration files and Dockerfiles.

before:           CUDA_VISIBLE_DEVICES=0,1 torchrun train.py
after (npu):      ASCEND_RT_VISIBLE_DEVICES=0,1 torchrun train.py
after (portable): CUDA_VISIBLE_DEVICES=0,1 ASCEND_RT_VISIBLE_DEVICES=0,1 torchrun train.py

Values that are words of their own (backend: nccl, --device cuda) are renamed in the npu style, and found in the
portable style, where a file that names one device cannot serve another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from npukit.migrate.rule import Rule, place_in
from npukit.migrate.rules.npk130_environment import VARIABLES
from npukit.migrate.target import Target
from npukit.report import Edit, Finding, Severity
from npukit.source import Document

rule = Rule("NPK150", "scripts", words=("cuda", "nccl"), fixes=True)

_SHELL = re.compile(rf"(?<![\w$])({'|'.join(VARIABLES)})=(\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|#]*)")
_YAML = re.compile(rf"^([ \t]*(?:-[ \t]+)?)({'|'.join(VARIABLES)})(\s*:\s*)(.*)$", re.MULTILINE)
# device: cuda, "backend": "nccl", --device cuda, --device=cuda; never in prose such as "uses device cuda".
_DEVICE = re.compile(
    r"""(?:--[\w-]*(?:device|backend)[ \t=]+|\b\w*(?:device|backend)["']?[ \t]*[:=][ \t]*)"""
    r"""["']?(cuda|nccl)\b(?![\w./-])"""
)
_NEW = {"cuda": "npu", "nccl": "hccl"}


@rule.on_text("shell", "docker")
def variables(document: Document, target: Target) -> Iterator[Finding]:
    for match in _SHELL.finditer(document.text):
        old, new = match[1], VARIABLES[match[1]]
        line = document.text[document.text.rfind("\n", 0, match.start()) + 1 : match.end()]
        if line.lstrip().startswith("#") or new in document.text:
            continue
        start, end = match.span()
        edit = Edit(end, end, f" {new}={match[2]}") if target.portable else Edit(start, start + len(old), new)
        yield _found(document, start, end, old, new, edit)


@rule.on_text("yaml")
def settings(document: Document, target: Target) -> Iterator[Finding]:
    for match in _YAML.finditer(document.text):
        indent, old, colon, value = match.groups()
        new = VARIABLES[old]
        if new in document.text:
            continue
        value = value.rstrip("\r")
        end = match.start() + len(indent + old + colon + value)
        newline = "\r\n" if "\r\n" in document.text else "\n"
        edit = Edit(end, end, f"{newline}{indent}{new}{colon}{value}")
        if not target.portable:
            edit = Edit(match.start(2), match.end(2), new)
        yield _found(document, match.start(2), end, old, new, edit)


@rule.on_text("shell", "yaml", "docker", "json", "toml")
def words(document: Document, target: Target) -> Iterator[Finding]:
    for match in _DEVICE.finditer(document.text):
        start, end = match.span(1)
        if _line(document, start).startswith("#"):
            continue
        edits = () if target.portable else (Edit(start, end, _NEW[match[1]]),)
        yield rule.finding(
            place_in(document, start, end),
            f"{match[1]} is asked for by name",
            "There is none on a machine with NPUs.",
            f"Write {_NEW[match[1]]} for NPUs.",
            edits,
            Severity.warning,
            evidence=_line(document, start),
        )


def _found(document: Document, start: int, end: int, old: str, new: str, edit: Edit) -> Finding:
    return rule.finding(
        place_in(document, start, end),
        f"{old} has no effect on NPUs",
        f"torch_npu and CANN read {new}.",
        f"Set {new}.",
        (edit,),
        evidence=_line(document, start),
    )


def _line(document: Document, offset: int) -> str:
    start = document.text.rfind("\n", 0, offset) + 1
    return document.text[start:].split("\n", 1)[0].strip()
