"""Settings that request CUDA features: 8-bit optimizers, bitsandbytes, TF32, FlashAttention, devices, GPUs for Ray.

bad (config.json):
    {"device": "cuda", "optim": "paged_adamw_8bit"}

good (config.json):
    {"device": "auto", "optim": "adamw_torch"}
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from npukit.facts.libraries import own_devices
from npukit.migrate.decision import for_cuda_only
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Rule, place_in
from npukit.migrate.sinks import imports_own_devices, library_without_npus
from npukit.report import Finding, Severity
from npukit.source import Document, Place, PythonFile

_MORE = ("CUDAExecutionProvider", "flash_attention")
rule = Rule(
    "NPK406",
    "setting-for-cuda",
    words=(
        "load_in_4bit",
        "load_in_8bit",
        "tf32",
        "8bit",
        "bnb",
        "paged",
        "nccl",
        "cuda",
        "accelerator",
        "num_gpus",
        *_MORE,
    ),
    severity=Severity.warning,
    why="The setting requests something that only CUDA provides.",
    remedy="Use what works on NPUs: sdpa for attention, adamw_torch for 8-bit optimizers, bf16 for quantized weights.",
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
_FLASH = "Use sdpa, which becomes NPU flash attention. flash_attention_2 also works with transformers 4.51 or newer."
_SETTINGS = {
    "attn_implementation": (r"flash_attention_\d", "FlashAttention is CUDA code", _FLASH),
    "use_flash_attention_2": ("true", "FlashAttention is CUDA code", _FLASH),
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
_PACKAGE = "The package flash-attn cannot be installed on an NPU machine; newer versions of transformers do without it."
_WHY = {
    "attn_implementation": _PACKAGE,
    "use_flash_attention_2": _PACKAGE,
    "load_in_4bit": _BITSANDBYTES,
    "load_in_8bit": _BITSANDBYTES,
    "optim": _BITSANDBYTES,
    "accelerator": "CUDA is not available on an NPU machine.",
    "tf32": "TF32 is a data type of NVIDIA tensor cores. transformers rejects it elsewhere.",
    "device": "CUDA and NCCL are not available on an NPU machine.",
    "backend": "CUDA and NCCL are not available on an NPU machine.",
}
_CUDA = re.compile(r"""["'](?:cuda\b|gpu["']|CUDAExecutionProvider)""", re.IGNORECASE)
_OTHERS = "The library has devices of its own, and NPUs are not among them."
_ON_CPU = "Let it use the CPU, or take a library that supports NPUs."
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


@rule.on(ast.keyword, says=(*_SETTINGS, "num_gpus"))
def check_argument(keyword: ast.keyword, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if keyword.arg == "num_gpus" and _schedules(keyword, file):
        what = "Ray waits for a GPU, which an NPU machine never has"
        yield rule.finding((file, keyword), what, why=_RAY, remedy='Ask for resources={"NPU": 1} there.')
    if keyword.arg in _SETTINGS and isinstance(keyword.value, ast.Constant):
        value, place = str(keyword.value.value), file.place(keyword)
        if finding := _finding(keyword.arg, value, _SETTINGS, place, file.source(keyword)):
            yield finding


@rule.on(ast.Constant, says=_SETTINGS)
def check_item(key: ast.Constant, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    """kwargs["load_in_8bit"] = True"""
    target = file.parent(key)
    node = file.parent(target) if isinstance(target, ast.Subscript) else None
    if isinstance(node, ast.Assign) and node.targets[0] is target:
        yield from _set(key.value, node.value, node, file)


@rule.on(ast.Attribute, says=("attn_implementation", "_attn_implementation"))
def check_attribute(target: ast.Attribute, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    """config._attn_implementation = "flash_attention_2" """
    node = file.parent(target)
    if isinstance(node, ast.Assign) and node.targets[0] is target:
        yield from _set("attn_implementation", node.value, node, file)


@rule.on(ast.Dict)
def check_table(table: ast.Dict, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    """AutoModel.from_pretrained(path, **{"attn_implementation": "flash_attention_2"})"""
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and key.value in _SETTINGS:
            yield from _set(key.value, value, key, file)


def _set(name: object, value: ast.expr, node: ast.AST, file: PythonFile) -> Iterator[Finding]:
    if name in _SETTINGS and isinstance(value, ast.Constant):
        place, text = file.place(node), file.line_of(node).strip()
        if finding := _finding(str(name), str(value.value), _SETTINGS, place, text):
            yield finding


@rule.on(ast.Module)
def check_library(module: ast.Module, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    """RWKV(path, strategy="cuda fp16"), ort.InferenceSession(path, providers=["CUDAExecutionProvider"])"""
    for call in file.by_type.get(ast.Call, ()) if imports_own_devices(file) else ():
        library, text = library_without_npus(call, file), file.source(call)  # type: ignore[arg-type]
        if library and _CUDA.search(text) and not for_cuda_only(call, file):
            remedy = f"Use {own_devices()[library]}." if own_devices()[library] else _ON_CPU
            severity = Severity.note if "CPUExecutionProvider" in text else None
            what = f"{library} is told to use CUDA"
            yield rule.finding((file, call), what, why=_OTHERS, remedy=remedy, severity=severity)


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
    severity = Severity.note if value == "flash_attention_2" or name == "use_flash_attention_2" else None
    return rule.finding(place, what, why=_WHY[name], remedy=remedy, evidence=text, severity=severity)
