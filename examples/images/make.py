"""Make what the guide on images trains: a tiny Qwen2.5-VL with random weights, pictures and clips, and questions.

    python examples/images/make.py demo

The model is too small to learn to see; it shows every step, on any machine, in seconds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

COLOURS = ("red", "green", "blue", "black")
SHAPES = ("circle", "square")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
SPECIAL += ["<|video_pad|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make(folder: Path) -> None:
    """Write model/, and pictures/ and clips/ with their rows.jsonl."""
    make_pictures(folder / "pictures")
    make_clips(folder / "clips")
    make_model(folder / "model")


def make_pictures(folder: Path) -> None:
    """A picture of every shape in every colour, and what is asked about it."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, (colour, shape) in enumerate((colour, shape) for colour in COLOURS for shape in SHAPES):
        picture = Image.new("RGB", (112 + 28 * (number % 3), 112), "white")
        draw = ImageDraw.Draw(picture)
        (draw.ellipse if shape == "circle" else draw.rectangle)((20, 20, 90, 90), fill=colour)
        picture.save(folder / f"{colour}-{shape}.png")
        turns = [
            {"role": "user", "content": "<image>What is this?"},
            {"role": "assistant", "content": f"A {colour} {shape}."},
        ]
        rows.append({"messages": turns, "images": [f"{colour}-{shape}.png"]})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_clips(folder: Path) -> None:
    """Videos as folders of frames: a circle of every colour that moves to the left or to the right."""
    rows = []
    for colour in COLOURS:
        for way, places in (("left", (70, 50, 30, 10)), ("right", (10, 30, 50, 70))):
            clip = folder / f"{colour}-{way}"
            clip.mkdir(parents=True, exist_ok=True)
            for number, place in enumerate(places):
                frame = Image.new("RGB", (112, 56), "white")
                ImageDraw.Draw(frame).ellipse((place, 10, place + 30, 40), fill=colour)
                frame.save(clip / f"{number}.png")
            turns = [
                {"role": "user", "content": "<video>Where does it go?"},
                {"role": "assistant", "content": f"To the {way}."},
            ]
            rows.append({"messages": turns, "videos": [clip.name]})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_tokenizer() -> Any:
    """A byte-level tokenizer with Qwen's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=401, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([f"What is this? A {each}." for each in (*COLOURS, *SHAPES)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )


def make_model(folder: Path) -> None:
    """Two layers of text and two of vision."""
    tokenizer = make_tokenizer()
    start, end, image, video = (tokenizer.convert_tokens_to_ids(token) for token in SPECIAL[3:])
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
    }
    tower = {"depth": 2, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 64, "num_heads": 2}
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config={**tower, "fullatt_block_indexes": [1]},
        vision_start_token_id=start,
        vision_end_token_id=end,
        image_token_id=image,
        video_token_id=video,
    )
    torch.manual_seed(0)
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor | {"temporal_patch_size": 2}))
    video_processor = {"size": {"shortest_edge": 3136, "longest_edge": 100352}, "fps": 2}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video_processor))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
