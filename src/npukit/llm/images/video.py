"""Untrusted videos, as files or lists of frames: their size and length from the header, and their frames."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npukit.llm.images.files import MAX_PIXELS, BadImage, read_image, read_size

if TYPE_CHECKING:
    from PIL.Image import Image

Content = Path | bytes  # of a file
Source = Content | Sequence[Content]  # a video file, or its frames as files
MAX_BYTES = 2**30
MAX_SECONDS = 3 * 3600.0  # of a file: all frames before the last requested one have to be decoded
MAX_FPS = 240
MAX_FRAMES = int(MAX_SECONDS * MAX_FPS)
FULL_HD = 60 * 1920 * 1080  # pixels per second that may have to be decoded
CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,ogg,asf,gif"  # no playlist, which could name other files
)
FRAMES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
MISSING_TAIL = 1.0  # seconds that may be missing at a file's end; the last frame is repeated for them


@dataclass(frozen=True)
class VideoHeader:
    """The size and number of the frames, and the duration in seconds; `fps` is None for frames in files."""

    width: int
    height: int
    total: int
    fps: float | None = None
    seconds: float = 0.0


def frame_files(folder: Path) -> list[Path]:
    """The frames of a video that is a folder, sorted by name; raises BadImage if there are none."""
    files = sorted(filter(is_frame, folder.iterdir()))
    if not files:
        raise BadImage(f"{folder} is a folder without frames, which are named *{', *'.join(FRAMES)}")
    return files


def is_frame(file: Path) -> bool:
    """Whether a file is a frame, by its name."""
    return file.suffix.lower() in FRAMES


def read_header(source: Source, name: str, max_seconds: float = MAX_SECONDS) -> VideoHeader:
    """The header of a video, which is read without decoding it; raises BadImage.

    >>> read_header(Path("cat.mp4"), "cat.mp4")
    VideoHeader(width=640, height=360, total=300, fps=30.0, seconds=10.0)
    """
    if not isinstance(source, (bytes, Path)):
        sizes = {read_size(frame, False, _frame_name(frame, name, number)) for number, frame in enumerate(source)}
        if len(sizes) != 1:
            raise BadImage(f"{name} has frames of {len(sizes)} sizes" if sizes else f"{name} has no frames")
        return VideoHeader(*sizes.pop(), len(source))
    with _opened(source, name) as (container, stream):
        fps = float(stream.average_rate or stream.base_rate or 0)
        total = stream.frames or _count(container, stream, name)
        seconds = float(stream.duration * stream.time_base) if stream.duration else total / fps if fps else 0.0
        if fps <= 0 or seconds <= 0 or not total:
            raise BadImage(f"{name} does not say how many frames it has in a second")
        if seconds > max_seconds:
            raise BadImage(f"{name} takes {seconds:,.0f} seconds, more than {max_seconds:,.0f}: cut it")
        if total > max_seconds * MAX_FPS or total * stream.width * stream.height > max_seconds * FULL_HD:
            raise BadImage(
                f"{name} has {total:,} frames of {stream.width:,} x {stream.height:,} pixels: make it smaller"
            )
        return VideoHeader(stream.width, stream.height, total, fps, seconds)


def read_frames(source: Source, indices: Sequence[int], name: str) -> Iterator[Image]:
    """The frames with these ascending indices, as RGB; raises BadImage."""
    if not isinstance(source, (bytes, Path)):
        for index in indices:
            yield read_image(source[index], False, _frame_name(source[index], name, index)).convert("RGB")
        return
    wanted = list(indices)
    last: Any = None
    with _opened(source, name) as (container, stream):
        fps = float(stream.average_rate or stream.base_rate or 1)
        number = -1
        for number, frame in enumerate(container.decode(stream)):
            last = frame
            while wanted and wanted[0] == number:
                wanted.pop(0)
                yield frame.to_image()
            if not wanted:
                return
        if last is None or wanted[-1] - number > max(1.0, MISSING_TAIL * fps):
            raise BadImage(f"{name} is damaged (it ends at frame {number + 1} of {indices[-1] + 1})")
        yield from [last.to_image()] * len(wanted)


def _frame_name(frame: Content, name: str, number: int) -> str:
    return str(frame) if isinstance(frame, Path) else f"frame {number + 1} of {name}"


@contextmanager
def _opened(source: Content, name: str) -> Iterator[tuple[Any, Any]]:
    """A file whose header has been read, and whose frames are small enough to be decoded."""
    if find_spec("av") is None:
        raise BadImage(f"{name} is a video file, which needs PyAV: pip install av, or name a folder of frames instead")
    import av

    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    if size > MAX_BYTES:
        raise BadImage(f"{name} has {size >> 20:,} MiB, more than {MAX_BYTES >> 20}: make it smaller")
    options = {"protocol_whitelist": "file,pipe", "format_whitelist": CONTAINERS}
    try:
        file = io.BytesIO(source) if isinstance(source, bytes) else str(source.absolute())
        with av.open(file, "r", container_options=options, metadata_errors="ignore") as container:
            stream = next(iter(container.streams.video), None)
            if stream is None:
                raise BadImage(f"{name} has no video in it")
            if stream.width * stream.height > MAX_PIXELS or not stream.width * stream.height:
                raise BadImage(f"{name} has frames of {stream.width:,} x {stream.height:,} pixels")
            stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
            yield container, stream
    except av.FFmpegError as error:
        raise BadImage(f"{name} is not a video that can be read ({error.strerror})") from None


def _count(container: Any, stream: Any, name: str) -> int:
    """Count the frames of a file whose header does not."""
    count = 0
    for packet in container.demux(stream):
        count += packet.size > 0
        if count > MAX_FRAMES:
            raise BadImage(f"{name} has more than {MAX_FRAMES:,} frames: cut it")
    return count
