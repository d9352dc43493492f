"""Audio of rows: its tokens by the header, what the tower hears, and training and answers beside transformers."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.llm.images.test_losses import config, logged, mean_loss
from tests.llm.images.test_media import ANSWERED, encoder, of
from tests.seeing import RATE, make_hearing_model, make_tokenizer, sound, write_recordings

from npukit.inference.engine import Engine
from npukit.inference.engine.request import SamplingParams
from npukit.inference.loading import load
from npukit.inference.pictures import from_disk
from npukit.llm.config.use import EngineOptions, Use
from npukit.llm.data.encode import Encoder
from npukit.llm.data.layout import lay_out
from npukit.llm.data.row import BadRow, Illustrated, Layout
from npukit.llm.finetune.train import train
from npukit.llm.images.audio import read_length, read_samples, resampled
from npukit.llm.images.files import BadImage
from npukit.llm.medium import MediaItem

ASKED = {"role": "user", "content": "<audio>What is said?"}


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    write_recordings(folder)
    return folder


@pytest.fixture(scope="session")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hearing")
    make_hearing_model(make_tokenizer(), folder)
    return folder


def test_rows_have_audio_as_they_have_images() -> None:
    part = {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}
    content = [part, {"type": "text", "text": "What is said?"}]
    found = lay_out({"messages": [{"role": "user", "content": content}, ANSWERED]}, Layout("messages"))
    assert found == Illustrated([ASKED, ANSWERED], (MediaItem("audio", "data:audio/wav;base64,QUJD"),))
    found = lay_out({"query": "<audio>What is said?", "response": "A cat.", "audios": ["a.wav"]}, Layout("messages"))
    assert found == Illustrated([ASKED, ANSWERED], (MediaItem("audio", "a.wav"),))


@pytest.mark.parametrize("name", ["a", "b", "long"])
def test_tokens_by_the_header_are_those_that_the_tower_makes(name: str, hearing: Path, recordings: Path) -> None:
    made = encoder(hearing, media_dir=recordings).images
    assert made
    samples = read_samples(recordings / f"{name}.wav", RATE, name)
    assert len(samples) == read_length(recordings / f"{name}.wav", RATE, name)
    heard = made.processor(
        samples, sampling_rate=RATE, return_attention_mask=True, padding="max_length", return_tensors="np"
    )
    frames = int(heard["attention_mask"].sum())
    size = made.measure(MediaItem("audio", f"{name}.wav")).size
    assert size.grid == (1, 1, frames) and size.tokens == ((frames - 1) // 2 + 1 - 2) // 2 + 1


def test_another_rate_keeps_the_tone() -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(44_100) / 44_100).astype(np.float32)
    wanted = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    made = np.concatenate([*resampled([tone], 44_100, RATE)])
    assert len(made) == RATE and np.abs(made - wanted)[100:-100].max() < 2e-3


def test_odd_rates_take_no_more_memory() -> None:
    """The shortest period of 44,101 and 16,000 samples a second is a second; with blocks or without, it is the same."""
    noise = np.random.default_rng(0).normal(size=3 * 44_101).astype(np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = np.concatenate([*resampled([noise], 44_101, RATE)])
    assert len(made) == 3 * RATE and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
    parts = np.split(noise, [1, 5, 900, 44_101, 44_102])
    assert np.array_equal(np.concatenate([*resampled(parts, 44_101, RATE)]), made)


def rows_of(folder: Path) -> Path:
    file = folder / "rows.jsonl"
    asked = [("<audio>Who?", ["a.wav"]), ("One <audio> or <audio>?", ["b.wav", "a.wav"]), ("nothing", [])]
    lines = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "cat " * 3}], "audios": names}
        for text, names in asked
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def batches(made: Encoder, rows: Path, folder: Path) -> list[dict[str, Any]]:
    """Each row for transformers' own forward, with what its feature extractor makes of it."""
    assert made.images
    found = []
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        (encoded,) = made.encode([lay_out(row, Layout("messages"))])
        assert isinstance(encoded, list)
        tokens = encoded[0].tokens
        batch: dict[str, Any] = {"input_ids": torch.tensor([of(encoded)])}
        batch["labels"] = torch.from_numpy(np.where(tokens >= 0, tokens, -100)).long()[None]
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        if row["audios"]:
            samples = [read_samples(folder / name, RATE, name) for name in row["audios"]]
            heard = made.images.processor(
                samples, sampling_rate=RATE, return_attention_mask=True, padding="max_length", return_tensors="pt"
            )
            batch |= {"input_features": heard["input_features"], "feature_attention_mask": heard["attention_mask"]}
        found.append(batch)
    return found


