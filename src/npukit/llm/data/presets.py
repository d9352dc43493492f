"""Public data sets whose rows need more than renamed columns, converted as ms-swift does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from npukit.facts.data import load_yaml
from npukit.llm.medium import Kind

Row = dict[str, Any]

KNOWN = load_yaml(Path(__file__).with_suffix(".yaml"))
QUESTIONS = KNOWN["questions"]


def coco(row: Row) -> Row:
    """Objects with the numbers of their categories."""
    found = row["objects"]
    names = [KNOWN["coco"][number] for number in found["category"]]
    return {
        "images": row["image"],
        "query": QUESTIONS["coco"],
        "response": "\n".join(["<ref-object><bbox>"] * len(names)),
        "objects": {"ref": names, "bbox": found["bbox"]},
    }


def voc_2007(row: Row) -> Row:
    """A 1 for each class that occurs in the image."""
    labels = [number for number, there in enumerate(row["npy"]) if there == 1]
    return {"images": row["webp"], "query": f"{QUESTIONS['voc_2007']}{KNOWN['voc_2007']}", "label": labels}


def aishell_1(row: Row) -> Row:
    """Chinese words with spaces between them."""
    return {
        "audios": row["Audio:FILE"],
        "query": QUESTIONS["aishell_1"],
        "response": row["Text:LABEL"].replace(" ", ""),
    }


def video_chatgpt(row: Row) -> Row:
    """Video names without a suffix, and one or two questions, of which the first is asked."""
    asked = (row.get(name) for name in ("question", "question_1", "question_2"))
    question = next((text for text in asked if text not in (None, "None")), None)
    return {"videos": f"Test_Videos/{row['video_name']}.mp4", "query": question, "response": row["answer"]}


class Preset(NamedTuple):
    """The media of a data set's rows, and how its rows become ordinary ones."""

    kind: Kind
    row: Callable[[Row], Row]


PRESETS = {
    "coco": Preset("image", coco),
    "voc_2007": Preset("image", voc_2007),
    "aishell_1": Preset("audio", aishell_1),
    "video_chatgpt": Preset("video", video_chatgpt),
}
