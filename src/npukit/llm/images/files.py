"""Untrusted image files: their size from the header, and their pixels. Errors say why a file cannot be used."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npukit.cache import cache_folder
from npukit.llm.data.origin import hub_root
from npukit.packages import require
from npukit.report.writing import write_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MAX_PIXELS = 64 * 2**20  # 192 MiB as RGB; a small file can claim any size
MAX_BYTES = 64 * 2**20
MAX_WORK = 16 * MAX_PIXELS  # pixels times passes: a JPEG can have another pass over all pixels for every few bytes
ROTATION = 0x0112  # the EXIF tag
MAX_READS = 2**18  # a header can have a segment for every few bytes; pixels are read in large blocks
START_OF_SCAN = b"\xff\xda"  # markers that are never inside a scan
LYING = (5, 6, 7, 8)  # values of the orientation tag that swap width and height
DATA = re.compile(r"data:[^,;]*(;[^,;]*)*;base64,", re.IGNORECASE)
LONGEST_PATH = 4096


class BadImage(Exception):
    """Why an image cannot be used, worded to follow the name of its file."""


def locate(
    source: Any, folder: Path, media_dir: Path | None = None, beside: Sequence[Path] = (), folders: bool = False
) -> Path:
    """Locate the file of an image or a video; with `folders` it may be a folder of frames. Raises BadImage.

    A relative path is looked up in `media_dir`, which it may not leave. Without one, it is looked up in `folder`, the
    working directory and the folders `beside`, of which only one may have it. Bytes, data URIs and the {bytes, path} of
    Parquet files are stored in npukit's cache, under the hash of their content.

    >>> locate("cats/1.png", Path("data"), Path("photos"))
    PosixPath('photos/cats/1.png')
    """
    if isinstance(source, dict):  # as datasets writes them
        source = next((source[name] for name in ("bytes", "path") if source.get(name) is not None), None)
    if isinstance(source, (bytes, bytearray)):
        return _store(bytes(source))
    if not isinstance(source, str) or not source:
        raise BadImage("it is neither a path nor a data URI nor bytes")
    if match := DATA.match(source):
        return _store(decoded(source[match.end() :]))
    if len(source) > LONGEST_PATH:
        return _store(decoded(source))  # ms-swift accepts base64 without a prefix
    if re.match(r"[a-zA-Z][\w+.-]+://", source):
        raise BadImage(f"{shortened(source)} is an address, and nothing is fetched: download it, and name the file")
    try:
        place = _on_disk(source, folder, media_dir, beside)
    except (OSError, RuntimeError) as error:  # an invalid file name, or an unknown user's home
        raise BadImage(f"{shortened(source)} is not a file ({str(error).partition(':')[0]})") from None
    if not place.is_file() and not (folders and place.is_dir()):
        raise BadImage(f"{shortened(source)} is not a file")
    return place


def _on_disk(source: str, folder: Path, media_dir: Path | None, beside: Sequence[Path]) -> Path:
    folders = [media_dir] if media_dir else [folder, Path(), *beside]
    places = [each / Path(source).expanduser() for each in folders]  # for an absolute path, only that path
    found = [each for each in places if each.exists()]
    place = found[0] if found else None
    if len({each.resolve() for each in found}) > 1:
        raise BadImage(f"{shortened(source)} is both {found[0]} and {found[-1]}: set data.media_dir")
    if place is None:
        where = "" if Path(source).is_absolute() else f" in {folders[0]}" if media_dir else ": set data.media_dir"
        raise BadImage(f"{shortened(source)} does not exist{where}")
    root = hub_root(folder) if Path(source).is_absolute() or not media_dir else media_dir
    if root is not None and not place.resolve().is_relative_to(root.resolve()):
        raise BadImage(f"{shortened(source)} lies outside {root}: copy it there")
    return place


def shortened(name: str) -> str:
    """An untrusted name on one line, shortened."""
    plain = " ".join(name.split())
    return plain if len(plain) <= 120 else f"{plain[:80]}…{plain[-39:]}"


def decoded(text: str, most: int | None = None) -> bytes:
    """Decode base64, up to `most` bytes; raises BadImage."""
    most = MAX_BYTES if most is None else most
    if len(text) > most * 4 // 3 + 4:
        raise BadImage(f"an image has more than {most >> 20} MiB")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadImage(f"{shortened(text)} is neither a file nor base64") from None


def _store(content: bytes) -> Path:
    """Stored compressed, as they came: pixels would take a hundred times the space."""
    file = cache_folder() / "images" / hashlib.sha256(content).hexdigest()
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, content)
    return file


class _Content(io.BufferedReader):
    """A file that may be read in a limited number of pieces."""

    left = MAX_READS

    def read(self, size: int | None = -1) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise OSError("it has too many parts")
        return super().read(size)


@contextmanager
def _opened(file: Path | bytes, name: str) -> Iterator[Any]:
    """An image whose header has been read, and which is small enough to be decoded."""
    require("PIL", extra="train")
    from PIL import Image, UnidentifiedImageError

    size = len(file) if isinstance(file, bytes) else file.stat().st_size
    if size > MAX_BYTES:
        raise BadImage(f"{name} has {size >> 20:,} MiB, more than {MAX_BYTES >> 20}: make it smaller")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's warnings about large images and unusual metadata
            raw = io.BytesIO(file) if isinstance(file, bytes) else io.FileIO(file)
            with _Content(raw) as content, Image.open(content, formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise _too_large(name, image.width, image.height)
                yield image
    except UnidentifiedImageError:
        raise BadImage(f"{name} is not an image of the formats {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError:
        raise _too_large(name) from None
    except (OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError, OverflowError, MemoryError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise BadImage(f"{name} is damaged ({reason})") from None


def _too_large(name: str, *sides: int) -> BadImage:
    size = f"{sides[0]:,} x {sides[1]:,}" if sides else "too many"
    return BadImage(f"{name} has {size} pixels, more than {MAX_PIXELS >> 20} million in all: make it smaller")


def read_size(file: Path | bytes, turns: bool, name: str | None = None) -> tuple[int, int]:
    """Width and height from the header; with `turns` after the camera's EXIF rotation, as transformers loads images."""
    with _opened(file, name or str(file)) as image:
        is_lying = turns and _has_exif(image) and image.getexif().get(ROTATION) in LYING
        return (image.height, image.width) if is_lying else image.size


def _has_exif(image: Image) -> bool:
    """Whether the header has EXIF data. Pillow would decode a whole PNG to see whether some follows the pixels."""
    return "exif" in image.info


def read_image(file: Path | bytes, turns: bool, name: str | None = None) -> Image:
    """The first frame of an image, decoded, in the file's mode."""
    from PIL import ImageOps

    with _opened(file, name or str(file)) as image:
        is_turned = turns and _has_exif(image)
        _check_passes(image, file, name or str(file))
        image.load()
        loaded = ImageOps.exif_transpose(image) if is_turned else image.copy()
        return _eight_bits(loaded) if loaded.mode.startswith("I") else loaded


def _check_passes(image: Image, file: Path | bytes, name: str) -> None:
    """Refuse a JPEG that is decoded in too many passes."""
    if image.format != "JPEG":
        return
    passes = (file if isinstance(file, bytes) else file.read_bytes()).count(START_OF_SCAN)
    if passes * image.width * image.height > MAX_WORK:
        raise BadImage(f"{name} has its {image.width:,} x {image.height:,} pixels in {passes:,} scans: save it anew")


def _eight_bits(image: Image) -> Image:
    """Convert 16-bit grey; Pillow would make all values above 255 white."""
    import numpy as np
    from PIL import Image

    return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
