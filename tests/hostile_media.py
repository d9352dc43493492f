"""Files that are called pictures, videos, recordings or archives: bombs, damaged ones, other formats, and unusual ones
that are all right.

A case is the content, and what is said of it (`code`, a part of the sentence), its size or its files.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zipfile
import zlib
from typing import Any

import numpy as np
from PIL import Image


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, rows: bytes = b"", depth: int = 8, colours: int = 2, before: bytes = b"") -> bytes:
    """A PNG of which the header alone need be true."""
    header = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + data + chunk(b"IEND", b"")


def saved(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def noise(width: int = 64, height: int = 48, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8))


def exif(rotation: int) -> bytes:
    return b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0" + bytes([rotation]) + b"\0\0"


def jpeg_of(width: int, height: int) -> bytes:
    """A JPEG whose header claims a size."""
    content = bytearray(saved(noise(), "JPEG"))
    at = content.index(b"\xff\xc0") + 5
    content[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(content)


def jpeg_of_scans(side: int, scans: int) -> bytes:
    """A gray JPEG that goes over all of its pixels again for every thirty bytes."""
    table, one = (lambda kind, value: segment(0xC4, bytes([kind, 1, *[0] * 15, value]))), side * side >> 6
    first = segment(0xDA, b"\1\1\0\0\0\0") + bytes(one // 8)
    again = segment(0xDA, b"\1\1\0\1\x3f\0") + b"\x7f\xfe" * (one // 2**15 + 1)
    frame = segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0")
    head = b"\xff\xd8" + segment(0xDB, b"\0" + b"\1" * 64) + frame + table(0, 0) + table(0x10, 0xE0)
    return head + first + again * scans + b"\xff\xd9"


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def bmp_of(width: int, height: int) -> bytes:
    content = bytearray(saved(noise(), "BMP"))
    content[18:26] = struct.pack("<ii", width, height)
    return bytes(content)


def riff(kind: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    content = kind + b"".join(name + struct.pack("<I", len(part)) + part for name, part in chunks)
    return b"RIFF" + struct.pack("<I", len(content)) + content


def webp_on(width: int, height: int) -> bytes:
    """A small frame of an animation of that size."""
    sides = [(side - 1).to_bytes(3, "little") for side in (width, height, 64, 48)]
    frame = bytes(6) + sides[2] + sides[3] + b"\x64\0\0\0" + saved(noise(), "WEBP")[12:]
    return riff(b"WEBP", (b"VP8X", b"\2\0\0\0" + sides[0] + sides[1]), (b"ANIM", bytes(6)), (b"ANMF", frame))


PNG, JPEG, GIF, WEBP, BMP = (saved(noise(), kind) for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP"))
ROWS = (b"\0" + b"\x80" * 60) * 20  # of 20 x 20 pixels
LARGE = b"\0" * 80_000_000
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
OTHER = "not an image"

HOSTILE: dict[str, tuple[bytes, str]] = {
    "bomb": (png(200_000, 200_000), "pixels"),
    "small bomb": (png(14_000, 14_000), "pixels"),
    "bomb of one bit": (png(60_000, 60_000, depth=1, colours=0), "pixels"),
    "long bomb": (png(1, 2_000_000_000), "pixels"),
    "jpeg bomb": (jpeg_of(65_500, 65_500), "pixels"),
    "gif bomb": (b"GIF89a" + struct.pack("<HH", 65_535, 65_535) + GIF[10:], "pixels"),
    "bmp bomb": (bmp_of(60_000, 60_000), "pixels"),
    "negative width": (bmp_of(-64, 48), "pixels"),
    "no pixels": (png(0, 10), OTHER),
    "no rows": (png(10, 0), OTHER),
    "no data": (png(20, 20), "damaged"),
    "too few rows": (png(20, 20, ROWS[:300]), "damaged"),
    "odd depth": (png(20, 20, ROWS, depth=3), OTHER),
    "odd colours": (png(20, 20, ROWS, colours=5), OTHER),
    "bomb of text": (png(20, 20, ROWS, before=chunk(b"zTXt", b"a\0\0" + zlib.compress(LARGE))), "damaged"),
    "header alone": (png(20, 20)[:40], OTHER),
    "half a header": (PNG[:20], "damaged"),
    "first bytes": (PNG[:8], OTHER),
    "truncated png": (PNG[:-400], "damaged"),
    "truncated jpeg": (JPEG[:-900], "damaged"),
    "truncated gif": (GIF[: len(GIF) // 2], "damaged"),
    "truncated webp": (WEBP[: len(WEBP) // 2], "damaged"),
    "truncated bmp": (BMP[:-2000], "damaged"),
    "beginning of a jpeg": (JPEG[:2], OTHER),
    "broken checksum": (PNG[:60] + b"\0\0\0\0" + PNG[64:], "damaged"),
    "broken jpeg": (JPEG[:20] + b"\xff" * 200, OTHER),
    "script that begins as a gif": (b"GIF89a=1;alert(1)//" + b"x" * 20, OTHER),
    "empty": (b"", OTHER),
    "zeros": (b"\0" * 4096, OTHER),
    "text": (b"a cat", OTHER),
    "base64 twice": (b"iVBORw0KGgo=", OTHER),
    "ten thousand scans": (jpeg_of_scans(2000, 10_000), "scans"),
    "chunks without end": (PNG[:33] + chunk(b"teSt", b"") * 300_000 + PNG[33:], "parts"),
    "comments without end": (JPEG[:2] + segment(0xFE, b"") * 300_000 + JPEG[2:], "parts"),
    "comments of a gif without end": (GIF[:10] + b"\0\0\0" + b"\x21\xfe\1a\0" * 300_000, "parts"),
    "bomb in a profile": (png(20, 20, ROWS, before=chunk(b"iCCP", b"a\0\0" + zlib.compress(LARGE))), "damaged"),
    "canvas of a small animation": (webp_on(16_383, 16_383), "pixels"),
    "frame outside of a gif": (
        b"GIF89a"
        + struct.pack("<HHHB", 9, 9, 0, 0)
        + b","
        + struct.pack("<4H", *[65_000] * 4)
        + b"\x80"
        + bytes(6)
        + b"\2\2\x4c\1\0;",
        "pixels",
    ),
    "svg": (SVG, OTHER),
    "svg in gzip": (gzip.compress(SVG), OTHER),
    "html": (b"<html>404</html>", OTHER),
    "pdf": (b"%PDF-1.7\n", OTHER),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", OTHER),
    "tiff": (saved(noise(), "TIFF"), OTHER),
    "ico": (saved(noise(), "ICO"), OTHER),
    "ppm": (saved(noise(), "PPM"), OTHER),
    "tga": (saved(noise(), "TGA"), OTHER),
    "pcx": (saved(noise(), "PCX"), OTHER),
    "dds": (saved(noise(), "DDS"), OTHER),
    "xbm": (b"#define a_width 8\n#define a_height 8\nstatic char a_bits[] = {0};", OTHER),
    "psd": (b"8BPS\0\1" + b"\0" * 40, OTHER),
    "heic": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 40, OTHER),
    "mp4": (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + b"\0" * 40, OTHER),
    "wav": (b"RIFF\x24\0\0\0WAVEfmt " + b"\0" * 24, OTHER),
    "zip": (b"PK\3\4" + b"\0" * 40, OTHER),
    "program": (b"\x7fELF" + b"\0" * 60, OTHER),
    "pickle": (b"\x80\x04cos\nsystem\n(S'true'\ntR.", OTHER),
}

USABLE: dict[str, tuple[bytes, tuple[int, int]]] = {
    "png": (PNG, (64, 48)),
    "animated gif": (saved(noise(), "GIF", save_all=True, append_images=[noise()]), (64, 48)),
    "animated webp": (saved(noise(), "WEBP", save_all=True, append_images=[noise()]), (64, 48)),
    "animated png": (saved(noise(), "PNG", save_all=True, append_images=[noise(64, 48)]), (64, 48)),
    "lossless webp": (saved(noise(), "WEBP", lossless=True), (64, 48)),
    "cmyk": (saved(noise().convert("CMYK"), "JPEG"), (64, 48)),
    "progressive jpeg": (saved(noise(), "JPEG", progressive=True), (64, 48)),
    "gray jpeg": (saved(noise().convert("L"), "JPEG"), (64, 48)),
    "more behind its end": (JPEG + b"<script>" * 100, (64, 48)),
    "palette": (saved(noise().convert("P"), "PNG"), (64, 48)),
    "transparent": (saved(noise().convert("RGBA"), "PNG"), (64, 48)),
    "gray and transparent": (saved(noise().convert("LA"), "PNG"), (64, 48)),
    "one bit": (saved(noise().convert("1"), "PNG"), (64, 48)),
    "gray": (saved(noise().convert("L"), "BMP"), (64, 48)),
    "from top to bottom": (bmp_of(64, -48), (64, 48)),
    "sixteen bits": (saved(Image.fromarray(np.full((48, 64), 0x8000, np.uint16)), "PNG"), (64, 48)),
    "upside down, by EXIF": (saved(noise(), "JPEG", exif=exif(3)), (64, 48)),
    "lying, by EXIF": (saved(noise(), "JPEG", exif=exif(6)), (48, 64)),
    "EXIF that makes no sense": (saved(noise(), "JPEG", exif=b"Exif\0\0" + b"\xff" * 40), (64, 48)),
    "data that goes on": (png(20, 20, ROWS + LARGE), (20, 20)),
}


def wav(rate: int = 16_000, channels: int = 1, bits: int = 16, data: bytes = b"\1\2" * 800, coding: int = 1) -> bytes:
    block = channels * bits // 8
    head = struct.pack("<HHIIHH", coding, channels, rate, min(rate * block, 2**32 - 1), block, bits)
    return riff(b"WAVE", (b"fmt ", head), (b"data", data))


def claiming(content: bytes, size: int) -> bytes:
    """A WAV file whose header claims a number of bytes of sound."""
    at = content.index(b"data") + 4
    return content[:at] + struct.pack("<I", size) + content[at + 4 :]


def recording(format: str) -> bytes:
    """A second of noise, if soundfile is there to write it."""
    try:
        import soundfile
    except ImportError:
        return b""
    file = io.BytesIO()
    soundfile.write(file, np.random.default_rng(0).normal(size=16_000) / 10, 16_000, format=format)
    return file.getvalue()


NO_AUDIO = "audio"
RECORDINGS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", NO_AUDIO),
    "text": (b"hello", NO_AUDIO),
    "picture": (PNG, NO_AUDIO),
    "head of a wav": (wav()[:20], NO_AUDIO),
    "no format": (riff(b"WAVE", (b"data", b"\0" * 64)), NO_AUDIO),
    "no data": (riff(b"WAVE", (b"fmt ", wav()[20:36])), NO_AUDIO),
    "no sound": (wav(data=b""), "no audio"),
    "no channels": (wav(channels=0), NO_AUDIO),
    "rate of nought": (wav(rate=0), NO_AUDIO),
    "three bytes a sample": (wav(bits=24, data=b"\1\2\3" * 10)[:40], NO_AUDIO),
    "coding that does not exist": (wav(coding=999), NO_AUDIO),
    "four hours by its header": (claiming(wav(rate=1), 2**31), "seconds"),
    "more than there is": (claiming(wav(), 10**6), "damaged"),
    "four billion samples a second": (wav(rate=4 * 10**9), "a second"),
    "one sample a second": (wav(rate=1), "a second"),
    "no numbers": (wav(bits=32, data=struct.pack("<f", math.nan) * 800, coding=3), "no numbers"),
    "endless numbers": (wav(bits=32, data=struct.pack("<f", math.inf) * 800, coding=3), "no numbers"),
    "half an ogg": (recording("OGG")[:4000], NO_AUDIO),
    "a thousand channels and half an hour": (claiming(wav(48_000, 1000, 8), 2**32 - 2**20), "samples"),
    "half a flac": (recording("FLAC")[:9000], "audio|ends early"),
    "a playlist": (b"#EXTM3U\n/etc/passwd\n", NO_AUDIO),
    "ogg without pages": (b"OggS" + b"\0" * 64, NO_AUDIO),
    "flac without frames": (b"fLaC" + b"\0" * 64, NO_AUDIO),
    "mp3 of noise": (b"ID3\4\0\0\0\0\0\0" + b"\xff\xfb\x90\0" * 3, NO_AUDIO),
}

NO_VIDEO = "video"
CLIPS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", NO_VIDEO),
    "text": (b"a film", NO_VIDEO),
    "picture": (PNG, NO_VIDEO),
    "svg": (SVG, NO_VIDEO),
    "zip": (b"PK\3\4" + b"\0" * 40, NO_VIDEO),
    "sound alone": (wav(), NO_VIDEO),
    "playlist": (b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n", NO_VIDEO),
    "playlist of an address": (b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n", NO_VIDEO),
    "list of files": (b"ffconcat version 1.0\nfile /etc/passwd\n", NO_VIDEO),
    "description of a session": (b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 9 RTP/AVP 96\n", NO_VIDEO),
    "manifest": (b"<?xml version='1.0'?><MPD><BaseURL>http://127.0.0.1:9/</BaseURL></MPD>", NO_VIDEO),
    "head of an mp4": (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", NO_VIDEO),
    "mp4 of a box that never ends": (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom\xff\xff\xff\xffmoov", NO_VIDEO),
    "head of a mkv": (b"\x1a\x45\xdf\xa3\x01\0\0\0\0\0\0\x1f", NO_VIDEO),
    "gif of frames as large as a bomb": (b"GIF89a" + struct.pack("<HH", 65_535, 65_535) + GIF[10:], NO_VIDEO),
}


def zipped(*files: tuple[str | zipfile.ZipInfo, bytes]) -> bytearray:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in files:
            archive.writestr(name, part)
    return bytearray(content.getvalue())


def patched(content: bytearray, **fields: tuple[int, bytes]) -> bytes:
    """An archive with other bytes at places of its files' heads (`local`) or of their list (`central`)."""
    for head, (place, value) in fields.items():
        at = content.rindex({"local": b"PK\3\4", "central": b"PK\1\2"}[head]) + place
        content[at : at + len(value)] = value
    return bytes(content)


