"""Perplexities of answers about pictures, beside transformers' own loss."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.seeing import written

from npukit.inference.evaluate import evaluate
from npukit.llm.config.use import Use


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava"])
def test_answers_of_rows_with_pictures(
    family: str, seeing_models: Callable[[str], Path], pictures: Path, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"images": ["a.png"], "messages": [{"role": "user", "content": "<image>Who?"}, said("A quiet cat.")]},
        {"prompt": "No picture?", "completion": "None at all."},
        {"images": ["missing.png"], "messages": [{"role": "user", "content": "<image>Who?"}, said("A dog.")]},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = seeing_models(family)
    use = Use.model_validate({"model": {"path": str(folder)}, "data": {"media_dir": pictures}})
    (evaluated,) = evaluate(use, [str(file)]).files
    losses = [
        *losses_of(folder, "Who?", "A quiet cat.", pictures / "a.png"),
        *losses_of(folder, "No picture?", "None at all."),
    ]
    assert (evaluated.rows, evaluated.failed, evaluated.tokens) == (3, 1, len(losses))
    assert "missing.png" in evaluated.problems[0]
    assert evaluated.perplexity == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-4)


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def losses_of(folder: Path, question: str, answer: str, picture: Path | None = None) -> list[float]:
    """Of the tokens of an answer, by transformers' own forward."""
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

    model = AutoModelForImageTextToText.from_pretrained(folder)
    tokenizer, processor = AutoTokenizer.from_pretrained(folder), AutoImageProcessor.from_pretrained(folder)
    seen = processor(images=[Image.open(picture)], return_tensors="pt") if picture else {}
    text = written(model.config.model_type, seen)[0] if picture else ""
    asked = tokenizer.encode(f"<|im_start|>user\n{text}{question}<|im_end|>\n<|im_start|>assistant\n")
    ids = torch.tensor([asked + (wanted := tokenizer.encode(answer))])
    more = {"mm_token_type_ids": (ids == model.config.image_token_id).int()} if "image_grid_thw" in seen else {}
    with torch.no_grad():
        logprobs = model(input_ids=ids, **seen, **more).logits[0].log_softmax(-1)
    return [-float(logprobs[len(asked) - 1 + at, token]) for at, token in enumerate(wanted)]
