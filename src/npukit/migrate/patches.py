"""Find functions of torch.cuda that a project's tests replace. Tested code has to go on calling them there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

# patch("torch.cuda.synchronize"), patch.object(torch.cuda, "Stream"), monkeypatch.setattr(torch.cuda, "Event", ...)
_PATCH = re.compile(rb"(?:patch|setattr)(?:\.object)?\(\s*[\"']?[\w.]*\btorch\.cuda(?:\.|,\s*[\"'])(\w+)")


def is_test_file(path: Path) -> bool:
    """Return whether a file belongs to tests, judging by its name."""
    return path.name.startswith(("test_", "conftest")) or path.stem.endswith("_test")


def functions_patched_by_tests(files: Iterable[Path]) -> frozenset[str]:
    """Return the functions of torch.cuda that the tests among these files replace.

    >>> functions_patched_by_tests([Path("tests/test_memory.py")])  # with patch("torch.cuda.empty_cache") as emptied:
    frozenset({'empty_cache'})
    """
    return frozenset(name.decode() for path in files if is_test_file(path) for name in _PATCH.findall(_read(path)))


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError:
        return b""
    return data if b"torch.cuda" in data and (b"patch" in data or b"setattr" in data) else b""
