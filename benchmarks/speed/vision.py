"""Models that see: LoRA on pictures beside transformers' Trainer, and answers to many clients beside its generate.

    PYTHONPATH=src:SITE python -m benchmarks vision --shape 7b
    PYTHONPATH=src python -m benchmarks vision --shape tiny --rows 8 --clients 2 --answer 4

SITE is a folder with pydantic and what else the machine lacks. Qwen2.5-VL's shape with new weights, pictures of 640 x
480 pixels (391 tokens) as JPEG files, a question and an answer of some words. Training: LoRA of rank 8 on the linear
layers of the language model, the tower frozen, bf16, about 16 rows a step; both read and process the pictures in 8
workers, and padding does not count as a token. Serving: every client has a picture of its own, whose pixels are ready,
and all answers have the same length; the time begins with the tower. Every contestant runs in a process of its own.
"""

from __future__ import annotations

import functools
import io
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from benchmarks.contest import result, results
from examples.images.make import SPECIAL, make_tokenizer
from PIL import Image

ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "7b": (
        {
            "vocab_size": 152064,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "rope_parameters": ROPE,
        },
        {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584},
    ),
    "tiny": (
        {
            "vocab_size": 512,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_parameters": {**ROPE, "mrope_section": [2, 3, 3]},
        },
        {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64},
    ),
}
Result = dict[str, float]
WORDS = ("a", "cat", "on", "the", "mat", "sees", "two", "quiet", "birds", "through", "blue", "air", "and", "rain")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZE, STEP, WORKERS, RATE, LONGEST = (640, 480), 16, 8 if DEVICE == "cuda" else 0, 1e-4, 2048
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32


def make_folder(folder: Path, shape: str, rows: int) -> None:
    """A model without weights, pictures, and questions about them."""
    tokenizer = make_tokenizer()
    start, end, image = (tokenizer.convert_tokens_to_ids(token) for token in SPECIAL[3:6])
    text, vision = SHAPES[shape]
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config: dict[str, Any] = {"model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"]}
    config |= {"text_config": {**text, **ends, "max_position_embeddings": 32768}, "vision_config": vision}
    config |= {"vision_start_token_id": start, "vision_end_token_id": end, "image_token_id": image}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    tokenizer.save_pretrained(folder)
    processor = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor | {"temporal_patch_size": 2}))
    pick, noise = random.Random(0), np.random.default_rng(0)
    with (folder / "rows.jsonl").open("w") as lines:
        for number in range(rows):
            coarse = Image.fromarray(noise.integers(0, 255, (48, 64, 3), np.uint8))
            coarse.resize(SIZE).save(folder / f"{number}.jpg")
            turns = [
                {"role": "user", "content": "<image>" + " ".join(pick.choices(WORDS, k=pick.randint(4, 20)))},
                {"role": "assistant", "content": " ".join(pick.choices(WORDS, k=pick.randint(4, 80)))},
            ]
            lines.write(json.dumps({"messages": turns, "images": [f"{number}.jpg"]}) + "\n")


def wait() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def rate_of(times: list[float], tokens: list[int]) -> float:
    """Tokens a second of the second half of the steps; each time is the beginning of a step."""
    half = len(times) // 2
    return sum(tokens[half : len(times) - 1]) / (times[-1] - times[half])


def train_npukit(folder: Path, batch: int, length: int, recompute: bool) -> Result:
    """`batch` packs of `length` tokens in a pass."""
    from transformers import AutoTokenizer

    from npukit.llm.config.options import Config
    from npukit.llm.finetune import train as finetune

    training: dict[str, Any] = {"output": folder / f"output{os.getpid()}", "epochs": 1, "save_every": None}
    training |= {"plot": False, "shuffle": False, "batch_size": batch, "log_every": 1}
    training |= {"precision": "bf16" if DEVICE == "cuda" else "fp32", "learning_rate": RATE, "workers": WORKERS}
    wanted = {
        "model": {"path": str(folder), "from_config": True},
        "tuning": {"method": "lora", "rank": 8},
        "data": {"train": [str(folder / "rows.jsonl")], "media_dir": folder, "cutoff": LONGEST},
        "training": {**training, "activation_checkpointing": recompute},
    }
    wanted["data"] |= {"packing": True, "pack_length": length}
    times, tokens = clocked_passes(finetune, AutoTokenizer.from_pretrained(folder).pad_token_id)
    finetune.train(Config.model_validate(wanted))
    return result(rate_of(times, tokens))