@pytest.mark.parametrize("packing", [False, True])
def test_losses_are_those_of_transformers_row_by_row(
    packing: bool, hearing: Path, recordings: Path, tmp_path: Path
) -> None:
    from transformers import Qwen2AudioForConditionalGeneration

    rows = rows_of(recordings)
    train(config(hearing, rows, tmp_path, batch_size=8, data={"packing": packing, "cache": False}))
    model = Qwen2AudioForConditionalGeneration.from_pretrained(hearing)
    wanted = mean_loss(model, batches(encoder(hearing, media_dir=recordings, cutoff=512), rows, recordings))
    assert logged(tmp_path)[0] == pytest.approx(wanted, abs=1e-5)


def test_answers_are_those_of_transformers(hearing: Path, recordings: Path) -> None:
    from transformers import Qwen2AudioForConditionalGeneration

    model = load(Use.model_validate({"model": {"path": str(hearing)}}))
    talks: list[Any] = [
        [{"role": "user", "content": [{"type": "audio", "audio": name}, {"type": "text", "text": "Who?"}]}]
        for name in ("a.wav", "b.wav")
    ]
    greedy = SamplingParams(temperature=0, max_tokens=8)
    requests = [model.request(talk, greedy, fetch=from_disk(recordings, recordings))[1] for talk in talks]
    engine = Engine(
        model.model, EngineOptions(max_model_len=512, block_size=8, num_blocks=200, max_num_batched_tokens=7)
    )
    found = [answer.ids for answer in engine.generate(requests)]
    own = Qwen2AudioForConditionalGeneration.from_pretrained(hearing)
    for request, name, ids in zip(requests, ("a.wav", "b.wav"), found, strict=True):
        assert model.images
        heard = model.images.processor(
            read_samples(recordings / name, RATE, name),
            sampling_rate=RATE,
            return_attention_mask=True,
            padding="max_length",
            return_tensors="pt",
        )
        prompt = torch.tensor([request.prompt])
        wanted = own.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            input_features=heard["input_features"],
            feature_attention_mask=heard["attention_mask"],
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert ids == wanted[0, prompt.shape[1] :].tolist()
    text = model.tokenizer.decode(requests[0].prompt)
    assert "user\nAudio 1: <|audio_bos|><|AUDIO|>" in text and "<|audio_eos|>\nWho?" in text


@pytest.mark.parametrize("case", ["missing", "text", "cut", "short", "image", "none"])
def test_what_is_no_audio_gets_one_sentence(case: str, hearing: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.wav"
    contents = {"text": b"no audio", "cut": sound(1.0)[:30], "short": sound(0.01), "none": b""}
    if case in contents:
        file.write_bytes(contents[case])
    media: Any = (MediaItem("image" if case == "image" else "audio", "a.wav"),)
    turns = [{**ASKED, "content": "<image>?"} if case == "image" else ASKED, ANSWERED]
    (found,) = encoder(hearing, media_dir=tmp_path).encode([Illustrated(turns, media)])
    assert isinstance(found, BadRow) and "\n" not in str(found)
    assert case == "image" or "a.wav" in str(found)


def test_other_formats_are_read_by_soundfile(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    samples = read_samples(sound(0.5), RATE, "it")
    soundfile.write(tmp_path / "a.flac", samples, RATE, subtype="PCM_16")
    assert np.allclose(read_samples(tmp_path / "a.flac", RATE, "it"), samples, atol=1e-4)
    with pytest.raises(BadImage):
        read_samples(sound(0.5)[:2000], RATE, "it")