def claims(content: bytearray) -> bytearray:
    """Four gigabytes in each of its files, by the list of them."""
    at = content.find(b"PK\1\2")
    while at >= 0:
        content[at + 24 : at + 28] = b"\xfe\xff\xff\xff"
        at = content.find(b"PK\1\2", at + 1)
    return content


def link(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.create_system, entry.external_attr = 3, 0o120777 << 16
    return entry


CATS = ("cat.png", PNG)
DAMAGED = "download it again"
ARCHIVES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", DAMAGED),
    "text": (b"no archive", DAMAGED),
    "gzip": (gzip.compress(PNG), DAMAGED),
    "truncated": (bytes(zipped(CATS)[:-40]), DAMAGED),
    "broken stream": (patched(zipped(("a.png", b"x" * 1000)), local=(35, b"\xff" * 6)), DAMAGED),
    "wrong checksum": (patched(zipped(CATS), local=(14, b"abcd"), central=(16, b"abcd")), DAMAGED),
    "encrypted": (patched(zipped(CATS), local=(6, b"\1"), central=(8, b"\1")), DAMAGED),
    "odd compression": (patched(zipped(CATS), local=(8, b"\x63"), central=(10, b"\x63")), DAMAGED),
    "claims less": (patched(zipped(("bomb", bytes(10**7))), central=(24, b"\x0a\0\0\0")), DAMAGED),
    "claims more than a disk has": (bytes(claims(zipped(*[(f"{n}", b"x") for n in range(20_000)]))), "make room"),
    "a file that is a folder": (bytes(zipped(("a", b"x"), ("a/b", b"y"))), "Cannot write"),
    "a name that is too long": (bytes(zipped(("n" * 300, b"x"))), "Cannot write"),
}
SAFE_ARCHIVES: dict[str, tuple[bytes, set[str]]] = {
    "up and out": (bytes(zipped(("../../evil.png", PNG), CATS)), {"evil.png", "cat.png"}),
    "from the root": (bytes(zipped(("/etc/evil.png", PNG))), {"etc/evil.png"}),
    "a link": (bytes(zipped((link("link.png"), b"/etc/passwd"))), {"link.png"}),
    "through a link": (bytes(zipped((link("out"), b"/tmp"), ("out2/a.png", PNG))), {"out", "out2/a.png"}),
    "the same name twice": (bytes(zipped(CATS, ("dog.png", PNG))).replace(b"dog.png", b"cat.png"), {"cat.png"}),
}
