"""Recognise codes of torch_npu, CANN and HCCL in a line, and explain the parts of codes that have no row."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from npukit.facts.errors import Kind, KnownError, cann_titles, code_kinds, known_errors

TORCH_NPU = re.compile(r"\b(ERR(\d{2})(\d{3}))\b")
CANN = re.compile(r"\b([EW][A-Z1-9]\d{4})\b")
# A bare six-digit number can be anything. After one of these words, or alone on its line, it is a return code.
RETURN_CODE = re.compile(
    r"(?:\b(?:err\w*|\w*status|code|ret\w*|result|no|fail\w*|with)"
    r"(?:[\s:=\[\"'(,]|code|is|was|no|returned|value){1,6}"
    r"|(?:错误代?码|返回[码值])[ :\uff1a=为是\[]{0,4})(\d{6})(?![0-9A-Za-z_])",
    re.IGNORECASE,
)
ALONE = re.compile(r"^[ \t]*(\d{6})[ \t]*$", re.MULTILINE)
HCCL_RESULT = re.compile(
    r"\bhccl\w*\b.{0,80}?(?:\b(?:code|ret\w*|result|error)[ :=\[]{1,4}(?:is )?|-> |(?<=SUCCESS) \()"
    r"(?:0x0*)?(\d{1,2})\b",
    re.IGNORECASE,
)
NAME = re.compile(r"\b((?:ACL|ACLNN|HCCL)_E\w+)\b")
CALLED_A_CODE = re.compile(r"(?i)err(?:or)?[ _]?code\W{1,5}$")  # TBE's compiler writes 'errCode': 'E80003'
UNKNOWN = ("an error", "Read the message beside the code; set ASCEND_GLOBAL_LOG_LEVEL=1 and run again for more of it.")


def codes_in(text: str) -> Iterator[tuple[str, int]]:
    """The codes in a text, each with the offset of its first occurrence."""
    first: dict[str, int] = {}
    for pattern in (TORCH_NPU, CANN, RETURN_CODE, ALONE, HCCL_RESULT, NAME):
        for match in pattern.finditer(text):
            code = match[1]
            if pattern is HCCL_RESULT:
                code = f"HCCL {code}"
            elif pattern is NAME:
                code = _codes_by_name().get(code, "")
            elif _says_little(pattern, code) and not _stands_out(text, match):
                continue
            if code:
                first.setdefault(code, match.start())
    yield from first.items()


def is_code(code: str) -> bool:
    """Whether it is a code of torch_npu, CANN or HCCL, rather than one of our names for messages without a code.

    >>> is_code("EI0002"), is_code("out-of-memory")
    (True, False)
    """
    return not code.islower()


def is_return_code(code: str) -> bool:
    """Whether a code only says that a call failed. CANN's E codes and messages are more specific."""
    return code.isdigit() or code.startswith(("HCCL ", "ERR"))


def composed(code: str) -> KnownError | None:
    """The meaning of the parts of a code for which npukit has no row.

    >>> composed("ERR02009").meaning
    "torch_npu reports from its distributed part: something is not available"
    """
    if match := TORCH_NPU.fullmatch(code):
        parts, kinds = code_kinds("torch_npu")
        kind, remedy = kinds.get(match[3], ("an error of an unknown kind", "Read the message beside the code."))
        return _general(code, f"torch_npu reports from {parts.get(match[2], parts['99'])}: {kind}", remedy)
    parts, kinds = code_kinds("cann")
    if not CANN.fullmatch(code) or code[:2] not in parts:
        return None
    title = cann_titles().get(code, "")
    kind, remedy = next((kinds[beginning] for beginning in kinds if title.startswith(beginning)), UNKNOWN)
    return _general(code, f"CANN reports from {parts[code[:2]]}: {kind}", remedy)


def _general(code: str, meaning: str, remedy: str) -> KnownError:
    cause = "npukit has no entry for this exact code; this is what its parts mean."
    kind: Kind = "wrapper" if code.endswith("9999") else "general"  # an inner error says that something below it failed
    return KnownError(code, meaning, (cause,), (remedy,), example=code, kind=kind)


def _says_little(pattern: re.Pattern[str], code: str) -> bool:
    """Whether a code says little: six characters can be anything, and torch_npu appends ERR99999 to every exception."""
    return code == "ERR99999" or (pattern is CANN and code not in known_errors())


def _stands_out(text: str, match: re.Match[str]) -> bool:
    """Whether it is written as codes are: begins its line, before a colon, called a code, or an inner error."""
    begins_line = not text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip()
    if match[1] == "ERR99999" or begins_line:
        return begins_line
    if CALLED_A_CODE.search(text[max(0, match.start() - 16) : match.start()]):
        return True
    return match[1].endswith("9999") or text[match.end() : match.end() + 1] in (":", ")")


@functools.cache
def _codes_by_name() -> dict[str, str]:
    return {error.name: code for code, error in known_errors().items()}
