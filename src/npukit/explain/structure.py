"""Read a message by its structure: what kind of thing it says is wrong, and the name of that thing.

There are endless modules, libraries, symbols and packages, but few ways to say that one is missing. The ways are the
patterns here; what a name means is a row of facts/errors/named.yaml. Of a message that names nothing, the sentence is
read, and if that says nothing either, the class of the exception and the package whose code raised it
(facts/errors/sentences.yaml).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from npukit.facts.errors import KnownError, frameworks, named_errors

RAISED = r"(?:Error|Exception|Unsupported|Failed)"  # how the classes of exceptions end
# A pattern's group `name` is the name, or `owner` and `part` are its two halves.
SUBJECTS = {
    "module": r"No module named ['\"]?(?P<name>[A-Za-z_][\w.-]*\w|[A-Za-z_])"
    r"|requires the following packages that were not found in your environment: (?P<name2>\w+)"
    r"|ModuleNotFoundError: (?P<name3>[A-Za-z_]\w*)$",
    "library": r"(?P<name>lib[\w+.-]+?\.so[\w.]*)[:,]? "
    r"(?:cannot open shared object|undefined reference|(?:is )?not found)"
    r"|(?:[Uu]nable to load|[Cc]ould ?n[o']t (?:find|load)|[Ff]ailed to (?:load|open)) (?:library |dynamic library )?"
    r"['\"]?(?P<name2>lib[\w+.-]+?\.so[\w.]*)",
    "symbol": r"undefined symbol: (?P<name>\w+)",
    "attribute": r"(?:partially initialized )?module ['\"](?P<owner>[\w.]+)['\"] has no attribute ['\"](?P<part>\w+)",
    "import": r"cannot import name ['\"](?P<part>\w+)['\"](?: from (?P<early>partially initialized module )?"
    r"['\"](?P<owner>[\w.]+)['\"](?: \((?P<place>[^)\n]*)\))?)?",
    "argument": r"(?P<owner>[\w.<>]+)\(\) got (?:an unexpected|unexpected|multiple values for) (?:keyword )?argument"
    r" ['\"](?P<part>\w+)",
    "package": r"(?:No matching distribution found for|satisfies the requirement|No package metadata was found for)"
    r" (?P<name>[A-Za-z][\w.-]*)",
    "conflict": r"(?P<owner>[\w.-]+ [\d.]\S*) requires (?P<part>[^\n]{3,80}?),?"
    r" (?:but you have [^\n]{3,60}? which|which is not installed)",
    "command": r"(?:^|[\s/:'])(?P<name>[\w+.-]+)(?:: (?:command )?not found| not found in\s+[\[/$])"
    r"|No such file or directory: ['\"](?:/[\w./-]*/)?(?P<name2>[\w+-]+)['\"]",
    "variable": r"(?P<name>[A-Z][A-Z0-9]*_[A-Z0-9_]+) (?:environment variable )?(?:is |was )?not (?:set|defined|found)"
    r"|KeyError: ['\"](?P<name2>(?:ASCEND|CUDA|ATB|CANN|TOOLCHAIN)_\w+)['\"]",
    "cmake": r"No (?P<name>CMAKE_\w+_COMPILER) could be found|Could NOT find (?P<name2>\w+)"
    r"|configuration\s+file provided by\s+\"(?P<name3>[\w-]+)\"",
    "advice": r"(?:increase|raise|reduce|decrease|set(?:ting)?|passing|export|unset|enable|disable|suppress with)"
    r" (?:the )?(?:environment variable )?[`'\"]?(?P<name>[A-Z][A-Z0-9]*_[A-Za-z0-9_]+)\b",
    "failed command": r"Command ['\"]\[?['\"]?(?P<name>[\w./+-]+)[^\n]* returned non-zero exit status",
    "driver call": r"\[drv api\] ?(?P<name>hal\w+) failed",
    "hccl call": r"HCCL function error: (?P<name>\w+)|\bHCCL (?P<name2>initiali[sz]ation) failed",
    "working operator": r"current working operator name is (?P<name>\w+)",
    "dtype": r"not (?:implemented|supported?) for (?P<name>DT_[A-Z0-9_]+)"
    r"|not implemented for '(?P<name2>[A-Z]\w+)'|[Uu]nsupported (?:data type|ScalarType|dtype) (?P<name3>[\w:.]+)",
    "assertion": r"^.*?\bassert (?P<name>[^\n]{3,160})\n(?:[^\n]*\^[^\n]*\n)?[^\n]*\bAssertionError\s*$",
    "sentence": rf"(?:\b\w*{RAISED}(?::\s*|\([\"']?)|\"(?:error|message|detail)\": ?\""
    r"|\b(?:error|ERROR|Error|FATAL)\b[^\n:]{0,60}?[:\]]\s+"
    r"|^(?:\S+ )?E[A-Z]\d{4}[^\n]{0,60}?[):\]]\s+|\A(?=\S+ [^\n]+\Z))(?P<name>[^\n]{8,400})",
    "warning": r"Warning: (?P<name>[^\n]{8,400})",
    "operator": r"operator (?P<name>\w+::\w+) does not exist"
    r"|['\"]_OpNamespace['\"] ['\"](?P<owner>\w+)['\"] object has no attribute ['\"](?P<part>\w+)",
    "exception": rf"\b(?P<name>[A-Za-z]\w*{RAISED})(?=[:(\n]|$)",
}
LEAST_SPECIFIC = "exception"  # read only where no other subject says anything of the same line
DATA = re.compile(r"/(?:datasets?|data|preprocess\w*|collat\w*|templates?)[/_.]")  # folders whose code reads rows
FRAME = re.compile(r"File \"[^\"\n]*?((?:(?:site|dist)-packages/)?[\w./-]+)\"")
INSTALLED = re.compile(r"(?:site|dist)-packages/(\w+)")
NOBODY = "the calling package"
NEAR = 4000  # characters before a message in which its traceback is looked for


def named_errors_in(text: str) -> Iterator[tuple[KnownError, int]]:
    """The errors of a text that name the thing which is wrong, each with its place.

    >>> error, place = next(named_errors_in("ModuleNotFoundError: No module named 'selective_scan_cuda'"))
    >>> error.code
    'cuda-module-missing'
    """
    read: set[int] = set()  # the beginnings of lines that a subject has explained
    for subject, pattern in _patterns().items():
        for match in pattern.finditer(text):
            line = text.rfind("\n", 0, match.start()) + 1
            if subject == LEAST_SPECIFIC and line in read:
                continue
            asker = _asker(text, match.start())
            name = _name(subject, match)
            if subject == LEAST_SPECIFIC:
                name = f"{name}@{asker}{_part(text, match.start())}"
            row = next((row for row in named_errors(subject) if _fits(name, row.names)), None)
            if row is not None:
                read.add(line)
                yield _worded(row.error, name.partition("@")[0], asker), match.start()


def _name(subject: str, match: re.Match[str]) -> str:
    groups = match.groupdict()
    if name := groups.get("name") or groups.get("name2") or groups.get("name3"):
        return name
    between = {"conflict": " requires ", "operator": "::"}.get(subject, ".")
    name = between.join(filter(None, (groups["owner"], groups["part"])))
    if groups.get("early"):
        return f"{name}@circular"
    return f"{name}@{groups['place']}" if groups.get("place") == "unknown location" else name


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _asker(text: str, place: int) -> str:
    """The package whose code comes last in the traceback above a message: installed, or a framework's sources."""
    for frame in reversed(FRAME.findall(text, max(0, place - NEAR), place)):
        if installed := INSTALLED.search(frame):
            return str(installed[1])
        if folder := next((part for part in reversed(str(frame).split("/")) if part in frameworks()), None):
            return folder
    return NOBODY


def _part(text: str, place: int) -> str:
    """What the code does that raised an exception, where its path tells: it reads data."""
    frames = FRAME.findall(text, max(0, place - NEAR), place)
    return "#data" if frames and DATA.search(frames[-1]) else ""


def _worded(error: KnownError, name: str, asker: str) -> KnownError:
    words = {"{name}": name, "{top}": name.split(".")[0].split("::")[0], "{asker}": asker}

    def fill(text: str) -> str:
        return functools.reduce(lambda filled, word: filled.replace(word, words[word]), words, text)

    return replace(
        error,
        meaning=fill(error.meaning),
        causes=tuple(map(fill, error.causes)),
        remedies=tuple(map(fill, error.remedies)),
    )


@functools.cache
def _patterns() -> dict[str, re.Pattern[str]]:
    return {subject: re.compile(pattern, re.MULTILINE) for subject, pattern in SUBJECTS.items()}
