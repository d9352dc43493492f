"""Answers about videos are those of transformers' own generate, batched with pictures and text, in chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.inference.vision.test_answers import AS_GREEDY, SMALL, Answer, asked, assert_same
from tests.llm.images.test_video import clips

from npukit.inference.engine import Engine
from npukit.inference.engine.request import Request
from npukit.inference.loading import Loaded, load
from npukit.llm.config.use import EngineOptions, Use

__all__ = ["clips"]  # a fixture
WHAT = {"type": "text", "text": "What happens?"}
TALKS: list[Any] = [
    [{"role": "user", "content": [{"type": "video", "video": "walk"}, WHAT]}],
    [{"role": "user", "content": [{"type": "image", "image": "000.png"}, {"type": "video", "video": "run"}, WHAT]}],
    [{"role": "user", "content": [{"type": "video", "video": ["run/000.png", "run/003.png"]}, WHAT]}],
    [{"role": "user", "content": "No video at all."}],
]


def generated(folder: Path, loaded: Loaded, requests: list[Request]) -> list[Answer]:
    """By transformers' generate, which gets images and videos apart; positions by the rule of the models' own code."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder)
    answers = []
    for request in requests:
        ids, media = torch.tensor([request.prompt]), request.media
        batch: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        kinds = (ids == model.config.image_token_id).int() + 2 * (ids == model.config.video_token_id).int()
        model.model.rope_deltas = None
        if media is not None and media.positions is not None:
            steps = {1: [], 2: []}
            for picture in media.pictures:
                steps[int(kinds[0, picture.start])].append(picture)
            for kind, pixels, grid in (
                (1, "pixel_values", "image_grid_thw"),
                (2, "pixel_values_videos", "video_grid_thw"),
            ):
                if own := steps[kind]:
                    batch[pixels] = torch.from_numpy(np.concatenate([picture.pixels for picture in own]))
                    batch[grid] = torch.tensor([[sum(picture.grid[0] for picture in own), *own[0].grid[1:]]])
            places, delta = torch.from_numpy(media.positions)[:, None], torch.tensor([[media.offset]])
            model.model.get_rope_index = lambda *_, places=places, delta=delta, **__: (places, delta)
            batch["mm_token_type_ids"] = kinds
        generated_ = model.generate(**batch, **AS_GREEDY)
        tokens = generated_.sequences[0, ids.shape[1] :].tolist()
        logprobs = [
            step[0].log_softmax(-1)[token].item() for step, token in zip(generated_.logits, tokens, strict=True)
        ]
        answers.append(list(zip(tokens, logprobs, strict=True)))
    return answers


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"])
def test_answers_are_those_of_transformers(family: str, seeing_models: Callable[[str], Path], clips: Path) -> None:
    model = load(Use.model_validate({"model": {"path": str(seeing_models(family))}}))
    requests = asked(model, TALKS, clips)
    wanted = generated(seeing_models(family), model, requests)
    engine = Engine(model.model, EngineOptions(**SMALL, max_num_batched_tokens=7))
    for _ in range(2):  # the second time from the prefix cache
        assert_same(engine.generate(requests), wanted)
    assert engine.is_paged
    assert engine.stats().cached_tokens or family == "qwen3_5"  # whose states no prompt can begin with
