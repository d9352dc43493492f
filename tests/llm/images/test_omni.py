"""Thinkers of Qwen's Omni models, which see and hear: their towers' inputs, and losses and answers of transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.llm.images.test_losses import config, logged, mean_loss
from tests.llm.images.test_media import encoder, of
from tests.seeing import (
    OMNI,
    RATE,
    make_omni_model,
    make_tokenizer,
    sound,
    write_clips,
    write_pictures,
    write_recordings,
)

from npukit.export.merge import merge
from npukit.inference.engine import Engine
from npukit.inference.engine.request import SamplingParams
from npukit.inference.loading import load
from npukit.inference.pictures import from_disk
from npukit.llm.config.use import EngineOptions, Use
from npukit.llm.data.encode import Encoder
from npukit.llm.data.layout import lay_out
from npukit.llm.data.row import Layout
from npukit.llm.finetune.train import train
from npukit.llm.images.audio import read_samples
from npukit.llm.medium import COLUMNS, MediaItem

ROWS: list[tuple[str, dict[str, list[str]]]] = [
    ("<image>What is <audio>?", {"images": ["c.png"], "audios": ["b.wav"]}),
    ("<audio>Who?", {"audios": ["long.wav"]}),
    ("<audio> and <audio><video>", {"audios": ["c.wav", "b.wav"], "videos": ["walk"]}),
    ("<image>What?", {"images": ["a.png"]}),
    ("nothing", {}),
]


@pytest.fixture(scope="session")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    for write in (write_pictures, write_recordings, write_clips):
        write(folder)
    omni_rows(folder)
    return folder


@pytest.fixture(scope="session", params=OMNI)
def omni(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("omni") / request.param
    make_omni_model(make_tokenizer(), folder, request.param)
    return folder


def omni_rows(folder: Path) -> Path:
    """Conversations with pictures, recordings, clips, several of them and none."""
    (folder / "c.wav").write_bytes(sound(1.3))
    file = folder / "omni.jsonl"
    with file.open("w") as lines:
        for text, media in ROWS:
            turns = [{"role": "user", "content": text}, {"role": "assistant", "content": "a cat sees two birds"}]
            lines.write(json.dumps({"messages": turns, **media}) + "\n")
    return file


def heard(processor: Any, folder: Path, names: list[str], padding: str = "max_length") -> Any:
    """As transformers' own processors hear them, each by itself."""
    found = []
    for name in names:
        samples = read_samples(folder / name, RATE, name)
        options = {"return_attention_mask": True, "padding": padding, "truncation": padding != "longest"}
        found.append(processor(samples, sampling_rate=RATE, return_tensors="pt", **options))
    longest = max(each["attention_mask"].shape[1] for each in found)
    return {
        key: torch.cat([torch.nn.functional.pad(each[key], (0, longest - each[key].shape[-1])) for each in found])
        for key in ("input_features", "attention_mask")
    }


def padding_of(omni: Path) -> str:
    return "longest" if omni.name.startswith("qwen3") else "max_length"


