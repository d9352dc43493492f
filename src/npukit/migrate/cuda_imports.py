"""Files that no NPU machine can import: they need flash-attn, Triton or another library for CUDA, or load the project's
own kernels, or import a file that does.

stays:    from flash_attn import flash_attn_func    import triton    ops = InferenceOpsLoader().load()
          wkv = load("wkv", sources=["wkv.cu"])     from ours.triton_ops import kernel; ... kernel[grid](x)
migrated: try: import flash_attn ...                from ours.triton_ops import HAS_TRITON
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from npukit.facts.libraries import for_cuda
from npukit.migrate.patches import is_test
from npukit.source import PythonFile
from npukit.source.names import file_of

LIBRARIES = for_cuda("needed")
_OF_TRITON = re.compile(r"(?:^|\.)triton(?:\.|$)")
_IMPORT = re.compile(  # with the end of the line before, which is found far sooner than a beginning
    r"\n(?:from[ \t]+(?P<module>[\w.]+)[ \t]+import[ \t]+(?P<names>\([^)]*|[^\n#]*)|import[ \t]+(?P<whole>[\w.]+))"
)
_ONLY_ASKED = re.compile(r"\W*(?:(?:HAVE|HAS|IS|check|is|has)_\w+|testing)\W*")
_LOADED = re.compile(r"^\w+ = (\w+)\(\)\.load\(\)", re.MULTILINE)
_BUILT = re.compile(r"^(\w+) = (?:\w+\.)*load(?:_inline)?\(.*(?:\n[ \t].*)*", re.MULTILINE)
FROM_CUDA = re.compile(r"\.cu[\"']|\bcuda_sources\b|\bwith_cuda=True")
_MOCKED = re.compile(r"^[ \t]+((?:\w+ = )*\w+) = MagicMock\(\)", re.MULTILINE)
_TRIED = re.compile(r"^[ \t]+import (?P<module>[\w.]+)(?: as (?P<name>\w+))?", re.MULTILINE)
_LAUNCH = re.compile(r"(\w+)\[[^\]\n]*$")
_LONGEST_LAUNCH = 200
_ENTRY = re.compile(r"(?:test|bench)")
_loads_nothing: set[Path] = set()  # with all that they import; found once, as most tests import most of a project


@lru_cache(maxsize=8)
def needed_to_import(file: PythonFile) -> str:
    """The library or kernels for CUDA without which a file cannot be imported.

    >>> needed_to_import(file)  # from flash_attn import flash_attn_func
    'flash_attn'
    """
    root, path, text = file.names.root, file.path, file.text
    if needed := _library(text, path, root) or _launched(text, path, root):
        return needed
    beside = _library_beside(text, path, root) if _ENTRY.match(path.stem) else ""
    return beside or _loaded_on_the_way(text, path, root)


def mocked_library(file: PythonFile) -> str:
    """The library that a file has only mocks of where it is missing: except ImportError: te = MagicMock()

    Not Triton, whose kernels seldom are all of a file; not in tests, which run with what they mock.
    """
    if "MagicMock()" not in file.text or is_test(file.path):
        return ""
    mocked = {name for line in _MOCKED.findall(file.text) for name in line.split(" = ")}
    tried = (each for each in _TRIED.finditer(file.text) if (each["name"] or each["module"]) in mocked)
    found = (each["module"].split(".")[0] for each in tried if LIBRARIES.match(each["module"]))
    return next((each for each in found if each != "triton"), "")


@lru_cache(maxsize=64)
def _imports(text: str) -> list[tuple[str, str]]:
    """The modules that are imported whatever holds, each with what is taken from it."""
    return [(match["module"] or match["whole"], match["names"] or "") for match in _IMPORT.finditer(f"\n{text}")]


def _library(text: str, path: Path, root: Path | None) -> str:
    for module, names in _imports(text):
        if LIBRARIES.match(module) and (names or not _only_asks(module, names, text)):
            return module.split(".")[0]
        if _OF_TRITON.search(module) and not _only_asks(module, names, text) and _needs_triton(module, path, root):
            return "triton"
    return ""


def _only_asks(module: str, names: str, text: str) -> bool:
    """from triton_ops import HAS_TRITON; import triton, for triton.testing alone, which needs no kernel"""
    if names:
        return all(_ONLY_ASKED.fullmatch(name) for name in re.split(r",\s*(?=\w)", names.partition(" as ")[0]))
    return module == "triton" and not re.search(r"\btriton\.(?!testing\b)|\btl\.", text)


def _needs_triton(module: str, path: Path, root: Path | None) -> bool:
    """Whether a folder of the project with Triton's kernels has none of them without Triton."""
    where = file_of(module, path, root)
    return where is None or re.search(r"^(?:import triton\b|if \w*TRITON)", _text(where), re.MULTILINE) is not None


def _launched(text: str, path: Path, root: Path | None) -> str:
    """Triton, where the kernels of another file are launched, which cannot be imported without it: kernel[grid](x)"""
    calls = (each.start() for each in re.finditer(r"\]\(", text))
    launched = {found[1] for at in calls if (found := _LAUNCH.search(text, max(at - _LONGEST_LAUNCH, 0), at))}
    for module, names in _imports(text) if launched else ():
        if launched.isdisjoint(re.findall(r"\w+", names)):
            continue
        where = file_of(module, path, root)
        if where is not None and re.search(r"^import triton\b", _text(where), re.MULTILINE):
            return "triton"
    return ""


def _library_beside(text: str, path: Path, root: Path | None) -> str:
    """What the helpers need that stand beside a test: from gtp_test_utils import run"""
    beside = (each for each in _files(text, path, root) if each.parent == path.parent)
    return next((needed for each in beside if (needed := _library(_text(each), each, root))), "")


def _loader(text: str, path: Path, root: Path | None) -> str:
    found = _LOADED.findall(text) if "().load()" in text else ()
    loaders = (each for each in found if loads_cuda(each, text, path, root))
    built = _BUILT.finditer(text) if "cpp_extension" in text else ()
    names = (*loaders, *(each[1] for each in built if FROM_CUDA.search(each[0])))
    return f"{names[0]}'s kernels" if names else ""


def loads_cuda(loader: str, text: str, path: Path, root: Path | None) -> bool:
    """class InferenceOpsLoader(KernelLoader): REGISTRY = [InferenceOpsCudaExtension]"""
    imported = re.search(rf"^from[ \t]+([\w.]+)[ \t]+import\b[^#\n]*\b{loader}\b", text, re.MULTILINE)
    where = file_of(imported[1], path, root) if imported else None
    body = re.search(rf"^class {loader}\b.*\n((?:[ \t]+.*\n|\n)*)", _text(where), re.MULTILINE) if where else None
    return bool(body and re.search("cuda", body[1], re.IGNORECASE) and not re.search("npu|cpu", body[1], re.IGNORECASE))


def _loaded_on_the_way(text: str, path: Path, root: Path | None) -> str:
    seen, queue = {path}, [(text, path)]
    while queue:
        text, now = queue.pop()
        if needed := _loader(text, now, root):
            return needed
        more = set(_files(text, now, root)) - seen - _loads_nothing
        seen |= more
        queue += [(_text(each), each) for each in more]
    _loads_nothing.update(seen - {path})
    return ""


def _files(text: str, path: Path, root: Path | None) -> list[Path]:
    found = (file_of(module, path, root) for module, _ in _imports(text))
    return [each for each in found if each is not None]


@lru_cache(maxsize=64)
def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
