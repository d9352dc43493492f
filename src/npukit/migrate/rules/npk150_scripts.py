"""Set the NPU's variables and devices in scripts, configuration files and Dockerfiles.

before:           CUDA_VISIBLE_DEVICES=0,1 torchrun train.py
after (npu):      ASCEND_RT_VISIBLE_DEVICES=0,1 torchrun train.py
after (portable): CUDA_VISIBLE_DEVICES=0,1 ASCEND_RT_VISIBLE_DEVICES=0,1 torchrun train.py

A script that reads the variable reads the NPU's first: ${ASCEND_RT_VISIBLE_DEVICES:-${CUDA_VISIBLE_DEVICES:-0}}.
Plain values (backend: nccl, --device cuda) and the variables of Dockerfiles and YAML files are renamed in the npu
style. In the portable style they are reported, since a file that names one device cannot serve another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from npukit.facts.variables import is_refused, renamed
from npukit.migrate.rule import Document, Edit, Effort, Findings, Goal, Place, Rule, Severity

rule = Rule(
    "NPK150",
    "scripts",
    words=("cuda", "nccl"),
    fixes=True,
    why="No CUDA device exists on an NPU machine.",
    remedy="Name the NPU's variable (ASCEND_RT_VISIBLE_DEVICES), device (npu) or backend (hccl).",
    effort=Effort(15, 5),
)

_VARIABLES = renamed()
_NAMES = "|".join(_VARIABLES)
_WORD = re.compile(rf"(?<!\w)(?:{_NAMES})(?!\w)")
_SHELL = re.compile(
    rf"""(?<![\w$])({_NAMES})=("""
    r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\$\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\)|`[^`\n]*`|\$\{[^}\n]*\}"""
    r"""|\\.|[^\s;&|#"'`\\()<>])*)"""
)
_COMMAND = re.compile(r"(?:[^\n]*\\\r?\n)*[^\n]*")  # to its end, over lines that a backslash continues
_READ = re.compile(rf"(?:\$\{{?[#!]?|\b(?:export|unset)[ \t]+)({_NAMES})(?![\w=])")
_DEFAULT = re.compile(r"(?::?-[^{}\n]*)?\}")
_ALONE = re.compile(r"[ \t]*(?:export[ \t]+)?")
_ARGUMENT = re.compile(r"""(?:-e|--env)[ \t=]+$|[,"']$""")  # of a command, in front of a setting
# device: cuda, "backend": "nccl", --device cuda, --device=cuda, ["--device", "cuda"]; never in prose such as "uses
# device cuda".
_DEVICE = re.compile(
    r"""(?:--[\w-]*(?:device|backend)(?:[ \t=]+|["'],[ \t]*)"""
    r"""|\b\w*(?:device(?:_type|_map)?|backend)["']?[ \t]*[:=][ \t]*)"""
    r"""["']?(cuda|nccl)\b(?![\w./-])"""
)
_NEW = {"cuda": "npu", "nccl": "hccl"}


@rule.on_text("shell", "docker", "yaml")
def variables(document: Document, goal: Goal) -> Findings:
    """Rename a variable that only NPUs need; otherwise set the NPU's variable beside CUDA's."""
    text = document.text
    words = [m for m in _WORD.finditer(text) if not is_refused(_COMMAND.match(text, m.start())[0])]  # type: ignore[index]
    if not goal.portable:
        yield from _found(document, ((m.span(), m[0], Edit(*m.span(), _VARIABLES[m[0]])) for m in words))
    elif document.kind != "shell":
        yield from _found(document, ((m.span(), m[0], None) for m in words))
    else:
        settings = [m for m in _SHELL.finditer(text) if not is_refused(m[2])]
        yield from _found(document, ((m.span(1), m[1], _beside(m, text)) for m in settings))
        reads = (m for m in _READ.finditer(text) if not any(s.start() <= m.start() < s.end() for s in settings))
        yield from _found(document, ((m.span(1), m[1], _read(m, text)) for m in reads))


