"""Downloads from the Hugging Face Hub into its own cache, with a progress bar."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from npukit.llm.hub import Kind
from npukit.report.progress import OnProgress, progress

LOOKS = 0.5  # seconds between two looks at the disk
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
OTHER_FORMATS = ("*.h5", "*.msgpack", "*.gguf", "*.onnx", "original/*", "consolidated*")


def download(kind: Kind, name: str, revision: str | None = None, weights: bool = True) -> Path:
    """Download the missing files of a model or data set, and return its folder.

    Pickles are skipped if there are safetensors. Without `weights`, all weights are skipped.

    >>> download("model", "Qwen/Qwen2-0.5B", weights=False)
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    if constants.HF_HUB_OFFLINE:
        return Path(snapshot_download(name, repo_type=kind, revision=revision))
    info: Any = HfApi().repo_info(name, repo_type=kind, revision=revision, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    ignored = _ignored(sizes, weights) if kind == "model" else []
    folder = Path(constants.HF_HUB_CACHE) / f"{kind}s--{name.replace('/', '--')}"
    there = folder / "snapshots" / info.sha
    wanted = (file for file in sizes if not any(fnmatch(file, pattern) for pattern in ignored))
    missing = sum(sizes[file] for file in wanted if not (there / file).exists())
    disable_progress_bars()  # it would show one bar for each file
    with progress(f"Downloading {name}", "bytes") as on_progress, _watched(folder, missing, on_progress):
        return Path(snapshot_download(name, repo_type=kind, revision=revision, ignore_patterns=ignored))


def _ignored(files: Iterable[str], weights: bool) -> list[str]:
    if not weights:
        return [*OTHER_FORMATS, *PICKLES, "*.safetensors"]
    has_safetensors = any(file.endswith(".safetensors") for file in files)
    return [*OTHER_FORMATS, *(PICKLES if has_safetensors else ())]


@contextmanager
def _watched(folder: Path, total: int, on_progress: OnProgress) -> Iterator[None]:
    """Show progress by the size of the files, because the library's own figures differ between versions."""
    before, done = _bytes_in(folder), threading.Event()

    def look() -> None:
        on_progress(min(_bytes_in(folder) - before, total), total)

    def watch() -> None:
        while not done.wait(LOOKS):
            look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        look()


def _bytes_in(folder: Path) -> int:
    """Return the size of complete and partial files, which may appear and disappear meanwhile."""
    sizes = 0
    for file in (folder / "blobs").glob("*"):
        try:
            sizes += file.stat().st_blocks * 512  # the library reserves the size of a file before it writes it
        except OSError:
            continue
    return sizes
