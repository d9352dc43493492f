"""Finds losses in the output of a program and in its JSON files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from npukit.verify.figure import Figure

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|[-+]?(?:nan|inf)\b"
_LOSS = re.compile(
    rf"(?:\b(?P<of>[a-z]+)[ _/])?(?P<name>\b[\w/]*loss(?:_\w+)?)\b[\"']?\s*[:=(|]?\s*(?P<value>{_NUMBER})",
    re.IGNORECASE,
)
_STEP = re.compile(r"(?<![\w/])(?:global_)?(?:step|iter|iteration|batch)\b[\"']?\W{0,4}(\d+)", re.IGNORECASE)
_STEP_KEYS = ("step", "global_step", "_step", "iter", "iteration")
_LOSS_WORD = re.compile(r"loss(es)?(?![a-z])", re.IGNORECASE)
# Names of settings: "loss_scaling": 1 is not a loss.
_SETTINGS = re.compile(
    r"loss_?(fn|func|function|type|name|kwargs|scal(e|er|ing)|weights?|coefs?|coeff|factor|lambda|reduction|freq|interval)",
    re.IGNORECASE,
)
# Printed arguments, in one line or in one each: Namespace(lr=0.1, diffloss_d=2) or diffloss_d=2,
_ARGUMENTS = re.compile(r"\bNamespace\(|^\w+=[^\s,]+,$")


def is_loss(name: str) -> bool:
    """Whether a figure of this name is a loss.

    >>> is_loss("train/loss"), is_loss("Loss_D"), is_loss("loss_scaling"), is_loss("lossless")
    (True, True, False, False)
    """
    return bool(_LOSS_WORD.search(name)) and not _SETTINGS.search(name)


def losses_in(lines: Iterable[str]) -> Iterator[Figure]:
    """
    >>> [(loss.name, loss.value, loss.step) for loss in losses_in(["step 3: train loss 2.5, val loss 2.75"])]
    [('train loss', 2.5, 3), ('val loss', 2.75, 3)]
    """
    for line in lines:
        text = line.strip()
        # The losses that a progress bar shows depend on its timing
        if "\r" in line.rstrip() or "loss" not in text.lower() or _ARGUMENTS.search(text):
            continue
        if text.startswith("{") and (record := _json(text)) is not None:
            yield from losses_of(record, text)
            continue
        step = _STEP.search(text)
        for match in _LOSS.finditer(text):
            name = " ".join(filter(None, (match["of"], match["name"]))).lower()
            if is_loss(name):
                yield Figure(name, float(match["value"]), int(step[1]) if step else None, text)


def _json(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def losses_of(record: Any, text: str = "", path: str = "", step: int | None = None) -> Iterator[Figure]:
    """The losses in nested data.

    >>> [(loss.name, loss.value) for loss in losses_of({"train": {"loss": [0.5, 0.25], "lr": 0.1}})]
    [('train/loss', 0.5), ('train/loss', 0.25)]
    """
    if isinstance(record, dict):
        own_step = next((record[key] for key in _STEP_KEYS if isinstance(record.get(key), int | float)), step)
        for name, value in record.items():
            place = f"{path}/{name}".lstrip("/").lower()
            yield from losses_of(value, text, place, None if own_step is None else int(own_step))
    elif isinstance(record, list):
        for value in record:
            yield from losses_of(value, text, path, step)
    elif isinstance(record, int | float) and not isinstance(record, bool) and is_loss(path):
        yield Figure(path, float(record), step, text or f"{path} {record:g}")
