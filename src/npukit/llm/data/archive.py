"""Zip files with the media of a data set, unpacked once into npukit's cache."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
import zlib
from pathlib import Path

from npukit.cache import cache_folder, complete_or_absent, only_builder
from npukit.errors import NpukitError


def unpacked(archive: Path) -> Path:
    """The folder with the unpacked files.

    >>> unpacked(Path("videos.zip")) / "Test_Videos"
    """
    stat = archive.stat()
    name = hashlib.sha256(repr((str(archive.resolve()), stat.st_size, stat.st_mtime_ns)).encode()).hexdigest()
    place = cache_folder() / "archives" / name
    folder = place / "files"
    with only_builder(place, lambda: None):
        if not folder.is_dir():
            _unpack(archive, folder)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as opened:
            size, free = sum(file.file_size for file in opened.infolist()), shutil.disk_usage(folder.parent).free
            if size > free * 0.9:
                raise NpukitError(
                    f"{archive} takes {size >> 20:,} MiB unpacked, and {folder.parent} has {free >> 20:,} MiB left: "
                    "make room, or unpack it elsewhere and set data.media_dir."
                )
            with complete_or_absent(folder) as beside:
                opened.extractall(beside)  # this filter skips paths that lead outside
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise NpukitError(f"{archive} is not a zip file that can be unpacked ({error}): download it again.") from error
