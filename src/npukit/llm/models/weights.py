"""A model's weights on disk: names and shapes from safetensors headers, and detection of incomplete files."""

from __future__ import annotations

import json
import struct
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from npukit.llm.families.family import Shapes

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# Files with a tokenizer's vocabulary or code; tokenizer_config.json has neither.
TOKENIZERS = ("tokenizer.*", "*.model", "*.tiktoken", "vocab*", "*.vocab", "spiece*", "tekken.json", "tokenization*.py")
LARGEST_HEADER = 100_000_000  # bytes; safetensors itself allows no more


def read_headers(folder: Path) -> Shapes:
    """The names and shapes of all tensors in a folder's safetensors files."""
    headers = [_header(path) for path in sorted(folder.glob("*.safetensors"))]
    return {name: tuple(tensor["shape"]) for header in headers for name, tensor in header.items()}


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > LARGEST_HEADER:
            raise ValueError(f"{path} is not a safetensors file")
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header


def broken_weights(folder: Path) -> list[str]:
    """Messages about weights that were not downloaded completely."""
    sentences = []
    for path in sorted(folder.glob("*.safetensors")):
        try:
            header = _header(path)
            end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
            with path.open("rb") as file:
                whole = 8 + struct.unpack("<Q", file.read(8))[0] + end
            if path.stat().st_size < whole:
                sentences.append(f"{path} has {path.stat().st_size:,} of {whole:,} bytes: download it again.")
        except (ValueError, KeyError, TypeError, struct.error):
            sentences.append(f"{path} is not a complete safetensors file: download it again.")
    return sentences + [text for name in INDEXES for text in _missing_parts(folder, folder / name)]


def _missing_parts(folder: Path, index: Path) -> list[str]:
    try:
        parts = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        missing = sorted({name for name in parts if not (folder / name).is_file()})
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"{index} cannot be read: download it again."]
    return [f"{folder} lacks {', '.join(missing[:3])}{' and others' * (len(missing) > 3)}: download it."] * bool(
        missing
    )


def has_weights(folder: Path) -> bool:
    """Whether a model's folder has weights, or an index of them."""
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "*.bin", *INDEXES))


def broken_tokenizer(folder: Path) -> list[str]:
    """Messages about a missing or incomplete tokenizer."""
    if not any(next(folder.glob(pattern), None) for pattern in TOKENIZERS):
        return [f"{folder} has no tokenizer: copy the model's tokenizer.json there."]
    file = folder / "tokenizer.json"
    with file.open("rb") if file.is_file() else nullcontext() as opened:
        if opened is None:
            return []
        begins = opened.read(64).lstrip()[:1]
        opened.seek(max(file.stat().st_size - 64, 0))
        whole = begins == b"{" and opened.read().rstrip().endswith(b"}")
    return [] if whole else [f"{file} is not complete: download it again."]