def clocked_passes(finetune: Any, padding: int) -> tuple[list[float], list[int]]:
    """When the passes of a training begin, and how many tokens each has besides padding."""
    from npukit.llm.data.collate import tokens as count

    times: list[float] = []
    tokens: list[int] = []
    adapt = finetune.adapt

    def adapted(*args: Any, **kwargs: Any) -> Any:
        model = adapt(*args, **kwargs)

        def note(_: Any, args: Any, batch: Any) -> None:
            if model.training and "labels" in batch:
                times.append(wait())
                tokens.append(count(batch, padding))

        model.register_forward_pre_hook(note, with_kwargs=True)
        return model

    finetune.adapt = adapted
    return times, tokens


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """The same rows for transformers' Trainer, tokenised before, with pixels when a worker reads them."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoImageProcessor, AutoTokenizer

        self._folder, self._processor = folder, AutoImageProcessor.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        count = self._seen(0)["image_grid_thw"].prod().item() // 4
        lines = (folder / "rows.jsonl").read_text().splitlines()
        self.rows = [encoded(tokenizer, json.loads(line)["messages"], count) for line in lines]

    def _seen(self, number: int) -> Any:
        return self._processor(images=[Image.open(self._folder / f"{number}.jpg")], return_tensors="pt")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        ids, labels = self.rows[number]
        return {"input_ids": ids, "labels": labels, **self._seen(number)}


def encoded(tokenizer: Any, messages: list[dict[str, str]], count: int) -> tuple[list[int], list[int]]:
    picture = f"<|vision_start|>{'<|image_pad|>' * count}<|vision_end|>"
    question, answer = (message["content"].replace("<image>", picture) for message in messages)
    head = tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
    tail = tokenizer.encode(f"{answer}<|im_end|>\n")
    return [*head, *tail], [-100] * len(head) + tail


def padded(rows: list[dict[str, Any]], image_token: int) -> dict[str, Any]:
    """A batch, as a collator of transformers' examples makes it."""
    longest = max(len(row["input_ids"]) for row in rows)

    def filled(name: str, filler: int) -> torch.Tensor:
        return torch.tensor([row[name] + [filler] * (longest - len(row[name])) for row in rows])

    ids = filled("input_ids", 0)
    mask = torch.tensor([[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows])
    grids = torch.cat([row["image_grid_thw"] for row in rows])
    batch = {"input_ids": ids, "labels": filled("labels", -100), "attention_mask": mask, "image_grid_thw": grids}
    batch |= {"pixel_values": torch.cat([row["pixel_values"] for row in rows])}
    return {**batch, "mm_token_type_ids": (ids == image_token).int()}


def train_transformers(folder: Path, batch: int, checkpointing: bool) -> Result:
    from peft import LoraConfig, get_peft_model
    from transformers import Trainer, TrainerCallback, TrainingArguments

    times: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            times.append(wait())

    rows, model = Rows(folder), make_model(folder)
    targets = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
    image_token = model.config.image_token_id
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=targets))
    if checkpointing:
        model.enable_input_require_grads()
    options = TrainingArguments(
        output_dir=str(folder / f"output{os.getpid()}"),
        num_train_epochs=1,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=STEP // batch,
        learning_rate=RATE,
        bf16=DEVICE == "cuda",
        use_cpu=DEVICE == "cpu",
        gradient_checkpointing=checkpointing,
        logging_steps=10**6,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_num_workers=WORKERS,
    )
    collate = functools.partial(padded, image_token=image_token)
    Trainer(model, args=options, train_dataset=rows, data_collator=collate, callbacks=[Clock()]).train()
    lengths = [len(ids) for ids, _ in rows.rows]  # shuffled: all steps have about as many
    return result(rate_of(times, [round(sum(lengths) / len(times))] * len(times)))


def make_model(folder: Path) -> Any:
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder), dtype=DTYPE)
    return model.eval()


def shown(folder: Path, clients: int) -> Iterator[tuple[list[int], bytes]]:
    """A prompt and a picture for each client."""
    from transformers import AutoTokenizer

    tokenizer, noise = AutoTokenizer.from_pretrained(folder), np.random.default_rng(1)
    for number in range(clients):
        content = io.BytesIO()
        Image.fromarray(noise.integers(0, 255, (48, 64, 3), np.uint8)).resize(SIZE).save(content, "JPEG")
        ids, _ = encoded(tokenizer, [{"content": f"<image>Who is {number}?"}, {"content": ""}], 391)
        yield ids[:-2], content.getvalue()


