"""Names of models and data sets with images, audio or video that npukit does not support."""

from __future__ import annotations

import re

from npukit.llm import families
from npukit.llm.chat.peers.data import table

QUANTISED = re.compile(r"(-(gptq|awq|fp8|int[48]|bnb|4bit|8bit|w[48]a(8|16)))+$")


def is_media_model(name: str) -> bool:
    """Return whether a model on a hub takes images, audio or video in a way that npukit does not support.

    >>> is_media_model("Qwen/Qwen2.5-Omni-7B"), is_media_model("Qwen/Qwen2.5-VL-7B-Instruct")
    (True, False)
    """
    kind = media_type(name)
    return kind is not None and kind not in families.visions()


def media_type(name: str) -> str | None:
    """Return transformers' model type for the name of a multimodal model, or None for other models.

    >>> media_type("Qwen/Qwen2.5-VL-7B-Instruct")
    'qwen2_5_vl'
    """
    short = name.rstrip("/").rpartition("/")[2].lower()
    plain = QUANTISED.sub("", short)
    models = table("ms_swift")["media"]["models"].items()
    return next((kind for kind, names in models if short in names or plain in names), None)


def is_media_data(name: str) -> bool:
    """Return whether a data set on a hub has audio or video, or images in columns that npukit does not know.

    >>> is_media_data("AI-ModelScope/LaTeX_OCR#2000")
    True
    """
    return name.partition("#")[0].lower() in table("ms_swift")["media"]["datasets"]