def batches(made: Encoder, rows: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Each row for transformers' own forward, which finds the positions by itself."""
    assert made.images
    place = Path(made.tokenizer.name_or_path)
    seconds = 25 if padding_of(place) == "max_length" else made.images._shape.position_id_per_seconds
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        (encoded,) = made.encode([lay_out(row, Layout("messages"))])
        assert isinstance(encoded, list)
        tokens, images = encoded[0].tokens, encoded[0].images
        batch: dict[str, Any] = {"input_ids": torch.tensor([of(encoded)])}
        batch |= {"labels": torch.from_numpy(np.where(tokens >= 0, tokens, -100)).long()[None]}
        batch |= {"attention_mask": torch.ones_like(batch["input_ids"])}
        for kind, name, grid in (("image", "pixel_values", "image"), ("video", "pixel_values_videos", "video")):
            if own := [image for image in images if image.kind == kind]:
                pixels, grids = made.images.pixels(own)
                batch |= {name: torch.from_numpy(pixels), f"{grid}_grid_thw": torch.tensor(grids)}
                if kind == "video":
                    batch |= {"video_second_per_grid": torch.tensor([each.size.interval / seconds for each in own])}
        if row.get("audios"):
            features = heard(made.images.audio_processor, folder, row["audios"], padding_of(place))
            batch |= {"input_features": features["input_features"]}
            batch |= {"feature_attention_mask": features["attention_mask"]}
        yield batch


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", ["c", "b", "long"])
def test_frames_are_those_of_the_processor(side: str, name: str, omni: Path, media: Path) -> None:
    images = encoder(omni, media_dir=media).images
    assert images
    images.audio_processor.padding_side = side
    own = heard(images.audio_processor, media, [f"{name}.wav"], padding_of(omni))
    wanted = own["input_features"][0].T[own["attention_mask"][0].bool()].numpy()
    size = images.measure(MediaItem("audio", f"{name}.wav")).size
    pixels, grids = images.pixels([images.measure(MediaItem("audio", f"{name}.wav"))])
    assert grids == [(1, 1, len(wanted))] and size.tokens == tokens(omni, len(wanted))
    assert np.allclose(pixels, wanted, atol=1e-5)


def tokens(omni: Path, frames: int) -> int:
    from transformers.models.qwen2_5_omni import processing_qwen2_5_omni as first
    from transformers.models.qwen3_omni_moe import processing_qwen3_omni_moe as second

    own = second if omni.name.startswith("qwen3") else first
    return int(own._get_feat_extract_output_lengths(torch.tensor(frames)))


def test_positions_are_those_of_the_model(omni: Path, media: Path) -> None:
    """Also behind a video, where the next text goes on after its highest position."""
    from transformers import AutoModelForImageTextToText

    made = encoder(omni, media_dir=media)
    model = AutoModelForImageTextToText.from_pretrained(omni)
    rows = media / "omni.jsonl"
    for line, batch in zip(rows.read_text().splitlines(), batches(made, rows, media), strict=True):
        (encoded,) = made.encode([lay_out(json.loads(line), Layout("messages"))])
        assert isinstance(encoded, list) and made.images
        lengths = batch["feature_attention_mask"].sum(1) if "feature_attention_mask" in batch else None
        wanted = model.model.get_rope_index(
            batch["input_ids"],
            batch.get("image_grid_thw"),
            batch.get("video_grid_thw"),
            batch["attention_mask"],
            audio_seqlens=lengths,
            second_per_grids=batch.get("video_second_per_grid"),
        )[0][:, 0]
        assert np.array_equal(made.images.positions(np.array(of(encoded)), encoded[0].images), wanted.numpy())


def test_ms_swift_takes_a_second_for_two_frames(omni: Path, media: Path) -> None:
    own, swift = (encoder(omni, media_dir=media, video_fps=0.5, **more).images for more in ({}, SWIFT))
    assert own and swift
    measured = [images.measure(MediaItem("video", "walk")).size for images in (own, swift)]
    assert [size.interval for size in measured] == ([50.0, 50.0] if padding_of(omni) == "longest" else [100.0, 25.0])


SWIFT = {"tokens": "ms_swift", "template": "qwen2_5_omni"}


@pytest.mark.parametrize("packing", [False, True])
def test_losses_are_those_of_transformers_row_by_row(packing: bool, omni: Path, media: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText

    rows = media / "omni.jsonl"
    train(config(omni, rows, tmp_path, batch_size=64 if packing else 8, data={"packing": packing, "cache": False}))
    model = AutoModelForImageTextToText.from_pretrained(omni)
    wanted = mean_loss(model, batches(encoder(omni, media_dir=media, cutoff=512), rows, media))
    assert logged(tmp_path)[0] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("row", range(len(ROWS)))
def test_both_towers_are_trained_whatever_a_batch_has(row: int, omni: Path, media: Path, tmp_path: Path) -> None:
    """Every trained parameter has a gradient: other ranks wait for those of towers that have nothing to do here."""
    from npukit.llm.data.collate import Collator
    from npukit.llm.finetune.train import make_model

    free = {"method": "full", "freeze_vision_tower": False, "freeze_projector": False}
    wanted = config(omni, media / "omni.jsonl", tmp_path, tuning=free)
    model = make_model(wanted, str(omni), torch.device("cpu"))
    made = encoder(omni, media_dir=media)
    assert made.images
    text, media_of_row = ROWS[row]
    turns = [{"role": "user", "content": text}, {"role": "assistant", "content": "a cat"}]
    (encoded,) = made.encode([lay_out({"messages": turns, **media_of_row}, Layout("messages"))])
    assert isinstance(encoded, list)
    tokens = encoded[0].tokens
    example = {"input_ids": np.array(of(encoded)), "labels": np.where(tokens >= 0, tokens, -100)}
    batch = Collator(True, 0, images=made.images.with_blanks())([{**example, "images": [list(encoded[0].images)]}])
    del batch["labels"]
    model(**batch).logits.sum().backward()
    without = {name for name, each in model.named_parameters() if each.requires_grad and each.grad is None}
    assert not without


def test_answers_are_those_of_transformers(omni: Path, media: Path) -> None:
    """With a picture and a recording in a request, in one batch with others."""
    from transformers import AutoModelForImageTextToText

    model = load(Use.model_validate({"model": {"path": str(omni)}}))
    own = AutoModelForImageTextToText.from_pretrained(omni)
    kinds = COLUMNS
    greedy = SamplingParams(temperature=0, max_tokens=8)
    requests, expected = [], []
    made = encoder(omni, media_dir=media)
    for (_, given), batch in zip(ROWS, batches(made, media / "omni.jsonl", media), strict=True):
        parts: list[Any] = [
            {"type": kinds[column], kinds[column]: name} for column, names in given.items() for name in names
        ]
        talk = [{"role": "user", "content": [*parts, {"type": "text", "text": "Who?"}]}]
        request = model.request(talk, greedy, fetch=from_disk(media, media))[1]
        requests.append(request)
        prompt = torch.tensor([request.prompt])
        given_media = {name: value for name, value in batch.items() if name not in ("input_ids", "labels")}
        answered = own.generate(
            **given_media | {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)},
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        expected.append(answered[0, prompt.shape[1] :].tolist())
    engine = Engine(
        model.model, EngineOptions(max_model_len=512, block_size=8, num_blocks=400, max_num_batched_tokens=64)
    )
    assert [list(answer.ids) for answer in engine.generate(requests)] == expected


def test_a_whole_model_is_read_without_what_speaks_and_merged_with_it(omni: Path, media: Path, tmp_path: Path) -> None:
    """As it lies on the hub: config.json has the thinker beside the talker, weights are called by older names."""
    from safetensors.torch import load_file, save_file

    for file in omni.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    thinker = json.loads((omni / "config.json").read_text())
    whole = {"model_type": omni.name.removesuffix("_thinker"), "thinker_config": thinker}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    old = {
        name.replace("model.language_model.", "model.").replace("model.visual", "visual"): value
        for name, value in load_file(omni / "model.safetensors").items()
    }
    old = {f"thinker.{name.replace('model.audio_tower', 'audio_tower')}": value for name, value in old.items()}
    save_file({**old, "talker.codec_head.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors", {"format": "pt"})
    thinkers, read = parameters(omni), parameters(tmp_path)
    assert thinkers.keys() == read.keys()
    assert all(torch.equal(value, read[name]) for name, value in thinkers.items())
    train(config(tmp_path, media / "omni.jsonl", tmp_path / "adapter", batch_size=8))
    merge(tmp_path, [tmp_path / "adapter"], tmp_path / "merged")
    adapted, merged = parameters(tmp_path / "adapter"), parameters(tmp_path / "merged")
    assert all(torch.equal(value, merged[name]) for name, value in adapted.items())
    assert "talker.codec_head.weight" in load_file(tmp_path / "merged" / "model.safetensors")


def parameters(folder: Path) -> dict[str, Any]:
    return dict(load(Use.model_validate({"model": {"path": str(folder)}})).model.named_parameters())
