"""Untrusted audio: its length from the header, and its samples at the model's rate."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import wave
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npukit.llm.images.files import MAX_BYTES, BadImage

Samples = NDArray[np.float32]
MAX_SECONDS = 3600.0
RATES = (1_000, 384_000)  # samples per second
MAX_SAMPLES = int(MAX_SECONDS) * 48_000 * 2  # of all channels together
BLOCK = 2**20  # samples that are decoded or computed at a time
WIDTH, ROLLOFF = 6, 0.99  # of the windowed sinc, as torchaudio has them
# The sample types of WAV files, by size in bytes.
WIDTHS: dict[int, Any] = {1: np.dtype("u1"), 2: np.dtype("<i2"), 4: np.dtype("<i4")}


def read_length(source: Path | bytes, rate: int, name: str) -> int:
    """The number of samples at this rate, from the header; raises BadImage.

    >>> read_length(Path("hello.wav"), 16000, "hello.wav")
    48000
    """
    own_rate, frames, _ = _read(source, name)
    return math.ceil(frames * rate / own_rate)


def read_samples(source: Path | bytes, rate: int, name: str) -> Samples:
    """All samples at this rate as one channel, the mean of all channels; raises BadImage."""
    own_rate, _, blocks = _read(source, name)
    samples = np.concatenate([*resampled(blocks, own_rate, rate)])
    if not np.isfinite(samples).all():
        raise BadImage(f"{name} is damaged (it has samples that are no numbers)")
    return samples


def _read(source: Path | bytes, name: str) -> tuple[int, int, Iterator[Samples]]:
    """The sampling rate, the number of samples, and the samples in blocks."""
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    if size > MAX_BYTES:
        raise BadImage(f"{name} has {size >> 20:,} MiB, more than {MAX_BYTES >> 20}: make it smaller")
    for reader in (_wave, _other):
        blocks = reader(io.BytesIO(source) if isinstance(source, bytes) else str(source), name)
        if header := next(blocks, None):
            return *header, _checked_length(blocks, header[1], name)
    raise AssertionError


def _wave(file: Any, name: str) -> Iterator[Any]:
    """The rate and the length of a WAV file with integer samples, then its samples; nothing for any other file."""
    with contextlib.suppress(wave.Error, EOFError), wave.open(file, "rb") as opened:
        rate, frames, channels = opened.getframerate(), opened.getnframes(), opened.getnchannels()
        width = WIDTHS.get(opened.getsampwidth())
        if width is None:
            return
        _check(rate, frames, channels, name)
        yield rate, frames
        zero, full = (128 if width.itemsize == 1 else 0), np.float32(2 ** (8 * width.itemsize - 1))
        while content := opened.readframes(max(1, BLOCK // channels)):
            block = np.frombuffer(content, width, len(content) // width.itemsize // channels * channels)
            yield (block.reshape(-1, channels).astype(np.float32).mean(1) - zero) / full


def _other(file: Any, name: str) -> Iterator[Any]:
    if find_spec("soundfile") is None:
        raise BadImage(f"{name} is not a plain WAV file, and other audio needs soundfile: pip install soundfile")
    import soundfile

    try:
        with soundfile.SoundFile(file) as opened:
            _check(opened.samplerate, opened.frames, opened.channels, name)
            yield opened.samplerate, opened.frames
            while len(block := opened.read(max(1, BLOCK // opened.channels), dtype="float32", always_2d=True)):
                yield block.mean(1)
    except (soundfile.SoundFileError, RuntimeError) as error:
        reason = str(getattr(error, "error_string", error)).strip(". ")
        raise BadImage(f"{name} is not audio that can be read ({reason})") from None


def _check(rate: int, frames: int, channels: int, name: str) -> None:
    if rate <= 0 or frames <= 0:
        raise BadImage(f"{name} has no audio in it")
    if frames / rate > MAX_SECONDS:
        raise BadImage(f"{name} takes {frames / rate:,.0f} seconds, more than {MAX_SECONDS:,.0f}: cut it")
    if not RATES[0] <= rate <= RATES[1]:
        raise BadImage(f"{name} has {rate:,} samples a second, and not between {RATES[0]:,} and {RATES[1]:,}")
    if frames * channels > MAX_SAMPLES:
        raise BadImage(f"{name} has {frames * channels:,} samples, more than {MAX_SAMPLES:,}: cut it")


def _checked_length(blocks: Iterator[Samples], frames: int, name: str) -> Iterator[Samples]:
    """The blocks, which must contain as many samples as the header says."""
    count = 0
    for block in blocks:
        count += len(block)
        yield block
    if count < frames:
        raise BadImage(f"{name} is damaged (it ends early)")


def resampled(blocks: Iterable[Samples], rate: int, wanted: int) -> Iterator[Samples]:
    """Resample with a windowed sinc, as torchaudio's resample does by default. Yields samples as soon as possible."""
    if rate == wanted:
        yield from blocks
        return
    common = math.gcd(rate, wanted)
    old, new = rate // common, wanted // common
    base = min(old, new) * ROLLOFF
    reach = math.ceil(WIDTH * old / base)
    phases, taps = np.arange(new), np.arange(-reach, reach + 2)
    nearest = phases * old // new  # the old sample before each of a period
    times = (((nearest[:, None] + taps) / old - phases[:, None] / new) * base).clip(-WIDTH, WIDTH)
    kernel = np.sinc(times) * np.cos(times * math.pi / WIDTH / 2) ** 2 * (base / old)
    held, first, done = np.zeros(reach, np.float32), -reach, 0  # `first` is the index of the first sample in the buffer
    for block in itertools.chain(blocks, [np.zeros(reach + 1, np.float32)]):
        held = np.concatenate([held, block])
        ready = -(-(first + len(held) - reach - 1) * new // old)
        for start in range(done, ready, step := max(1, BLOCK // len(taps))):
            periods, phase = np.divmod(np.arange(start, min(start + step, ready)), new)
            places = (periods * old + nearest[phase] - reach - first)[:, None] + np.arange(len(taps))
            yield np.einsum("ij,ij->i", held[places], kernel[phase]).astype(np.float32)
        done = max(done, ready)
        left = max(0, done * old // new - reach - first)
        held, first = held[left:], first + left