@rule.on_text("notebook")
def commands(document: Document, goal: Goal) -> Findings:
    """Migrate shell commands in notebooks: !CUDA_VISIBLE_DEVICES=0 python train.py"""
    for cell, line, text in document.book.commands if document.book else ():
        if _WORD.search(text) or _DEVICE.search(text) or ".cuda" in text:
            yield rule.finding(
                Place(document.path, line, cell=cell),
                "a command in this notebook requires CUDA",
                severity=Severity.warning,
                evidence=text.strip(),
            )


def _read(match: re.Match[str], text: str) -> Edit | None:
    """Return the edit for $NAME, ${NAME:-0} and `export NAME`, or None for `unset NAME` and ${NAME//,/ }."""
    new, start, end = _VARIABLES[match[1]], match.start(), match.end()
    if match[0].startswith("export"):
        return Edit(end, end, f" {new}")
    if match[0].startswith("${") and (rest := _DEFAULT.match(text, end)) and match[0][2] not in "#!":
        end = rest.end()
    elif match[0] != f"${match[1]}" or text[start - 1 : start] == "\\":
        return None
    return Edit(start, end, f"${{{new}:-{text[start:end]}}}")


def _beside(match: re.Match[str], text: str) -> Edit | None:
    """Return the edit that adds NEW=value to NAME=value, or exports it on the next line.

    It is None for `docker run -e NAME=value`, and for a value that may be empty on NPU machines and would hide every
    NPU: that of the variable itself, or of nvidia-smi.
    """
    start, end = match.span()
    before = text[text.rfind("\n", 0, start) + 1 : start]
    old, new = match[1], _VARIABLES[match[1]]
    value = re.sub(rf"\$\{{{old}(?=:?-)", f"${{{new}", match[2])  # ${NAME:-0}
    if _ARGUMENT.search(before) or old in value or "nvidia-smi" in value:
        return None
    setting = f"{new}={value}"
    exports = _ALONE.fullmatch(before) and before.strip() and text[end : end + 1] in ("", "\r", "\n")
    if exports:
        newline = "\r\n" if text[end : end + 1] == "\r" else "\n"
        return Edit(end, end, f"{newline}{before}{setting}")
    return Edit(end, end, f" {setting}")


@rule.on_text("shell", "yaml", "docker", "json", "toml")
def words(document: Document, goal: Goal) -> Findings:
    for match in _devices(document.text):
        start, end = match.span(1)
        if _line(document, start).startswith("#"):
            continue
        edits = () if goal.portable else (Edit(start, end, _NEW[match[1]]),)
        yield rule.finding(
            (document, (start, end)),
            f"{match[1]} is hard-coded",
            remedy=f"Use {_NEW[match[1]]} on NPUs.",
            edits=edits,
            severity=Severity.warning,
            evidence=_line(document, start),
        )


def _found(document: Document, edits: Iterable[tuple[tuple[int, int], str, Edit | None]]) -> Findings:
    for (start, end), old, edit in edits:
        new = _VARIABLES[old]
        if _is_skipped(document, start, old):
            continue
        yield rule.finding(
            (document, (start, end)),
            f"{old} has no effect on NPUs",
            why=f"torch_npu and CANN read {new}.",
            remedy=f"Set {new}.",
            edits=(edit,) if edit else (),
            evidence=_line(document, start),
        )


def _is_skipped(document: Document, start: int, old: str) -> bool:
    """Return whether a setting is in a comment, or the file has the NPU's variable already."""
    before = document.text[document.text.rfind("\n", 0, start) + 1 : start]
    return bool(re.search(r"(?:^|\s)#", before)) or _VARIABLES[old] in document.text


def _devices(text: str) -> Iterator[re.Match[str]]:
    """Yield the devices in a script. Only lines that contain one of the words are searched, which is faster."""
    starts = dict.fromkeys(text.rfind("\n", 0, word.start()) + 1 for word in re.finditer("cuda|nccl", text))
    for start in starts:
        end = text.find("\n", start)
        yield from _DEVICE.finditer(text, start, end if end >= 0 else len(text))


def _line(document: Document, offset: int) -> str:
    start = document.text.rfind("\n", 0, offset) + 1
    return document.text[start:].split("\n", 1)[0].strip()
