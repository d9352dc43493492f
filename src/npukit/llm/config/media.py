"""Names of models and data sets of images, audio and video, which are left for later."""

from __future__ import annotations

from npukit.llm.chat.peers.data import table


def is_media_model(name: str) -> bool:
    """Whether a model on a hub needs images, audio or video, or has no class for text alone in transformers.

    >>> is_media_model("Qwen/Qwen2.5-VL-7B-Instruct")
    True
    """
    return name.rstrip("/").rpartition("/")[2].lower() in table("ms_swift")["media"]["models"]


def is_media_data(name: str) -> bool:
    """Whether a data set on a hub is one of images, audio or video.

    >>> is_media_data("AI-ModelScope/LaTeX_OCR#2000")
    True
    """
    return name.partition("#")[0].lower() in table("ms_swift")["media"]["datasets"]
