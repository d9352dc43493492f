"""Settings and arguments that request CUDA features (NPK406): attn_implementation="flash_attention_2", num_gpus=1.

facts/cuda_settings.yaml lists them; facts/libraries.yaml says which libraries have devices of their own.
"""

from __future__ import annotations

import ast
import re

from npukit.facts.cuda_settings import CudaSetting, cuda_settings
from npukit.facts.libraries import own_devices
from npukit.migrate.dataflow import imports_own_devices, library_without_npus
from npukit.migrate.decision import cuda_only_evidence
from npukit.migrate.rule import Document, Findings, Goal, PythonFile, Severity, Where, described
from npukit.source.nodes import last_name

_CODE = {name: setting for name, setting in cuda_settings().items() if not setting.data_only}
_DATA = {name: setting for name, setting in cuda_settings().items() if not setting.imports}
_rule = described("NPK406")
_rule.words = (*(f" {name} " for name in _CODE), "_attn_implementation")
_rule.modules = frozenset(module.partition(".")[0] for module in own_devices())
_rule.text_words = tuple(_DATA)

_CUDA = re.compile(r"""["'](?:cuda\b|gpu["']|CUDAExecutionProvider)""", re.IGNORECASE)
_OTHERS = "The library has devices of its own, and NPUs are not among them."
_ON_CPU = "Let it use the CPU, or take a library that supports NPUs."
_LINE = re.compile(rf"""["']?\b({"|".join(_DATA)})["']?[ \t]*[:=][ \t]*["']?([\w:]+)""")
_OPTION = re.compile(rf"""--({"|".join(name for name in _DATA if name in _CODE)})(?:[ \t]+|=)["']?(\w+)""")


@_rule.on_text("json", "toml", "yaml")
def check_data(document: Document, goal: Goal) -> Findings:
    for match in _LINE.finditer(document.text):
        setting = _DATA[match[1]]
        if document.kind == "yaml" and setting.data_only:
            continue  # NPK150 changes these
        yield from _findings(setting, match[2], (document, match.span()))


@_rule.on_text("shell")
def check_options(document: Document, goal: Goal) -> Findings:
    """Report options of commands: --tf32 True, --optim=adamw_bnb_8bit"""
    for match in _OPTION.finditer(document.text):
        yield from _findings(_CODE[match[1]], match[2], (document, match.span()))


@_rule.on(ast.keyword, says=_CODE)
def check_argument(keyword: ast.keyword, file: PythonFile, goal: Goal) -> Findings:
    """Report arguments: Trainer(accelerator="gpu"), ray.remote(num_gpus=1), profile(use_cuda=True)"""
    setting, call = _CODE.get(keyword.arg or ""), file.parent(keyword)
    if setting is None or not isinstance(call, ast.Call):
        return
    if not setting.calls or last_name(call.func) in setting.calls:
        yield from _set(setting, keyword.value, keyword, file, file.source(keyword))


@_rule.on(ast.Constant, says=_CODE)
def check_item(key: ast.Constant, file: PythonFile, goal: Goal) -> Findings:
    """Report items: kwargs["load_in_8bit"] = True"""
    target = file.parent(key)
    node = file.parent(target) if isinstance(target, ast.Subscript) else None
    if isinstance(node, ast.Assign) and node.targets[0] is target and (setting := _setting(key)):
        yield from _set(setting, node.value, node, file)


@_rule.on(ast.Attribute, says=("attn_implementation", "_attn_implementation"))
def check_attribute(target: ast.Attribute, file: PythonFile, goal: Goal) -> Findings:
    """Report attributes: config._attn_implementation = "flash_attention_2" """
    node = file.parent(target)
    if isinstance(node, ast.Assign) and node.targets[0] is target:
        yield from _set(_CODE["attn_implementation"], node.value, node, file)


@_rule.on(ast.Dict)
def check_table(table: ast.Dict, file: PythonFile, goal: Goal) -> Findings:
    """Report dictionaries: AutoModel.from_pretrained(path, **{"attn_implementation": "flash_attention_2"})"""
    for key, value in zip(table.keys, table.values, strict=True):
        if key and (setting := _setting(key)):
            yield from _set(setting, value, key, file)


def _setting(key: ast.expr) -> CudaSetting | None:
    return _CODE.get(key.value) if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def _set(setting: CudaSetting, value: ast.expr, node: ast.AST, file: PythonFile, text: str = "") -> Findings:
    """Yield the finding of a setting in code, unless another library's or in a file that supports NPUs."""
    if setting.imports and ("NPU" in file.text or not setting.is_for(file.imported)):
        return
    value = value.body if isinstance(value, ast.IfExp) else value  # "gpu" if torch.cuda.is_available() else "cpu"
    if isinstance(value, ast.Constant):
        yield from _findings(setting, str(value.value), (file, node), text)
    elif setting.computed:
        yield from _findings(setting, file.source(value), (file, node), text)


@_rule.on(ast.Module)
def check_library(module: ast.Module, file: PythonFile, goal: Goal) -> Findings:
    """Report devices of other libraries: RWKV(path, strategy="cuda fp16")"""
    for call in file.of_type(ast.Call) if imports_own_devices(file) else ():
        library, text = library_without_npus(call, file), file.source(call)
        if library and _CUDA.search(text) and not cuda_only_evidence(call, file):
            remedy = f"Use {own_devices()[library]}." if own_devices()[library] else _ON_CPU
            severity = Severity.note if "CPUExecutionProvider" in text else None
            what = f"{library} is told to use CUDA"
            yield _rule.finding((file, call), what, why=_OTHERS, remedy=remedy, severity=severity)


def _findings(setting: CudaSetting, value: str, where: Where, text: str = "") -> Findings:
    if setting.requests_cuda(value):
        severity = Severity.note if setting.is_note(value) else None
        yield _rule.finding(
            where, setting.what, why=setting.why, remedy=setting.remedy, evidence=text, severity=severity
        )
