"""The data sets in ms-swift's flags."""

from __future__ import annotations

import re
from pathlib import Path

from npukit.facts.data import load_yaml
from npukit.llm.config.dialects.table import FOLDER, named_values
from npukit.llm.config.dialects.training.swift_heads import variable
from npukit.llm.config.dialects.training.transformers import Translated
from npukit.llm.config.dialects.values import RefusedValue, Values

# HF::owner/name:subset#500, but not a Windows drive or a URL
DATASET = re.compile(r"(?:(?P<hub>HF|MS|hf|ms)::)?(?P<path>[^:#]+)(?::(?P<subset>[^#/]+))?(?P<rows>#\d+)?")
HUBS = {"HF": "huggingface", "MS": "modelscope"}


def datasets(values: Values) -> Translated:
    _note_names(values)
    train, shares = sources("dataset", values), values.words("interleave_prob")
    if (most := int(values.number("self_cognition_sample", 0))) > 0:  # names until 3.0
        train.append(_self_cognition(f"swift/self-cognition#{most}", None, values))
    if shares and len(shares) != len(train):
        text = f"interleave_prob has {len(shares)} numbers for {len(train)} data sets: give one for each."
        raise RefusedValue("interleave_prob", text)
    if shares:
        train = [{**source, "weight": share} for source, share in zip(train, shares, strict=True)]
    train += [{"path": path} for path in values.words("cached_dataset")]
    return {"data.train": train} if train else {}


def _columns(values: Values) -> Translated:
    """Return the renamed columns {theirs: ours}, which ms-swift renames in every data set that has them."""
    wanted = values.get("columns", {})
    names = wanted if isinstance(wanted, dict) else None
    if names is None or not all(isinstance(name, str) for name in names.values()):
        raise RefusedValue("columns", """columns must be JSON such as {"question": "query"}.""")
    return {"columns": {ours: theirs for theirs, ours in names.items()}} if names else {}


SELF_COGNITION = re.compile(r"(^|/)self-cognition$")
# what ms-swift writes into the rows of two subsets that are on no hub
EMPTY_THOUGHT = {"answer_prefix": "<think>\n\n</think>\n\n"}
SUBSETS: dict[str | None, Translated] = {
    "qwen3": {**EMPTY_THOUGHT, "question_suffix": " /no_think"},
    "empty_think": EMPTY_THOUGHT,
}


def _note_names(values: Values) -> None:
    """Note names without effect. Most ms-swift commands contain them, but only one data set uses them."""
    teaches = any("self-cognition" in name for name in values.words("dataset"))
    if not teaches and not values.number("self_cognition_sample", 0):
        for key in sorted({"model_name", "model_author"} & set(values.explicit)):
            values.notes.append(f"{key}: it is for the data set swift/self-cognition")


def _self_cognition(path: str, subset: str | None, values: Values) -> Translated:
    """Return the data set that teaches a model its name."""
    names = {"NAME": values.words("model_name"), "AUTHOR": values.words("model_author")}
    subsets = SUBSETS.get(subset, {"subset": subset} if subset else {})
    return {"path": path, **subsets, "fill": {key: texts[:2] for key, texts in names.items() if texts}}


def sources(key: str, values: Values) -> list[Translated]:
    """Return the data sets that a key names."""
    value = values.get(key, [])
    result, columns = [], _columns(values)
    for written in [value] if isinstance(value, str) and Path(value).exists() else values.words(key):
        name = _name_now(written, values)
        match = DATASET.fullmatch(name)
        if match is None or Path(name.split("#")[0]).exists():
            result.append({"path": name, **columns})
            continue
        path = match["path"] + (match["rows"] or "")
        source = {"path": path, **_subset_of(match["path"], match["subset"], values)}
        if SELF_COGNITION.search(match["path"]):
            source = _self_cognition(path, match["subset"], values)
        result.append({**columns, **source, **({"hub": HUBS[match["hub"].upper()]} if match["hub"] else {})})
    return result


def _name_now(written: str, values: Values) -> str:
    """Return the current name of a data set that had a different one until 3.0, with its subset and number of rows."""
    name = re.match(r"[^:#]*", written)[0]  # type: ignore[index]
    ids = named_values("training/swift_2:datasets").get(name)
    if ids is None or Path(name).exists():
        return written
    now, _, subset = on_hub(ids, values).partition(":")
    rest = written[len(name) :]
    return f"{now}{rest}" if rest.startswith(":") or not subset else f"{now}:{subset}{rest}"


def on_hub(ids: str | tuple[str, ...], values: Values) -> str:
    """Return the name on the selected hub, if a data set has different names on both hubs."""
    return ids if isinstance(ids, str) else ids[uses_hugging_face(values)]


def uses_hugging_face(values: Values) -> bool:
    """Return whether names are looked up on Hugging Face instead of ModelScope."""
    return values.flag("use_hf", values.environ.get("USE_HF", "").lower() in ("1", "true"))


def _subset_of(path: str, subset: str | None, values: Values) -> Translated:
    """Return the subset on the hub, or how ms-swift reads a subset that is on no hub."""
    known = load_yaml(FOLDER / "training/swift_datasets.yaml").get(path.lower(), {})
    options: Translated = known.get(subset or "default", {"subset": subset} if subset else {})
    if "negatives" in options:
        return {**options, "negatives": variable(values, "MAX_NEGATIVE_SAMPLES", options["negatives"])}
    return options


def validation(values: Values) -> Translated:
    cached = [{"path": path} for path in values.words("cached_val_dataset")]
    return {"data.validation": sources("val_dataset", values) + cached or values.get("split_dataset_ratio", 0.0)}
