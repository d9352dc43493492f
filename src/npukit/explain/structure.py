"""Read a message by its structure: what kind of thing it says is wrong, and the name of that thing.

There are endless modules, libraries, symbols and packages, but few ways to say that one is missing. These ways are the
patterns here; the meaning of a name is a row of facts/errors/named.yaml. If a message names nothing, its sentence is
read, and if that says nothing either, the class of the exception and the package whose code raised it
(facts/errors/sentences.yaml).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from npukit.facts.errors import KnownError, frameworks, named_errors

RAISED = r"(?:Error|Exception|Unsupported|Failed)"  # suffixes of exception classes
SENTENCE = (
    rf"(?:\b\w*{RAISED}(?::\s*|\([\"']?)|\"(?:error|message|detail)\": ?\""
    r"|(?:\b(?:error|ERROR|FATAL|CRITICAL)|(?<!\[)\bError)\b[^\n:]{0,60}?[:\]]\s+"
    r"|^\[?[EF](?:\d{4,8} [\d:.]+)? +[^\]\n]{1,90}\] "  # glog and torch: a one-letter level
    r"|^[ \t]+Value error, "
    r"|^(?:\S+ )?E[A-Z]\d{4}[^\n]{0,60}?[):\]]\s+|\A(?=\S+ [^\n]+\Z))(?P<name>[^\n]{8,400})"
)
# A pattern's group `name` is the name, or `owner` and `part` are its two parts.
SUBJECTS = {
    "module": r"No module named ['\"]?(?P<name>[A-Za-z_][\w.-]*\w|[A-Za-z_])"
    r"|requires the following packages that were not found in your environment: (?P<name2>\w+)"
    r"|ModuleNotFoundError: (?P<name3>[A-Za-z_]\w*)$",
    "library": r"(?P<name>[\w+.-]+?\.so[\w.]*)[:,]? "
    r"(?:cannot open shared object|undefined reference|(?:is |be )?(?:not |cannot (?:be )?)found)"
    r"|(?:[Uu]nable to load|[Cc]ould ?n[o']t (?:find|load)|[Ff]ailed to (?:load|open)) (?:library |dynamic library )?"
    r"['\"]?(?P<name2>lib[\w+.-]+?\.so[\w.]*)",
    "symbol": r"undefined symbol: (?P<name>\w+)|\bsymbol (?P<name2>\w+) version \S+ not defined in file",
    "attribute": r"(?:partially initialized )?module ['\"](?P<owner>[\w.]+)['\"] has no attribute ['\"](?P<part>\w+)",
    "import": r"cannot import name ['\"](?P<part>\w+)['\"](?: from (?P<early>partially initialized module )?"
    r"['\"](?P<owner>[\w.]+)['\"](?: \((?P<place>[^)\n]*)\))?)?",
    "argument": r"(?P<owner>[\w.<>]+)\(\) got (?:an )?unexpected (?:keyword )?argument ['\"](?P<part>\w+)",
    "argument missing": r"(?P<owner>[\w:.<>]+)\(\) (?:is )?missing (?:value for|\d+ required [\w -]+) arguments?:? "
    r"['\"](?P<part>\w+)",
    "argument twice": r"(?P<owner>[\w.<>]+)\(\) got multiple values for (?:keyword )?argument ['\"](?P<part>\w+)",
    "member": r"['\"](?P<owner>\w+)['\"] object has no attribute ['\"](?P<part>\w+)",
    "package": r"(?:No matching distribution found for|satisfies the requirement|No package metadata was found for)"
    r" (?P<name>[A-Za-z][\w.-]*)",
    "conflict": r"(?P<owner>[\w.-]+ [\d.]\S*) requires (?P<part>[^\n]{3,80}?),?"
    r" (?:but you have [^\n]{3,60}? which|which is not installed)",
    "command": r"(?:^|[\s/:'])(?P<name>[\w+.-]+)(?:: (?:command )?not found| not found in\s+[\[/$])"
    r"|No such file or directory: ['\"](?:/[\w./-]*/)?(?P<name2>[\w+-]+)['\"]"
    r"|sh: (?:line \d+: |\d+: )?(?:/[\w.-]+)*/(?P<name3>[\w+.-]+): No such file",
    "variable": r"(?P<name>[A-Z][A-Z0-9]*_[A-Z0-9_]+) (?:environment variable )?(?:is |was )?not (?:set|defined|found)"
    r"|KeyError: ['\"](?P<name2>(?:ASCEND|CUDA|ATB|CANN|TOOLCHAIN)_\w+)['\"]"
    r"|: line \d+: (?P<name3>\w+): unbound variable",
    "cmake": r"No (?P<name>CMAKE_\w+_COMPILER) could be found|Could NOT find (?P<name2>\w+)"
    r"|configuration\s+file provided by\s+\"(?P<name3>[\w-]+)\"",
    "advice": r"(?:increase|raise|reduce|decrease|set(?:ting)?|passing|export|unset|enable|disable|suppress with)"
    r" (?:the )?(?:environment variable )?[`'\"]?(?P<name>[A-Z][A-Z0-9]*_[A-Za-z0-9_]+)\b",
    "failed command": r"Command ['\"]\[?['\"]?(?P<name>[\w./+-]+)[^\n]* returned non-zero exit status",
    "driver call": r"\[drv api\] ?(?P<name>hal\w+) failed",
    "hccl call": r"HCCL function error: (?P<name>\w+)|\bHCCL (?P<name2>initiali[sz]ation) failed",
    "working operator": r"current working operator name is (?P<name>\w+)",
    "dtype": r"(?:not (?:implemented|supported?) for |dtype or format is not supported[^\n]*?\()(?P<name>DT_[A-Z0-9_]+)"
    r"|not implemented for '(?P<name2>[A-Z]\w+)'|[Uu]nsupported (?:data type|ScalarType|dtype) (?P<name3>[\w:.]+)"
    r"|\b(?P<name4>b?float\d+|u?int\d+|complex\d+) of [\w.]+ is not supported",
    "assertion": r"^.*?\bassert (?P<name>[^\n]{3,160})\n(?:[^\n]*\^[^\n]*\n)?[^\n]*\bAssertionError\s*$"
    r"|\b(?:[A-Z]+_ASSERT|CHECK\w*|[A-Z]+_ENFORCE\w*)\((?P<name2>[^\n]{3,160})\) failed",
    "sentence": SENTENCE,
    "warning": r"Warning: (?P<name>[^\n]{8,400})",
    "operator": r"operator (?P<name>\w+::\w+) does not exist"
    r"|['\"]_OpNamespace['\"] ['\"](?P<owner>\w+)['\"] object has no attribute ['\"](?P<part>\w+)",
    "exception": rf"\b(?P<name>[A-Za-z]\w*{RAISED})(?=[:(\n]|$)",
    "raised": rf"^(?:[^\n]*[\])] )?(?:\w+\.)*(?P<name>[A-Z]\w*{RAISED}): (?!\w+:\S+:\d+\s*$)\S",
    "instruction": rf"\b\w*{RAISED}(?::\s*|\([\"']?)(?P<name>[^\n]{{8,600}})",
    "failure": SENTENCE,
}
# Read only if no other subject matches a line.
OF_WHO_ASKS = ("member",)  # meaningful only if the traceback shows whose code asks
LEAST_SPECIFIC = ("exception", "raised", "instruction", "failure")
IN_WORDS = ("sentence", "warning", "instruction", "failure")  # their names are sentences, and their rows have phrases
# Names within a sentence, not its words.
CODE = re.compile(r"`[^`\s]*`|'[^'\s]*'|\"[^\"\s]*\"|\S*[\w)]\.[a-z_]\w*\S*|\S*/\S*")
PROPERTY = re.compile(r"(?<=[\w)\]])\.(dtype|device|shape)\b(?!\()")  # statements about a tensor
WORD = re.compile(r"\w+")
WHOLE_WORD = re.compile(r"(?<![\w*])\w+(?![\w*])")
TITLE = re.compile(r"\bERR\d{5}\b.*")  # torch_npu's name for the kind of a code is not a sentence of its own
# A sentence of a message that says what to do, and is neither a question nor a URL.
TO_DO = (
    r"(?:please|try|make sure|ensure|consider|install|upgrade|downgrade|increase|decrease|reduce|lower|raise|set|unset"
    r"|enable|disable|pass|specify|provide|run|rerun|remove|delete|add|convert|check|verify|replace|switch|call|cast"
    r"|rebuild|reinstall|increasing|decreasing|(?:you|it) (?:can|should|must|need to|have to|may)"
    r"|to (?:fix|avoid|resolve|disable|enable|use|continue|suppress|allow|do) [^,.]{3,60}, )\b"
)
INSTRUCTION = re.compile(rf"(?:(?<=[.!;,:] )|(?<=[.!;])|^)\s*(?P<said>{TO_DO}[^\n]*?)(?=[.!;](?:\s|$)|$)", re.I | re.M)
ELSEWHERE = re.compile(r"(?i)please (?:track|see|refer|report|file|open|visit|contact)\b")  # not immediately useful
REPORT = re.compile(r"(?i)\b(?:fail\w*|errors?|timed out)[ :!]*$")  # "set stream failed" says what was done
LONGEST_INSTRUCTION = 240
OTHER_LINE = re.compile(r"$|Traceback|File |\[|\(|\d|[\w.]*(?:Error|Exception)\b")
DATA = re.compile(r"/(?:datasets?|data|preprocess\w*|collat\w*|templates?)[/_.]")  # folders of code that reads data
FRAME = re.compile(r"File \"[^\"\n]*?((?:(?:site|dist)-packages/)?[\w./-]+)\"")
INSTALLED = re.compile(r"(?:site|dist)-packages/(\w+)")
NOBODY = "the calling package"
NEAR = 4000  # characters to search before a message for its traceback, and after it for instructions


def named_errors_in(text: str) -> Iterator[tuple[KnownError, int, str]]:
    """The errors of a text that name what is wrong, each with its position and the words that it is inferred from.

    >>> error, place, words = next(named_errors_in("ModuleNotFoundError: No module named 'selective_scan_cuda'"))
    >>> error.code, words
    ('cuda-module-missing', 'selective_scan_cuda')
    """
    read: set[int] = set()  # the beginnings of lines that a subject has explained
    for subject, pattern in _patterns().items():
        for match in pattern.finditer(text):
            line = text.rfind("\n", 0, match.start()) + 1
            if subject in LEAST_SPECIFIC and line in read:
                continue
            asker = _asker(text, match.start())
            name = _name(subject, match)
            if subject == "exception":
                name = f"{name}@{asker}{_part(text, match.start())}"
            around = text[max(0, match.start() - NEAR) : match.start() + NEAR]
            error, words = _error_about(subject, name, around, of_its_own=name.split(".")[0] == asker)
            if error is not None:
                to_do = instructions_in(text[match.start() : match.start() + NEAR])
                if subject == "instruction" and not to_do:
                    continue
                if error.kind != "unknown":
                    read.add(line)
                if subject in OF_WHO_ASKS and asker == NOBODY and error.kind == "reading":
                    error = replace(error, kind="class")
                worded = _worded(error, name.partition("@")[0], asker)
                yield _with_instructions(worded, to_do), match.start(), words


def _name(subject: str, match: re.Match[str]) -> str:
    groups = match.groupdict()
    if name := groups.get("name") or groups.get("name2") or groups.get("name3") or groups.get("name4"):
        return name
    between = {"conflict": " requires ", "operator": "::"}.get(subject, ".")
    name = between.join(filter(None, (groups["owner"], groups["part"])))
    if groups.get("early"):
        return f"{name}@circular"
    return f"{name}@{groups['place']}" if groups.get("place") == "unknown location" else name


def _error_about(subject: str, name: str, around: str, of_its_own: bool) -> tuple[KnownError | None, str]:
    """The first row of a subject that matches a name or a sentence, and the matching words.

    `around` is the text before and after it; `of_its_own` means that the package that asks for the name is the one that
    lacks it.
    """
    if subject in IN_WORDS:
        words = CODE.sub("x", PROPERTY.sub(r" \1", TITLE.sub("", name))) if subject != "warning" else name
        present = set(WORD.findall(words.lower()))
        read = ((row.error, row.words_in(words, present, name)) for row in _phrases(subject))
        return next(((error, phrase) for error, phrase in read if phrase), (None, ""))
    names = (f"{name}@own", name) if of_its_own else (name,)
    fitting = (row for row in named_errors(subject) if any(fnmatchcase(n, each) for n in names for each in row.names))
    error = next((row.error for row in fitting if re.search(row.beside, around)), None)
    return error, name.partition("@")[0]


@dataclass(frozen=True)
class _Phrases:
    """Phrases of a row as one pattern, tried only where one of `words` is in a sentence; None where they have none."""

    pattern: re.Pattern[str]
    words: frozenset[str] | None
    error: KnownError
    beside: str

    def words_in(self, words: str, present: set[str], sentence: str) -> str:
        """The first phrase that a sentence contains; empty if there is none."""
        if self.words is not None and self.words.isdisjoint(present):
            return ""
        match = self.pattern.search(words)
        return match[0] if match and re.search(self.beside, sentence) else ""


@functools.cache
def _phrases(subject: str) -> list[_Phrases]:
    """The rows of a subject, with phrases without a whole word kept separate."""
    rows = []
    for row in named_errors(subject):
        whole = {phrase: max(WHOLE_WORD.findall(phrase.lower()), key=len, default="") for phrase in row.names}
        for words in (frozenset(filter(None, whole.values())), None):
            phrases = [phrase for phrase in row.names if bool(whole[phrase]) == (words is not None)]
            if phrases:
                pattern = re.compile("|".join(map(_phrase, phrases)), re.IGNORECASE)
                rows.append(_Phrases(pattern, words, row.error, row.beside))
    return rows


def _phrase(phrase: str) -> str:
    """A phrase as a pattern of whole words, in which `*` completes a word, and ` * ` stands for any words in between.

    >>> bool(re.search(_phrase("fail* to * file"), "failed to open the file"))
    True
    >>> bool(re.search(_phrase("parse"), "sparse"))
    False
    """
    words = re.escape(phrase).replace(r"\ \*\ ", r"\b.*?\b").replace(r"\*", r"\w*").replace(r"\ ", r"\s+")
    begin = r"(?<!\w)" if phrase[0].isalnum() else ""
    return begin + words + (r"(?!\w)" if phrase[-1].isalnum() else "")


def _with_instructions(error: KnownError, instructions: list[str]) -> KnownError:
    """An inferred explanation, with the message's own instructions as the first remedy."""
    if error.strength == "exact" or error.kind == "unknown":
        return error
    return replace(error, remedies=(*(f"The message itself says: {each}" for each in instructions), *error.remedies))


def instructions_in(message: str) -> list[str]:
    """The first two sentences of a message that say what to do. The message ends at a line of another one.

    >>> instructions_in("ValueError: the bucket is too small. Please increase `bucket_size`.")
    ['Please increase `bucket_size`']
    """
    lines = [line.strip() for line in message.split("\n")[:4]]
    end = next((index for index, line in enumerate(lines) if index and OTHER_LINE.match(line)), len(lines))
    sentences = (match["said"].strip() for match in INSTRUCTION.finditer("\n".join(lines[:end])))
    return [
        text
        for text in sentences
        if 12 <= len(text) <= LONGEST_INSTRUCTION and not (REPORT.search(text) or ELSEWHERE.match(text))
    ][:2]


def _asker(text: str, place: int) -> str:
    """The package whose code is last in the traceback above a message: installed, or in a framework's source tree."""
    for frame in reversed(FRAME.findall(text, max(0, place - NEAR), place)):
        if installed := INSTALLED.search(frame):
            return str(installed[1])
        if folder := next((part for part in reversed(str(frame).split("/")) if part in frameworks()), None):
            return folder
    return NOBODY


def _part(text: str, place: int) -> str:
    """The purpose of the code that raised an exception, if its path shows that it reads data."""
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
