"""Check that a model supports the images, videos and audio of its data."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path

from npukit.llm import families
from npukit.llm.config.media import is_media_data, is_media_model, media_type
from npukit.llm.config.options import Config, Source
from npukit.llm.medium import COLUMNS, Kind
from npukit.llm.reading.check_options import ConfigProblem


def media(config: Config) -> Iterator[ConfigProblem]:
    """Check what names alone show; other data is checked by its rows."""
    model = config.model.path
    if not Path(model).expanduser().exists() and is_media_model(model):
        yield ConfigProblem("model.path", _not_for(model))
        return
    validation = config.data.validation if isinstance(config.data.validation, tuple) else ()
    for name, sources in (("train", config.data.train), ("validation", validation)):
        for index, source in enumerate(sources):
            key, kinds = f"data.{name}.{index}", kinds_of(source)
            if kind := next((kind for kind in kinds if kind not in _supported_media(model)), None):
                known = ", ".join(sorted(name for name, vision in families.visions().items() if kind in vision.kinds))
                what = {"image": "images", "video": "videos", "audio": "audio"}[kind]
                text = (
                    f"{source.path} has {what}, and {model} is not known to take them: use a model whose model_type "
                    f"is one of {known}."
                )
                yield ConfigProblem(key, text)
            if is_media_data(source.path) and not kinds and not Path(source.path).exists():
                yield ConfigProblem(key, f"{source.path} is a multimodal data set: it is not supported yet.")


def _not_for(model: str) -> str:
    """Why a model that is not text-only cannot be trained."""
    if kind := media_type(model):
        return f"{model} is a multimodal model of the type {kind}: it is not supported yet."
    return (
        f"{model} is a multimodal model that needs its own Python code: it is not supported, because transformers does "
        "not include it."
    )


def kinds_of(source: Source) -> list[Kind]:
    """The media in the rows of a data set, as far as its options show."""
    from npukit.llm.data.presets import PRESETS

    if source.preset in PRESETS:
        return [PRESETS[source.preset].kind]
    return [kind for column, kind in COLUMNS.items() if column in source.columns]


def _supported_media(model: str) -> Collection[Kind]:
    """The media that a model supports, from its folder or its name."""
    try:
        config = json.loads((Path(model).expanduser() / "config.json").read_text(encoding="utf-8"))
        vision = families.vision_of(config)
    except (OSError, ValueError):
        vision = families.visions().get(media_type(model) or "")
    return vision.kinds if vision else ()
