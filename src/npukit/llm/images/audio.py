"""Audio that others recorded: its length from the header, and its samples at the rate that a model hears."""

from __future__ import annotations

import io
import math
import wave
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npukit.llm.images.files import MAX_BYTES, BadImage

Samples = NDArray[np.float32]
MAX_SECONDS = 3600.0
# The types of samples in WAV files, by their bytes.
WIDTHS: dict[int, Any] = {1: np.dtype("u1"), 2: np.dtype("<i2"), 4: np.dtype("<i4")}


def read_length(source: Path | bytes, rate: int, name: str) -> int:
    """How many samples there are at this rate, by the header; raises BadImage.

    >>> read_length(Path("hello.wav"), 16000, "hello.wav")
    48000
    """
    own_rate, frames, _ = _read(source, name, header_only=True)
    return math.ceil(frames * rate / own_rate)


def read_samples(source: Path | bytes, rate: int, name: str) -> Samples:
    """All samples at this rate, of one channel that is the mean of all; raises BadImage."""
    own_rate, _, samples = _read(source, name, header_only=False)
    assert samples is not None
    return resampled(samples, own_rate, rate)


def _read(source: Path | bytes, name: str, header_only: bool) -> tuple[int, int, Samples | None]:
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    if size > MAX_BYTES:
        raise BadImage(f"{name} has {size >> 20:,} MiB, more than {MAX_BYTES >> 20}: make it smaller")
    file = io.BytesIO(source) if isinstance(source, bytes) else str(source)
    try:
        rate, frames, samples = _wave(file, name, header_only)
    except (wave.Error, EOFError):
        if isinstance(file, io.BytesIO):
            file.seek(0)
        rate, frames, samples = _other(file, name, header_only)
    if rate <= 0 or not frames:
        raise BadImage(f"{name} has no audio in it")
    return rate, frames, samples


def _wave(file: Any, name: str, header_only: bool) -> tuple[int, int, Samples | None]:
    """A WAV file of whole numbers, which the standard library reads."""
    with wave.open(file, "rb") as opened:
        rate, frames, channels = opened.getframerate(), opened.getnframes(), opened.getnchannels()
        width = WIDTHS.get(opened.getsampwidth())
        if width is None:
            raise wave.Error
        _check(rate, frames, name)
        if header_only:
            return rate, frames, None
        content = opened.readframes(frames)
        if len(content) < frames * channels * width.itemsize:
            raise BadImage(f"{name} is damaged (it ends early)")
    samples = np.frombuffer(content, width).astype(np.float32)
    full = np.float32(2 ** (8 * width.itemsize - 1))
    samples = (samples - 128 if width.itemsize == 1 else samples) / full
    return rate, frames, samples.reshape(-1, channels).mean(1)


def _other(file: Any, name: str, header_only: bool) -> tuple[int, int, Samples | None]:
    if find_spec("soundfile") is None:
        raise BadImage(f"{name} is not a plain WAV file, and other audio needs soundfile: pip install soundfile")
    import soundfile

    try:
        with soundfile.SoundFile(file) as opened:
            _check(opened.samplerate, opened.frames, name)
            if header_only:
                return opened.samplerate, opened.frames, None
            samples = opened.read(dtype="float32", always_2d=True)
            return opened.samplerate, opened.frames, samples.mean(1)
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise BadImage(f"{name} is not audio that can be read ({str(error).splitlines()[-1].strip('. ')})") from None


def _check(rate: int, frames: int, name: str) -> None:
    if rate > 0 and frames / rate > MAX_SECONDS:
        raise BadImage(f"{name} takes {frames / rate:,.0f} seconds, more than {MAX_SECONDS:,.0f}: cut it")


def resampled(samples: Samples, rate: int, wanted: int, width: int = 6, rolloff: float = 0.99) -> Samples:
    """Samples at another rate, through a windowed sinc as torchaudio's resample has it by default.

    >>> len(resampled(np.zeros(44100, np.float32), 44100, 16000))
    16000
    """
    if rate == wanted:
        return samples
    import torch

    common = math.gcd(rate, wanted)
    old, new = rate // common, wanted // common
    base = min(old, new) * rolloff
    reach = math.ceil(width * old / base)
    times = torch.arange(-reach, reach + old, dtype=torch.float64)[None] / old
    times = (torch.arange(0, -new, -1, dtype=torch.float64)[:, None] / new + times) * base
    times = times.clamp(-width, width)
    window = torch.cos(times * math.pi / width / 2) ** 2
    kernel = torch.sinc(times) * window * (base / old)
    padded = torch.nn.functional.pad(torch.from_numpy(samples).double()[None, None], (reach, reach + old))
    made = torch.nn.functional.conv1d(padded, kernel[:, None], stride=old).transpose(1, 2).flatten()
    return made[: math.ceil(new * len(samples) / old)].float().numpy()
