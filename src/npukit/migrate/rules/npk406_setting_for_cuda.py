"""Settings that request CUDA features: 8-bit optimizers, bitsandbytes, TF32, devices, GPUs for Ray.

bad (config.json):
    {"device": "cuda", "optim": "paged_adamw_8bit"}

good (config.json):
    {"device": "auto", "optim": "adamw_torch"}
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Rule, place_in
from npukit.report import Finding, Severity
from npukit.source import Document, Place, PythonFile

rule = Rule(
    "NPK406",
    "setting-for-cuda",
    words=("load_in_4bit", "load_in_8bit", "tf32", "8bit", "bnb", "paged", "nccl", "cuda", "accelerator", "num_gpus"),
    severity=Severity.warning,
    why="The setting requests something that only CUDA provides.",
    remedy="Change the setting for NPUs.",
    effort=Effort(15, 2),
    supersedes=("NPK150",),
)

_QUANTIZED = ("bitsandbytes quantization requires CUDA", "Load the model in bf16, with LoRA if memory is short.")
_OPTIMIZER = (
    "bitsandbytes optimizers require CUDA",
    "Use adamw_torch, or adamw_torch_npu_fused in transformers.",
)
_RAY = "Ray schedules NPUs as a resource of their own, NPU, and sets ASCEND_RT_VISIBLE_DEVICES for it."
_LIGHTNING = "Pass an Accelerator of your own for NPUs: Lightning has none built in."
_SETTINGS = {
    "load_in_4bit": ("true", *_QUANTIZED),
    "load_in_8bit": ("true", *_QUANTIZED),
    "optim": (r"\w*(?:8bit|bnb|paged)\w*", *_OPTIMIZER),
    "tf32": ("true", "TF32 is available on CUDA only", "Remove it. NPUs have torch.npu.matmul.allow_hf32."),
    "accelerator": ("gpu|cuda", "Lightning trains on CUDA with this accelerator", _LIGHTNING),
}
_IN_DATA = {
    **_SETTINGS,
    "device": (r"cuda(?::\d+)?", "a CUDA device is hard-coded", "Use npu, or let the code choose the device."),
    "backend": ("nccl", "the NCCL backend is hard-coded", "Use hccl, or let the code choose the backend."),
}
_BITSANDBYTES = "Its kernels are CUDA code. Newer versions have experimental NPU support for NF4 only."
_WHY = {
    "load_in_4bit": _BITSANDBYTES,
    "load_in_8bit": _BITSANDBYTES,
    "optim": _BITSANDBYTES,
    "accelerator": "CUDA is not available on an NPU machine.",
    "tf32": "TF32 is a data type of NVIDIA tensor cores. transformers rejects it elsewhere.",
    "device": "CUDA and NCCL are not available on an NPU machine.",
    "backend": "CUDA and NCCL are not available on an NPU machine.",
}
_LINE = re.compile(rf"""["']?\b({"|".join(_IN_DATA)})["']?[ \t]*[:=][ \t]*["']?([\w:]+)""")

_OPTION = re.compile(rf"""--({"|".join(_SETTINGS)})(?:[ \t]+|=)["']?(\w+)""")


@rule.on_text("json", "toml", "yaml")
def check_data(document: Document, goal: Goal) -> Iterator[Finding]:
    for match in _LINE.finditer(document.text):
        name, value = match.groups()
        if document.kind == "yaml" and name not in _SETTINGS:
            continue  # NPK150 changes these
        if finding := _finding(name, value, _IN_DATA, place_in(document, *match.span()), match[0]):
            yield finding


@rule.on_text("shell")
def check_options(document: Document, goal: Goal) -> Iterator[Finding]:
    """--tf32 True, --optim=adamw_bnb_8bit"""
    for match in _OPTION.finditer(document.text):
        if finding := _finding(match[1], match[2], _SETTINGS, place_in(document, *match.span()), match[0]):
            yield finding


@rule.on(ast.keyword)
def check_argument(keyword: ast.keyword, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if keyword.arg == "num_gpus" and _schedules(keyword, file):
        what = "Ray waits for a GPU, which an NPU machine never has"
        yield rule.finding((file, keyword), what, why=_RAY, remedy='Ask for resources={"NPU": 1} there.')
    if keyword.arg in _SETTINGS and isinstance(keyword.value, ast.Constant):
        value, place = str(keyword.value.value), file.place(keyword)
        if finding := _finding(keyword.arg, value, _SETTINGS, place, file.source(keyword)):
            yield finding


@rule.on(ast.Assign)
def check_item(node: ast.Assign, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    """kwargs["load_in_8bit"] = True"""
    target = node.targets[0]
    name = target.slice.value if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) else None
    value = str(node.value.value) if isinstance(node.value, ast.Constant) else ""
    if name in _SETTINGS and (finding := _finding(str(name), value, _SETTINGS, file.place(node), file.source(node))):
        yield finding


def _schedules(keyword: ast.keyword, file: PythonFile) -> bool:
    """@ray.remote(num_gpus=1), Worker.options(num_gpus=n)"""
    call = file.parent(keyword)
    asks = isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("remote", "options")
    return asks and getattr(keyword.value, "value", 1) != 0 and file.imports("ray") and "NPU" not in file.text


def _finding(
    name: str, value: str, settings: Mapping[str, tuple[str, str, str]], place: Place, text: str
) -> Finding | None:
    pattern, what, remedy = settings[name]
    if not re.fullmatch(pattern, value, re.IGNORECASE):
        return None
    return rule.finding(place, what, why=_WHY[name], remedy=remedy, evidence=text)
