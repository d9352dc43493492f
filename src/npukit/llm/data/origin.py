"""Whether a folder came from a hub. Its files are then untrusted, and must not refer to paths outside."""

from __future__ import annotations

import re
from pathlib import Path

_LEFT_BY_DOWNLOADS = (".cache/huggingface/download", ".msc", ".mv")  # created in downloads by the hubs' own tools
_CACHED = re.compile(r"(datasets|models|spaces)--.+")
_HOSTS = ("huggingface.co", "hf.co", "modelscope.cn")


def hub_root(folder: Path) -> Path | None:
    """The root of the download or clone from a hub that contains the folder; None if there is none.

    >>> hub_root(Path("~/.cache/huggingface/hub/datasets--owner--name/snapshots/main").expanduser())
    PosixPath('/home/me/.cache/huggingface/hub/datasets--owner--name')
    """
    place = folder.resolve()
    return next((folder for folder in (place, *place.parents) if _is_from_hub(folder)), None)


def _is_from_hub(folder: Path) -> bool:
    if _CACHED.fullmatch(folder.name) or any((folder / mark).exists() for mark in _LEFT_BY_DOWNLOADS):
        return True
    try:
        config = (folder / ".git" / "config").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return any(host in config for host in _HOSTS)