def serve_npukit(folder: Path, clients: int, answer: int) -> Result:
    from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams
    from npukit.inference.pictures import read
    from npukit.llm.config.options import DataOptions, ModelOptions, Source
    from npukit.llm.models.loading import load_images

    model = make_model(folder)
    data = DataOptions(train=(Source(path="requests"),))
    images = load_images(ModelOptions(path=str(folder)), str(folder), model.config, data)
    assert images
    sampling = SamplingParams(temperature=0, max_tokens=answer)
    requests = [
        Request(tuple(ids), sampling, media=read(images, [images.measure_content("image", content, "it")], ids))
        for ids, content in shown(folder, clients)
    ]
    size: dict[str, Any] = {"max_model_len": 2048, "max_num_seqs": clients, "enable_prefix_caching": False}
    engine = Engine(model, EngineOptions(**size, gpu_memory_utilization=0.8))
    engine.warm_up()
    engine.generate(requests)
    first: dict[int, float] = {}
    began = wait()

    def note(output: Any) -> None:
        first.setdefault(output.request_id, time.perf_counter() - began)

    engine.generate(requests, note)
    seconds = wait() - began
    return result(clients * answer / seconds, first=float(np.median(list(first.values()))))


def serve_transformers(folder: Path, clients: int, answer: int, at_once: int) -> Result:
    from transformers import AutoImageProcessor

    model, processor = make_model(folder), AutoImageProcessor.from_pretrained(folder)
    ready = []
    for ids, content in shown(folder, clients):
        seen = processor(images=[Image.open(io.BytesIO(content))], return_tensors="pt")
        ready.append({"input_ids": ids, "labels": [], **seen})
    count = clients if at_once > 1 else min(clients, 8)
    groups = [ready[start : start + at_once] for start in range(0, count, at_once)]
    batches = [left_padded(group, model.config.image_token_id) for group in groups]
    fixed = {"max_new_tokens": answer, "min_new_tokens": answer, "do_sample": False, "pad_token_id": 0}
    with torch.inference_mode():
        model.generate(**batches[0], **fixed)
        began = wait()
        for batch in batches:
            model.model.rope_deltas = None
            model.generate(**batch, **fixed)
    return result(count * answer / (wait() - began))


def left_padded(rows: list[dict[str, Any]], image_token: int) -> dict[str, Any]:
    """A batch to generate from, on the device."""
    longest = max(len(row["input_ids"]) for row in rows)
    missing = [longest - len(row["input_ids"]) for row in rows]
    ids = torch.tensor([[0] * gap + row["input_ids"] for row, gap in zip(rows, missing, strict=True)])
    mask = torch.tensor([[0] * gap + [1] * (longest - gap) for gap in missing])
    batch = {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": (ids == image_token).int()}
    batch["pixel_values"] = torch.cat([row["pixel_values"] for row in rows]).to(DTYPE)
    batch["image_grid_thw"] = torch.cat([row["image_grid_thw"] for row in rows])
    return {name: value.to(DEVICE) for name, value in batch.items()}


def contestants(folder: Path, clients: int, answer: int) -> dict[str, Callable[[], Result]]:
    return {
        "training: npukit, 1 pack of 8,192 tokens": functools.partial(train_npukit, folder, 1, 8192, False),
        "training: npukit, 2 packs of 8,192": functools.partial(train_npukit, folder, 2, 8192, False),
        "training: npukit, 4 packs of 2,048": functools.partial(train_npukit, folder, 4, LONGEST, False),
        "training: npukit, 1 pack of 8,192, recomputing": functools.partial(train_npukit, folder, 1, 8192, True),
        "training: Trainer, 8 rows x 2": functools.partial(train_transformers, folder, 8, False),
        "training: Trainer with gradient checkpointing, 8 rows x 2": functools.partial(
            train_transformers, folder, 8, True
        ),
        "training: Trainer, 2 rows x 8": functools.partial(train_transformers, folder, 2, False),
        f"serving: npukit, {clients} clients": functools.partial(serve_npukit, folder, clients, answer),
        "serving: generate, all in one batch": functools.partial(serve_transformers, folder, clients, answer, clients),
        "serving: generate, 16 at a time": functools.partial(serve_transformers, folder, clients, answer, 16),
        "serving: generate, one by one": functools.partial(serve_transformers, folder, clients, answer, 1),
    }


def main(
    shape: Annotated[str, SHAPES] = "tiny",
    rows: int = 32 * STEP,
    clients: int = 64,
    answer: int = 128,
    only: Annotated[str, "the contestants whose names contain this"] = "",
) -> None:
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    print(f"{device}, torch {torch.__version__}\n| | tokens/s | npukit is | peak GiB |\n|---|---|---|---|", flush=True)
    ours: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        make_folder(Path(place), shape, rows)
        every = contestants(Path(place), clients, answer)
        for name, got in results({name: run for name, run in every.items() if only in name}):
            if "failed" in got:
                print(f"| {name} | failed: {got['failed']} |", flush=True)
                continue
            speed = got["tokens_per_second"]
            best = ours.setdefault(name.partition(":")[0], speed)
            more = f", first token after {got['first']:.2f} s" if "first" in got else ""
            print(f"| {name}{more} | {speed:,.0f} | {best / speed:.2f} times | {got['peak_gib']:.1f} |", flush=True)
