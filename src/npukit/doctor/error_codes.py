"""Recognise the codes of torch_npu, CANN and HCCL in a line, and say what their parts mean where no row is known."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npukit.facts.errors import KnownError, known_errors

TORCH_NPU = re.compile(r"\bERR(\d{2})(\d{3})\b")
CANN = re.compile(r"\b([EW][A-Z1-9]\d{4})\b")
# A bare number of six digits may be anything; beside one of these words, or alone, it is a return code.
RETURN_CODE = re.compile(r"(?:err\w*|codes?|ret\w*|result|status)\W{1,4}(?:is\W{1,2}|code\W{1,4}(?:is\W{1,2})?)?(\d{6})\b", re.I)
ALONE = re.compile(r"\s*(\d{6})\s*")
HCCL_RESULT = re.compile(r"\bhccl\w*\b.*?\b(?:code|ret\w*|result)\W{1,4}(?:is\W{1,2})?(\d{1,2})\b", re.I)
NAME = re.compile(r"\b((?:ACL|ACLNN|HCCL)_E\w+)\b")

MODULES = {"00": "torch_npu itself", "01": "its operators", "02": "its distributed part", "03": "its graph mode"}
MODULES |= {"04": "its profiler", "99": "an unknown part"}
KINDS = {
    "001": ("an argument was refused", "Correct the argument that the message names."),
    "002": ("a value has the wrong type", "Convert the value to the type that the message names."),
    "003": ("a value is out of range", "Correct the value that the message names."),
    "004": ("a pointer is empty", "Check that the tensor or object exists before the call."),
    "005": ("an internal check failed", "Update torch_npu within its torch version; keep the log for a report."),
    "006": ("memory could not be had", "Lower the batch size, or free tensors before this step."),
    "007": ("something is not supported", "Replace the operator, dtype or option that the message names."),
    "008": ("something was not found", "Check the path or name in the message, and that CANN's set_env.sh was sourced."),
    "009": ("something is not available", "Run `npukit doctor` and mend what it shows first."),
    "010": ("a call to the operating system failed", "Check disk room, open files (`ulimit -n`) and permissions."),
    "011": ("something took too long", "Look for the rank that stopped or is slow before raising the limit."),
    "012": ("permission was refused", "Run `npukit doctor`: it checks the permissions on the device files."),
    "100": ("a call to CANN's runtime failed", "Look up the return code in the same message: `npukit explain CODE`."),
    "200": ("a call to HCCL failed", "Look up the HCCL code or EI code in the same message: `npukit explain CODE`."),
    "300": ("a call to the graph engine failed", "Look up the E code in the same message: `npukit explain CODE`."),
}
CANN_PARTS = {
    "E1": "the graph engine", "E2": "the fusion engine", "E3": "the AI CPU", "E4": "operator compilation",
    "E5": "operator compilation", "E6": "an operator", "E7": "an operator", "E8": "an operator", "E9": "operator compilation",
    "EA": "operator compilation", "EB": "operator compilation", "EC": "auto-tuning", "EE": "the runtime",
    "EF": "automatic deployment", "EH": "the ACL interface", "EI": "HCCL", "EJ": "HCCL's helper process",
    "EK": "the profiler", "EL": "the driver", "EN": "image processing", "EP": "the dump tool", "EZ": "an operator",
}  # fmt: skip


def codes_in(line: str) -> Iterator[str]:
    """The codes that a line shows, in order of family."""
    for match in TORCH_NPU.finditer(line):
        yield match[0]
    yield from CANN.findall(line)
    yield from RETURN_CODE.findall(line)
    if alone := ALONE.fullmatch(line):
        yield alone[1]
    if hccl := HCCL_RESULT.search(line):
        yield f"HCCL {hccl[1]}"
    for name in NAME.findall(line):
        if code := _code_of_name(name):
            yield code


def composed(code: str) -> KnownError | None:
    """What the parts of a code tell where npukit has no row for it.

    >>> composed("ERR02009").meaning
    "torch_npu reports from its distributed part: something is not available"
    """
    if match := TORCH_NPU.fullmatch(code):
        kind, remedy = KINDS.get(match[2], ("an error of an unknown kind", "Read the message beside the code."))
        part = MODULES.get(match[1], MODULES["99"])
        return _general(code, f"torch_npu reports from {part}: {kind}", remedy)
    if CANN.fullmatch(code) and code[:2] in CANN_PARTS:
        action = "Read the message beside the code; set ASCEND_GLOBAL_LOG_LEVEL=1 and run again for more of it."
        return _general(code, f"CANN reports an error in {CANN_PARTS[code[:2]]}", action)
    return None


def _general(code: str, meaning: str, remedy: str) -> KnownError:
    return KnownError(code, meaning, ("npukit has no entry for this very code: only its parts are known.",), (remedy,), code)


def _code_of_name(name: str) -> str | None:
    return next((code for code, error in known_errors().items() if error.name == name), None)
