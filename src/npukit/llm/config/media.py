"""Names of models and data sets of images, audio and video that npukit does not know."""

from __future__ import annotations

import re

from npukit.llm import families
from npukit.llm.chat.peers.data import table

QUANTISED = re.compile(r"(-(gptq|awq|fp8|int[48]|bnb|4bit|8bit|w[48]a(8|16)))+$")


def is_media_model(name: str) -> bool:
    """Whether a model on a hub needs images, audio or video in a way that npukit does not know.

    >>> is_media_model("Qwen/Qwen2.5-Omni-7B"), is_media_model("Qwen/Qwen2.5-VL-7B-Instruct")
    (True, False)
    """
    kind = media_type(name)
    return kind is not None and kind not in families.visions()


def media_type(name: str) -> str | None:
    """What transformers calls the type of such a model, as far as it knows it; None for models of text.

    >>> media_type("Qwen/Qwen2.5-VL-7B-Instruct")
    'qwen2_5_vl'
    """
    short = name.rstrip("/").rpartition("/")[2].lower()
    plain = QUANTISED.sub("", short)
    models = table("ms_swift")["media"]["models"].items()
    return next((kind for kind, names in models if short in names or plain in names), None)


def is_media_data(name: str) -> bool:
    """Whether a data set on a hub is one of audio or video, or of images in columns that are not known.

    >>> is_media_data("AI-ModelScope/LaTeX_OCR#2000")
    True
    """
    return name.partition("#")[0].lower() in table("ms_swift")["media"]["datasets"]
