"""Set the NPU's variables and devices in scripts, configuration files and Dockerfiles.

before:           CUDA_VISIBLE_DEVICES=0,1 torchrun train.py
after (npu):      ASCEND_RT_VISIBLE_DEVICES=0,1 torchrun train.py
after (portable): CUDA_VISIBLE_DEVICES=0,1 ASCEND_RT_VISIBLE_DEVICES=0,1 torchrun train.py

A script that reads the variable reads the NPU's first: ${ASCEND_RT_VISIBLE_DEVICES:-${CUDA_VISIBLE_DEVICES:-0}}.
Plain values (backend: nccl, --device cuda) and the variables of Dockerfiles and YAML files are renamed in the npu
style. In the portable style they are reported, since a file that names one device cannot serve another.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from npukit.facts.variables import is_refused, renamed
from npukit.migrate.decision import is_kept
from npukit.migrate.rule import Document, Edit, Effort, Findings, Goal, Place, PythonFile, Rule, Severity

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
_MESSAGE = re.compile(rf"(?:echo|printf)\s[^;&|\n]*?(?:{_NAMES})=\$\{{?(?:{_NAMES})\b")
_COMMAND = re.compile(r"(?:[^\n]*\\\r?\n)*[^\n]*")  # to its end, over lines that a backslash continues
_ALONE = re.compile(r"[ \t]*(?:export[ \t]+)?")
_NAMED = re.compile(rf"(?<![\w-])(?:export|unset)[ \t]+({_NAMES})(?=\s|;|$)")
_READ = re.compile(r"\$\{?(\w+)")
_ARGUMENT = re.compile(r"""(?:-e|--env)[ \t=]+$|[,"']$""")  # of a command, in front of a setting
# device: cuda, "backend": "nccl", --device cuda, --device=cuda, ["--device", "cuda"]; never in prose such as "uses
# device cuda".
_DEVICE = re.compile(
    r"""(?:--[\w-]*(?:device|backend)(?:[ \t=]+|["'],[ \t]*)"""
    r"""|\b\w*(?:device(?:_type|_map)?|backend)["']?[ \t]*[:=][ \t]*)"""
    r"""["']?(cuda|nccl)\b(?![\w./-])"""
)
_RUNNERS = ("system", "popen", "run", "call", "check_call", "check_output", "Popen")
_NEW = {"cuda": "npu", "nccl": "hccl"}
_BEGINS = re.compile(r"[;&|`(]|\b(?:then|do|else)\b")
_SAYS = re.compile(r"\s*(?:echo|printf)\s")
_ASKS = re.compile(r"""-[zn]\s+["']?$""")
_WITH_DEFAULT = ("-", ":-", "?", ":?")


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
        settings = [m for m in _SHELL.finditer(text) if not is_refused(m[2]) and not _is_shown(m, text)]
        twins = ((m.span(1), m[1], None if _from_nvidia_smi(m[2], text) else _beside(m, text)) for m in settings)
        yield from _found(document, twins)
        yield from _found(document, ((m.span(1), m[1], _exported(m)) for m in _NAMED.finditer(text)))
        yield from _read(document)


def _read(document: Document) -> Findings:
    """Yield where a script reads a variable that it does not define itself."""
    text = document.text
    settings = list(_SHELL.finditer(text))
    for (start, end), old, edit in _variable_reads(text, _VARIABLES):
        if _is_within(start, [m.span() for m in settings]) or _is_printed(start, end, text):
            continue
        if _is_from_nvidia_smi(old, text) or _is_counted(old, text):
            continue
        if _is_skipped(document, start, old):
            continue
        yield rule.finding(
            (document, (start, end)),
            f"{old} is read, but NPUs are chosen by {_VARIABLES[old]}" if "VISIBLE" in old else f"{old} is read",
            why=f"torch_npu and CANN read {_VARIABLES[old]}.",
            remedy=f"Read {_VARIABLES[old]}, and {old} where it is not set.",
            edits=(edit,) if edit else (),
            severity=Severity.warning,
            evidence=_line(document, start),
        )


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


