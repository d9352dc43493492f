"""Recognise the codes of torch_npu, CANN and HCCL in a line, and say what their parts mean where no row is known."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from npukit.facts.errors import KnownError, known_errors

TORCH_NPU = re.compile(r"\b(ERR(\d{2})(\d{3}))\b")
CANN = re.compile(r"\b([EW][A-Z1-9]\d{4})\b")
# A bare number of six digits may be anything; behind one of these words, or alone on its line, it is a return code.
RETURN_CODE = re.compile(
    r"(?:\b(?:err\w*|\w*status|code|ret\w*|result|no|fail\w*|with)"
    r"(?:[\s:=\[\"'(,]|code|is|was|no|returned|value){1,6}"
    r"|(?:错误代?码|返回[码值])[ :\uff1a=为是\[]{0,4})(\d{6})(?![0-9A-Za-z_])",
    re.IGNORECASE,
)
ALONE = re.compile(r"^[ \t]*(\d{6})[ \t]*$", re.MULTILINE)
HCCL_RESULT = re.compile(
    r"\bhccl\w*\b.{0,80}?(?:\b(?:code|ret\w*|result|error)[ :=\[]{1,4}(?:is )?|-> |(?<=SUCCESS) \()(\d{1,2})\b",
    re.IGNORECASE,
)
NAME = re.compile(r"\b((?:ACL|ACLNN|HCCL)_E\w+)\b")

MODULES = {"00": "torch_npu itself", "01": "its operators", "02": "its distributed part", "03": "its graph mode"}
MODULES |= {"04": "its profiler", "99": "an unknown part"}
KINDS = {
    "001": ("an argument was refused", "Correct the argument that the message names."),
    "002": ("a value has the wrong type", "Convert the value to the type that the message names."),
    "003": ("a value is out of range", "Correct the value that the message names."),
    "004": ("a pointer is empty", "Check that the tensor or object exists before the call."),
    "005": ("an internal check failed", "Update torch_npu within its torch version; keep the log for a report."),
    "006": ("memory could not be allocated", "Lower the batch size, or free tensors before this step."),
    "007": ("something is not supported", "Replace the operator, dtype or option that the message names."),
    "008": (
        "something was not found",
        "Check the path or name in the message, and that CANN's set_env.sh was sourced.",
    ),
    "009": ("something is not available", "Run `npukit doctor` and fix what it shows first."),
    "010": ("a call to the operating system failed", "Check disk space, open files (`ulimit -n`) and permissions."),
    "011": ("something took too long", "Look for the rank that stopped or is slow before raising the limit."),
    "012": ("permission was refused", "Run `npukit doctor`: it checks the permissions on the device files."),
    "100": ("a call to CANN's runtime failed", "Look up the return code in the same message: `npukit explain CODE`."),
    "200": ("a call to HCCL failed", "Look up the HCCL code or EI code in the same message: `npukit explain CODE`."),
    "300": ("a call to the graph engine failed", "Look up the E code in the same message: `npukit explain CODE`."),
}
CANN_PARTS = {
    **dict.fromkeys(("E4", "E5", "E9", "EA", "EB"), "operator compilation"),
    **dict.fromkeys(("E6", "E7", "E8", "EZ"), "an operator"),
    "E1": "the graph engine",
    "E2": "the fusion engine",
    "E3": "the AI CPU",
    "EC": "auto-tuning",
    "EE": "the runtime",
    "EF": "automatic deployment",
    "EH": "the ACL interface",
    "EI": "HCCL",
    "EJ": "HCCL's helper process",
    "EK": "the profiler",
    "EL": "the driver",
    "EN": "image processing",
    "EP": "the dump tool",
}


def codes_in(text: str) -> Iterator[tuple[str, int]]:
    """The codes that a text shows, each with the offset of its first place."""
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


def is_return_code(code: str) -> bool:
    """Whether a code only says that a call failed; E codes of CANN and messages say more."""
    return code.isdigit() or code.startswith(("HCCL ", "ERR"))


def composed(code: str) -> KnownError | None:
    """What the parts of a code tell where npukit has no row for it.

    >>> composed("ERR02009").meaning
    "torch_npu reports from its distributed part: something is not available"
    """
    if match := TORCH_NPU.fullmatch(code):
        kind, remedy = KINDS.get(match[3], ("an error of an unknown kind", "Read the message beside the code."))
        part = MODULES.get(match[2], MODULES["99"])
        return _general(code, f"torch_npu reports from {part}: {kind}", remedy)
    if CANN.fullmatch(code) and code[:2] in CANN_PARTS:
        action = "Read the message beside the code; set ASCEND_GLOBAL_LOG_LEVEL=1 and run again for more of it."
        return _general(code, f"CANN reports an error in {CANN_PARTS[code[:2]]}", action)
    return None


def _general(code: str, meaning: str, remedy: str) -> KnownError:
    cause = "npukit has no entry for this exact code; this is what its parts mean."
    return KnownError(code, meaning, (cause,), (remedy,), example=code, kind="general")


def _says_little(pattern: re.Pattern[str], code: str) -> bool:
    """Six characters that look like a code may be anything; torch_npu writes ERR99999 after every exception."""
    return code == "ERR99999" or (pattern is CANN and code not in known_errors())


def _stands_out(text: str, match: re.Match[str]) -> bool:
    """Whether it is written as codes are: at the start of its line, before a colon, or as an inner error (E?9999)."""
    begins_line = not text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip()
    if match[1] == "ERR99999" or begins_line:
        return begins_line
    return match[1].endswith("9999") or text[match.end() : match.end() + 1] in (":", ")")


@functools.cache
def _codes_by_name() -> dict[str, str]:
    return {error.name: code for code, error in known_errors().items()}
