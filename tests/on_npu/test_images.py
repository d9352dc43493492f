"""A model that sees, on an NPU: its tower's attention, the places of features, and their gradients."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.seeing import FAMILIES, ROPE, write_processor
from tests.seeing import TEXT as SMALL_TEXT

from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams
from npukit.inference.pictures import read
from npukit.llm import families
from npukit.llm.config.options import Config
from npukit.llm.data.collate import Collator
from npukit.llm.finetune.train import adapt
from npukit.llm.images.images import Images, RowImage
from npukit.llm.medium import MediaItem
from npukit.llm.models.attention import NAME, register
from npukit.llm.models.vision import register as register_tower
from npukit.llm.tasks.losses.tokens import loss_of

IMAGE = 7
TEXT = {**SMALL_TEXT, "vocab_size": 300, "rope_parameters": ROPE}
TOWER = {"depth": 2, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "num_heads": 2}
VISION = {
    "qwen2_5_vl": {**TOWER, "fullatt_block_indexes": [1]},
    "qwen3_vl": {**TOWER, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
}


PADDED = ("gemma3", "mllama")
TOWERS = {  # a weight that gradients reach last
    "llava": "model.vision_tower.embeddings.patch_embedding.weight",
    "gemma3": "model.vision_tower.embeddings.patch_embedding.weight",
    "mllama": "model.vision_model.patch_embedding.weight",
}


def shape_of(family: str) -> Any:
    from transformers import AutoConfig

    if family in VISION:
        return AutoConfig.for_model(family, text_config=TEXT, vision_config=VISION[family], image_token_id=IMAGE)
    text, vision = FAMILIES[family]
    text = {**SMALL_TEXT, "vocab_size": 300, "pad_token_id": 0, **text}
    more = {"mm_tokens_per_image": 4} if family == "gemma3" else {}
    return AutoConfig.for_model(family, text_config=text, vision_config=vision, image_token_index=IMAGE, **more)


def images_of(config: Any, folder: Path) -> Images:
    from transformers import AutoImageProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor: Any
    if config.model_type in VISION:
        patch = config.vision_config.patch_size
        processor = Qwen2VLImageProcessorPil(patch_size=patch, min_pixels=4 * patch**2, max_pixels=256 * patch**2)
    else:
        write_processor(config.model_type, folder)
        processor = AutoImageProcessor.from_pretrained(folder)
    vision = families.vision_of(config)
    assert vision
    data = Config.model_validate({"model": {"path": "x"}, "data": {"train": ["x"], "media_dir": folder}}).data
    return Images(vision, processor, config, data)


def seen(config: Any, folder: Path) -> dict[str, Any]:
    """Two rows with three images as one batch."""
    from PIL import Image

    images = images_of(config, folder)
    random = np.random.default_rng(0)
    rows = []
    for sizes in ([(150, 260), (60, 60)], [(90, 120)]):
        own: list[RowImage] = []
        ids: list[int] = []
        for number, size in enumerate(sizes):
            name = f"{len(rows)}{number}.png"
            Image.fromarray(random.integers(0, 255, (*size[::-1], 3), np.uint8)).save(folder / name)
            own.append(images.measure(MediaItem("image", name)))
            ids += [*random.integers(10, 300, 5).tolist(), *[IMAGE] * own[-1].size.tokens]
        ids += random.integers(10, 300, 9).tolist()
        labels = np.array([-100] * (len(ids) - 6) + ids[-6:])
        rows.append({"input_ids": np.array(ids), "labels": labels, "images": [own]})
    return Collator(config.model_type not in PADDED, 0, images=images)(rows)


@pytest.mark.parametrize("family", [*VISION, *TOWERS])
def test_loss_and_gradients_are_the_cpus(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText

    register()
    register_tower()
    torch.manual_seed(0)
    shape = shape_of(family)
    kinds = {"": NAME, "text_config": NAME, "vision_config": "sdpa"} if family not in PADDED else None
    model = AutoModelForImageTextToText.from_config(shape, attn_implementation=kinds)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 0.5) if parameter.numel() == 1 else None  # gates, which begin shut
    batch = seen(shape, tmp_path)
    free = {"method": "full", "freeze_vision_tower": False, "freeze_projector": False}
    wanted = Config.model_validate({"model": {"path": "x"}, "data": {"train": ["x"]}, "tuning": free})
    code = __import__(type(model.model.language_model).__module__, fromlist=["x"])
    rotary = code.apply_rotary_pos_emb
    actual = {}
    try:
        for device, dtype in (("cpu", torch.float32), ("npu", torch.float32), ("npu", torch.bfloat16)):
            on_device = adapt(copy.deepcopy(model).to(device), wanted, torch.device(device))
            moved = _to(batch, device)
            with torch.autocast(device, torch.bfloat16, enabled=dtype == torch.bfloat16):
                loss = loss_of(on_device, moved, 4096)
            loss.backward()
            first = on_device.get_parameter(TOWERS.get(family, "model.visual.patch_embed.proj.weight"))
            gradient = first.grad.float().cpu()
            actual[device, dtype] = loss.item(), gradient
    finally:
        code.apply_rotary_pos_emb = rotary
    wanted_loss, gradient = actual["cpu", torch.float32]
    assert actual["npu", torch.float32][0] == pytest.approx(wanted_loss, abs=1e-5)
    torch.testing.assert_close(actual["npu", torch.float32][1], gradient, rtol=1e-3, atol=1e-6)
    assert actual["npu", torch.bfloat16][0] == pytest.approx(wanted_loss, abs=2e-2)


def asked(config: Any, pictures: list[list[tuple[int, int]]]) -> list[Request]:
    """Prompts with pictures of these sizes, or none."""
    from PIL import Image

    images = images_of(config, Path())
    random = np.random.default_rng(1)
    requests = []
    for sizes in pictures:
        measured = []
        ids = random.integers(10, 300, 5).tolist()
        for size in sizes:
            content = io.BytesIO()
            Image.fromarray(random.integers(0, 255, (*size[::-1], 3), np.uint8)).save(content, "PNG")
            measured.append(images.measure_content("image", content.getvalue(), "the picture"))
            ids += [*[IMAGE] * measured[-1].size.tokens, *random.integers(10, 300, 4).tolist()]
        media = None if not sizes else read(images, measured, ids)
        greedy = SamplingParams(temperature=0, max_tokens=4, logprobs=0)
        requests.append(Request(tuple(ids), greedy, media=media))
    return requests


@pytest.mark.parametrize("family", VISION)
def test_answers_about_pictures_are_the_cpus(family: str) -> None:
    """In chunks, with a request of text between; by fused operators and graphs in half precision."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.manual_seed(0)
    shape = AutoConfig.for_model(family, text_config=TEXT, vision_config=VISION[family], image_token_id=IMAGE)
    model = AutoModelForImageTextToText.from_config(shape)
    requests = asked(shape, [[(150, 260), (60, 60)], [], [(90, 120)]])
    size = {"max_num_seqs": 4, "max_model_len": 300, "max_num_batched_tokens": 50}
    actual = {}
    for device, dtype in (("cpu", torch.float32), ("npu", torch.float32), ("npu", torch.float16)):
        engine = Engine(copy.deepcopy(model).to(device, dtype), EngineOptions(**size))
        actual[device, dtype] = engine.generate(requests)
    wanted = [[token.logprob for token in answer.tokens] for answer in actual["cpu", torch.float32]]
    for answer, logprobs in zip(actual["npu", torch.float32], wanted, strict=True):
        assert [token.logprob for token in answer.tokens] == pytest.approx(logprobs, abs=1e-4)
    for answer, logprobs in zip(actual["npu", torch.float16], wanted, strict=True):
        assert answer.tokens[0].logprob == pytest.approx(logprobs[0], abs=2e-2)


def _to(value: Any, device: str) -> Any:
    if isinstance(value, dict):
        return {name: _to(item, device) for name, item in value.items()}
    return value.to(device) if isinstance(value, torch.Tensor) else value