@rule.on_call(_RUNNERS)
def in_python(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    """Migrate commands in Python: os.system("CUDA_VISIBLE_DEVICES=0 python train.py")"""
    if not call.args or is_kept(call, file, goal):
        return
    source, at = file.source(call.args[0]), file.span(call.args[0])[0]
    if (file.resolve(call.func) or "").split(".")[0] not in ("os", "subprocess") or "CUDA_VISIBLE" not in source:
        return
    for match in _SHELL.finditer(source):
        new = _VARIABLES[match[1]]
        edits = () if goal.portable else (Edit(at + match.start(1), at + match.end(1), new),)
        what, why = f"{match[1]} has no effect on NPUs", f"torch_npu and CANN read {new}."
        yield rule.finding((file, call), what, why=why, remedy=f"Set {new}.", edits=edits)


def _exported(match: re.Match[str]) -> Edit | None:
    """Return the edit for `export NAME` if NAME is set elsewhere, or None for `unset NAME`."""
    return Edit(match.end(1), match.end(1), f" {_VARIABLES[match[1]]}") if match[0].startswith("export") else None


def _is_shown(match: re.Match[str], text: str) -> bool:
    """Return whether a setting is only printed: echo "NAME=$NAME" """
    return bool(_MESSAGE.search(text, text.rfind("\n", 0, match.start()) + 1, match.end()))


def _is_from_nvidia_smi(name: str, text: str) -> bool:
    return any(m[1] == name and _from_nvidia_smi(m[2], text) for m in _SHELL.finditer(text))


def _from_nvidia_smi(value: str, text: str) -> bool:
    """Return whether a value comes from nvidia-smi. It is empty on NPU machines and would hide every NPU."""
    sources = (re.search(rf"(?<!\w){name}=[^\n]*nvidia-smi", text) for name in _READ.findall(value))
    return "nvidia-smi" in value or any(sources)


def _beside(match: re.Match[str], text: str) -> Edit | None:
    """Return the edit that adds NEW=value to NAME=value, or exports it on the next line.

    It is None for `docker run -e NAME=value`, and for a value that reads a variable which other commands read.
    """
    start, end = match.span()
    before = text[text.rfind("\n", 0, start) + 1 : start]
    old, new, value = match[1], _VARIABLES[match[1]], match[2]
    reads = rf"\$\{{?{old}\b"
    stays_set = _ALONE.fullmatch(before) and text[end : end + 1] in ("", "\r", "\n")
    if _ARGUMENT.search(before) or (stays_set and re.search(reads, value) and len(re.findall(reads, text)) > 1):
        return None
    setting = f"{new}={value if _is_counted(old, text) else _rename_variables(value, old, new)}"
    if stays_set and before.strip():  # export
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


def _rename_variables(value: str, old: str, new: str) -> str:
    """Return a value that reads the variable it sets, rewritten for another variable.

    >>> _rename_variables("${A:-0}", "A", "B")
    '${B:-0}'
    """
    return re.sub(rf"(\$\{{?){old}\b", rf"\g<1>{new}", value)


def _variable_reads(text: str, names: dict[str, str]) -> Iterator[tuple[tuple[int, int], str, Edit | None]]:
    """Yield where a script reads a variable, its name, and the edit, or None if no expression can read either."""
    words = "|".join(names)
    for match in re.finditer(rf"\$(?:({words})\b|\{{[#!]?({words})\b((?:[^{{}}\n]|\{{[^{{}}\n]*\}})*)\}})", text):
        old = match[1] or match[2]
        yield match.span(), old, _read_edit(match, names[old], text)


def _read_edit(match: re.Match[str], new: str, text: str) -> Edit | None:
    if text[: match.start()].endswith("\\") or match[0][2:3] in "#!":
        return None
    how = re.match(r":?[-+?=]|", match[3] or "")[0]  # type: ignore[index]
    if how in ("+", ":+") and _ASKS.search(text, text.rfind("\n", 0, match.start()) + 1, match.start()):
        how = "-"
    if match[3] and how not in _WITH_DEFAULT:
        return None
    old = match[0] if match[3] else f"${match[1] or match[2]}"
    return Edit(*match.span(), f"${{{new}:-{old}}}")


def _is_printed(start: int, end: int, text: str) -> bool:
    """Return whether a variable is only printed, as in `echo "on $CUDA_VISIBLE_DEVICES"`."""
    before = text[text.rfind("\n", 0, start) + 1 : start]
    rest = text[end:].split("\n", 1)[0]
    commands = list(_BEGINS.finditer(before))
    last = commands[-1] if commands else None
    is_value = last is not None and last[0] in "`("
    return bool(_SAYS.match(before, last.end() if last else 0)) and not is_value and not re.search(r"[|>]", rest)


def _is_counted(name: str, text: str) -> bool:
    """Return whether a script sets a variable without `=` and nothing sets the NPU's variable with it.

    >>> _is_counted("A", "for A in 0 1; do")
    True
    """
    command = r"(?:for|select|read|mapfile|readarray|printf -v)"
    return bool(re.search(rf"^[^#\n]*\b{command}\b[^#\n;|&$]*?[\s=]{name}\b(?!=)", text, re.MULTILINE))


def _is_within(start: int, spans: Sequence[tuple[int, int]]) -> bool:
    """Return whether an offset lies in one of these ranges."""
    return any(first <= start < last for first, last in spans)
