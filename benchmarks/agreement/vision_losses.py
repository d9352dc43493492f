"""Train models that see, and compare every loss with transformers' own forward of one row at a time.

    python -m benchmarks vision_losses [--device cpu sim] [--devices 1 2] [--steps 20] [--only qwen2_5_vl,llava]
    python -m benchmarks vision_losses --rows 300                       # instead: ids, labels, pixels and positions

Tiny models of every family with new weights, twelve conversations with none, one or two pictures; qwen2_audio has
recordings instead, thinkers of Omni models have all of it, and a name such as qwen3_vl-video stands for clips, beside
pictures and without. All weights are trained, those of the tower and the projector too, in fp32 with SGD, a step for
all rows, packed or padded. The model of transformers is fed with its own image processor's pixels and its own
positions, on the CPU. Nothing is downloaded. Aim: every loss within 1e-5.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.llm.images import test_audio, test_omni, test_video
from tests.llm.images.test_losses import batches_of, logged, steps_of_transformers, steps_with
from tests.llm.images.test_media import encoder
from tests.seeing import (
    FAMILIES,
    OMNI,
    VIDEO_FAMILIES,
    make_hearing_model,
    make_model,
    make_omni_model,
    make_tokenizer,
    write_clips,
    write_pictures,
    write_recordings,
    write_rows,
)
from transformers import AutoModelForImageTextToText, AutoModelForMultimodalLM

from npukit.llm.config.options import Config
from npukit.llm.data.prepare import prepare
from npukit.llm.finetune.train import train
from npukit.llm.images.images import Images
from npukit.llm.models.loading import load_config, load_images
from npukit.llm.tasks.sft import SFT
from npukit.llm.tasks.task import named

RATE = "LEARNING_RATE"  # the variable that tells it to ranks
ROWS, ROW = 12, 640  # and the tokens of a pack, of which there are as many as ranks divide
BATCHES = ("packed", "padded")
HEARS = "qwen2_audio"
WITH_VIDEO = {f"{family}-video": family for family in VIDEO_FAMILIES}


def wanted(folder: Path, family: str, batches: str, device: str, ranks: int, steps: int) -> Config:
    output = folder / f"{family}-{batches}-{device}-{ranks}"
    training: dict[str, Any] = {"output": output, "optimizer": "sgd", "schedule": "constant"}
    training["learning_rate"] = float(os.environ.get(RATE, 0.05))
    training |= {"warmup": 0, "max_grad_norm": 1e9, "weight_decay": 0.0, "precision": "fp32", "shuffle": False}
    training |= {"epochs": steps, "max_steps": steps, "batch_size": ROWS // ranks, "log_every": 1, "save_every": None}
    packing = {"packing": batches == "packed", "pack_length": ROW if batches == "packed" else None}
    return Config.model_validate(
        {
            "model": {"path": str(folder / family)},
            "tuning": {"method": "full", "freeze_vision_tower": False, "freeze_projector": False},
            "data": {"train": [str(rows_of(folder, family))], "media_dir": folder, "cutoff": ROW, "cache": False}
            | packing,
            "training": {**training, "plot": False, "workers": 0},
        }
    )


def rows_of(folder: Path, family: str) -> Path:
    """Those with recordings, clips or pictures, or with all of them."""
    names = {HEARS: "sounds", **dict.fromkeys(OMNI, "all"), **dict.fromkeys(WITH_VIDEO, "clips")}
    return folder / f"{names.get(family, 'rows')}.jsonl"


def write_all(folder: Path) -> None:
    """Pictures, recordings and clips, and twelve rows with each."""
    for write in (write_recordings, write_clips, write_pictures):
        write(folder)
    video, omni = next(iter(WITH_VIDEO)), next(iter(OMNI))
    for family, make_rows in ((HEARS, test_audio.rows_of), (video, test_video.video_rows), (omni, test_omni.omni_rows)):
        lines = make_rows(folder).read_text().splitlines(keepends=True)
        rows_of(folder, family).write_text("".join((lines * ROWS)[:ROWS]))
    write_rows(folder, ROWS)


def make(family: str, folder: Path) -> None:
    """Its model, and a tokenizer."""
    tokenizer = make_tokenizer()
    if family == HEARS:
        make_hearing_model(tokenizer, folder / family)
    elif family in OMNI:
        make_omni_model(tokenizer, folder / family, family)
    else:
        make_model(WITH_VIDEO.get(family, family), tokenizer, folder / family)


def steps_expected(folder: Path, family: str, steps: int) -> list[float]:
    """The losses of transformers."""
    config = wanted(folder, family, "padded", "cpu", 1, steps)
    if family in FAMILIES:
        return steps_of_transformers(config, steps)
    made, rows = encoder(folder / family, media_dir=folder, cutoff=ROW), rows_of(folder, family)
    alone = {HEARS: test_audio.batches, **dict.fromkeys(OMNI, test_omni.batches)}
    batches = alone[family](made, rows, folder) if family in alone else test_video.batches_with_videos(made, rows)
    model = (AutoModelForImageTextToText if family in OMNI else AutoModelForMultimodalLM).from_pretrained(
        folder / family
    )
    return steps_with(model, list(batches), config.training.learning_rate, steps)


def equal_rows(config: Config, tokenizer: Any) -> tuple[int, int]:
    """How many rows there are, and of how many the tokens, labels, pixels and positions are those of transformers."""
    place = str(config.model.path)
    shape = load_config(config.model, place)
    images = load_images(config.model, place, shape, config.data)
    assert images
    rows: Any = prepare(config.data, named("sft"), tokenizer, 0, images=images).train
    model = AutoModelForImageTextToText.from_config(shape)
    whole = {row["input_ids"].tobytes(): row for row in map(rows.__getitem__, range(len(rows)))}
    batches = list(batches_of(config, model))
    return len(batches), sum(is_equal(whole, batch, images, model.model) for batch in batches)


def is_equal(rows: dict[bytes, Any], batch: dict[str, Any], images: Images, body: Any) -> bool:
    row = rows.get(batch["input_ids"][0].numpy().tobytes())
    if row is None:
        return False
    own = images.inputs(row["input_ids"], [(slice(None), row["images"][0])])
    same = (row["labels"] == batch["labels"][0].numpy()).all()
    if "pixel_values" in batch:
        theirs = unpadded(batch).numpy()
        theirs = images.vision.pixels({"pixel_values": theirs}) if "target_sizes" in batch else theirs
        same &= np.array_equal(own["pixel_values"], theirs)
    if "image_grid_thw" in batch:
        grids = {name: batch[name] for name in ("input_ids", "mm_token_type_ids", "image_grid_thw")}
        same &= np.array_equal(own["position_ids"], body.get_rope_index(**grids)[0][:, 0].numpy())
    return bool(same)


def unpadded(batch: dict[str, Any]) -> torch.Tensor:
    """The tiles or patches of all images; where one has fewer than another, its processor adds empty ones."""
    pixels: torch.Tensor = batch["pixel_values"]
    if "image_position_ids" in batch:
        return pixels[(batch["image_position_ids"] >= 0).all(-1)]
    if pixels.dim() < 5:
        return pixels
    return torch.cat([image[image.flatten(1).abs().sum(1) > 0] for image in pixels])


def train_all(folder: Path, names: list[str], device: str, ranks: int, steps: int) -> None:
    """As one of the ranks."""
    SFT.joins = lambda self, config, can_pack: config.data.packing  # type: ignore[method-assign]
    for family in names:
        for batches in BATCHES:
            train(wanted(folder, family, batches, device, ranks, steps))


def start(folder: Path, arguments: argparse.Namespace, device: str, ranks: int) -> None:
    again = [sys.executable, "-m", "npukit", "run", "--device", device, "--devices", str(ranks)]
    again += ["-m", "benchmarks.agreement.vision_losses", "--folder", str(folder), "--only", arguments.only]
    again += ["--steps", str(arguments.steps), "--device", device, "--devices", str(ranks)]
    subprocess.run(again, check=True, env={**os.environ, "NPUKIT_VERBOSITY": "quiet"}, stdout=subprocess.DEVNULL)


def show_rows(names: list[str], count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, tokenizer = Path(name), make_tokenizer()
        write_pictures(folder)
        write_rows(folder, count)
        for family in names:
            make_model(family, tokenizer, folder / family)
            rows, same = equal_rows(wanted(folder, family, "padded", "cpu", 1, 1), tokenizer)
            print(f"{family:16} {same} of {rows} rows have transformers' ids, labels, pixels and positions", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", nargs="+", default=["cpu", "sim"])
    parser.add_argument("--devices", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rate", default="0.05", help="of learning")
    parser.add_argument("--only", default=",".join(FAMILIES), help="families, as qwen2_5_vl,llava")
    parser.add_argument("--rows", type=int, default=0, help="compare so many rows instead of losses")
    parser.add_argument("--folder", type=Path, help="of the models: this is one of the ranks")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    os.environ.setdefault(RATE, arguments.rate)
    if arguments.rows:
        show_rows(names, arguments.rows)
        return
    if arguments.folder:
        train_all(arguments.folder, names, arguments.device[0], arguments.devices[0], arguments.steps)
        return
    with tempfile.TemporaryDirectory() as name:
        folder, expected = Path(name), {}
        write_all(folder)
        for family in names:
            make(family, folder)
            expected[family] = steps_expected(folder, family, arguments.steps)
        for device in arguments.device:
            for ranks in arguments.devices:
                start(folder, arguments, device, ranks)
                for family in names:
                    for batches in BATCHES:
                        actual = logged(folder / f"{family}-{batches}-{device}-{ranks}")
                        worst = max(abs(own - other) for own, other in zip(actual, expected[family], strict=True))
                        change = f"{len(actual)} losses, {actual[0]:.4f} → {actual[-1]:.4f}"
                        print(
                            f"{ranks} x {device} {family:17} {batches}: {change}, at most {worst:.1e} apart", flush=True
                        )


if __name__ == "__main__":
    main()
