"""Training with images, beside transformers' own forward of one row at a time."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.seeing import FAMILIES, NOT_FOR_MODELS, about_tokens, processor_of, write_rows, written

from npukit.llm.config.options import Config, HeadOptions
from npukit.llm.finetune.train import train

# Families whose attention knows no packs.
PADDED = ("qwen3_5", "qwen3_5_moe", "minicpmv4_6", "gemma3", "gemma4", "paligemma", "mllama", "llama4")


@pytest.fixture(scope="session")
def rows(pictures: Path) -> Path:
    return write_rows(pictures)


def config(model: Path, rows: Path, output: Path, **given: Any) -> Config:
    training = {"log_every": 1, "precision": "fp32", "shuffle": False, "save_every": None, "workers": 0, "plot": False}
    return Config.model_validate(
        {
            "model": {"path": str(model)},
            "tuning": {"method": "lora", **given.pop("tuning", {})},
            "data": {"train": [str(rows)], "media_dir": rows.parent, "cutoff": 512, **given.pop("data", {})},
            "training": {"output": output, "learning_rate": 1e-3, "epochs": 1, **training, **given},
        }
    )


def logged(output: Path) -> list[float]:
    lines = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def batches_of(config: Config, model: Any) -> Iterator[dict[str, Any]]:
    """Each row as transformers' own parts make it."""
    from PIL import Image
    from transformers import AutoTokenizer

    folder = config.model.path
    tokenizer, processor = AutoTokenizer.from_pretrained(folder), processor_of(Path(folder))
    for line in Path(config.data.train[0].path).read_text().splitlines():
        row = json.loads(line)
        images = [Image.open(pictures_of(config) / name) for name in row["images"]]
        more = {"crop_to_patches": True} if model.config.model_type == "internvl" else {}
        seen = processor(images=images, return_tensors="pt", **more) if images else {}
        labels, ids = [], []
        texts = iter(written(model.config.model_type, seen) if images else [])
        for number, turn in enumerate(row["messages"]):
            pieces = turn["content"].split("<image>")
            text = pieces[0]
            for piece in pieces[1:]:
                text += next(texts) + piece
            parts = (f"<|im_start|>{turn['role']}\n", False), (f"{text}<|im_end|>", bool(number % 2)), ("\n", False)
            for part, counts_here in parts:
                tokens = tokenizer.encode(part, add_special_tokens=False)
                ids += tokens
                labels += tokens if counts_here else [-100] * len(tokens)
        batch = {"input_ids": torch.tensor([ids]), "labels": torch.tensor([labels]), **seen}
        kind, token = model.config.model_type, model.config.image_token_id
        batch |= about_tokens(kind, batch["input_ids"], seen, token, first(labels))
        yield {name: value for name, value in batch.items() if name not in NOT_FOR_MODELS}


def first(labels: list[int]) -> int:
    """Where the first answer begins."""
    return next(at for at, label in enumerate(labels) if label != -100)


def pictures_of(config: Config) -> Path:
    assert config.data.media_dir
    return config.data.media_dir


def counted(batch: dict[str, Any]) -> int:
    return int((batch["labels"] != -100).sum())


def losses_of(model: Any, batches: Iterable[dict[str, Any]]) -> list[tuple[float, int]]:
    """The sum of the losses of each batch, and of how many tokens, by transformers' own forward."""
    with torch.no_grad():
        return [(float(model(**batch).loss) * counted(batch), counted(batch)) for batch in batches]


def mean_loss(model: Any, batches: Iterable[dict[str, Any]]) -> float:
    """The mean over the tokens of all batches, by transformers' own forward."""
    sums = losses_of(model, batches)
    return sum(loss for loss, _ in sums) / sum(count for _, count in sums)


def of_transformers(config: Config) -> list[tuple[float, int]]:
    """The sum of the losses of each row, and of how many tokens, by the model as it is."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(config.model.path)
    return losses_of(model, batches_of(config, model))


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_are_those_of_transformers_row_by_row(
    family: str, seeing_models: Callable[[str], Path], rows: Path, tmp_path: Path
) -> None:
    by_rows = config(seeing_models(family), rows, tmp_path / "rows", batch_size=12, data={"cache": False})
    sums = of_transformers(by_rows)
    mean = sum(loss for loss, _ in sums) / sum(count for _, count in sums)
    ways = [by_rows]
    if family not in PADDED:
        data = {"packing": True, "cache": False}
        ways.append(config(seeing_models(family), rows, tmp_path / "packs", batch_size=64, data=data))
    for wanted in ways:
        train(wanted)
        assert logged(wanted.training.output)[0] == pytest.approx(mean, abs=1e-5)


def test_the_smaller_gemma_4_looks_ahead_in_no_image(
    seeing_models: Callable[[str], Path], rows: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(seeing_models("gemma4"), folder)
    shape = json.loads((folder / "config.json").read_text())
    shape["text_config"]["use_bidirectional_attention"] = None
    (folder / "config.json").write_text(json.dumps(shape))
    wanted = config(folder, rows, tmp_path / "run", batch_size=12, data={"cache": False})
    train(wanted)
    sums = of_transformers(wanted)
    mean = sum(loss for loss, _ in sums) / sum(count for _, count in sums)
    assert logged(tmp_path / "run")[0] == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize(("family", "packing"), [("qwen3_vl", True), ("llama4", False)])
def test_steps_are_those_of_transformers_with_everything_trained(
    family: str, packing: bool, seeing_models: Callable[[str], Path], rows: Path, tmp_path: Path
) -> None:
    """Gradients reach tower, projector and language model, through packed rows and recomputed layers."""
    free = {"freeze_vision_tower": False, "freeze_projector": False}
    folder = seeing_models(family)
    wanted = config(
        folder,
        rows,
        tmp_path,
        batch_size=1 if packing else 12,
        data={"packing": packing, "pack_length": 2048},
        tuning={"method": "full", **free},
        optimizer="sgd",
        learning_rate=0.05,
        schedule="constant",
        warmup=0,
        max_grad_norm=1e9,
        weight_decay=0.0,
        epochs=4,
        activation_checkpointing=True,
    )
    train(wanted)
    assert logged(tmp_path) == pytest.approx(steps_of_transformers(wanted, 4), abs=1e-5)


def steps_of_transformers(config: Config, steps: int) -> list[float]:
    """All rows make a step, one after the other."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(config.model.path)
    return steps_with(model, list(batches_of(config, model)), config.training.learning_rate, steps)


def steps_with(model: Any, batches: list[dict[str, Any]], rate: float, steps: int) -> list[float]:
    """The losses of so many steps of SGD, each over all batches."""
    optimizer, means = torch.optim.SGD(model.parameters(), rate), []
    count = sum(counted(batch) for batch in batches)
    for _ in range(steps):
        optimizer.zero_grad()
        losses = [model(**batch).loss * counted(batch) / count for batch in batches]
        for loss in losses:
            loss.backward()
        optimizer.step()
        means.append(float(sum(loss.detach() for loss in losses)))
    return means


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_padded_rows_have_the_same_loss(
    family: str, seeing_models: Callable[[str], Path], rows: Path, tmp_path: Path
) -> None:
    """As preferences have them, where rows cannot be joined."""
    from npukit.llm.data.collate import Collator
    from npukit.llm.data.prepare import prepare
    from npukit.llm.finetune.train import make_model
    from npukit.llm.models.loading import load_config, load_images, load_tokenizer
    from npukit.llm.tasks.task import named

    wanted = config(
        seeing_models(family), rows, tmp_path, data={"packing": False, "cache": False}, tuning={"noise": 1.0}
    )
    folder = wanted.model.path
    images = load_images(wanted.model, folder, load_config(wanted.model, folder), wanted.data)
    assert images
    tokenizer = load_tokenizer(wanted.model, folder)
    data = prepare(wanted.data, named("sft"), tokenizer, 0, images=images).train
    model = make_model(wanted, folder, torch.device("cpu"), tokenizer).eval()
    with torch.no_grad():
        batch = Collator(False, 0, images=images)([data[number] for number in range(12)])
        found = float(model(**batch))
    sums = of_transformers(wanted)
    assert found == pytest.approx(sum(loss for loss, _ in sums) / sum(count for _, count in sums), abs=1e-5)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llama4"])
def test_a_batch_without_images_has_a_blank_one_where_the_tower_is_trained(
    family: str, seeing_models: Callable[[str], Path], rows: Path, tmp_path: Path
) -> None:
    """Otherwise ranks would wait for each other: those with images for the gradients of the others."""
    lines = rows.read_text().splitlines()
    text = tmp_path / "text.jsonl"
    text.write_text("\n".join(line for line in lines if '"images": []' in line))
    free = {"method": "full", "freeze_vision_tower": False, "freeze_projector": False}
    wanted = config(seeing_models(family), text, tmp_path / "run", tuning=free, batch_size=8, max_steps=1)
    train(wanted)
    from safetensors.torch import load_file

    before, after = (load_file(each / "model.safetensors") for each in (Path(wanted.model.path), tmp_path / "run"))
    sums = of_transformers(wanted)
    mean = sum(loss for loss, _ in sums) / sum(count for _, count in sums)
    assert logged(tmp_path / "run")[0] == pytest.approx(mean, abs=1e-5)
    assert before.keys() == after.keys() and (tmp_path / "run" / "preprocessor_config.json").is_file()


def test_what_is_frozen_stays(seeing_models: Callable[[str], Path], rows: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    chosen = {"method": "full", "freeze_projector": False, "freeze_language_model": True}
    wanted = config(seeing_models("qwen2_vl"), rows, tmp_path, tuning=chosen, max_steps=1, batch_size=8)
    train(wanted)
    before, after = (load_file(each / "model.safetensors") for each in (Path(wanted.model.path), tmp_path))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all(".merger." in name for name in changed)


@pytest.mark.parametrize("family", ["llava", "llava_onevision", "internvl", "gemma3"])
def test_all_that_is_trained_has_gradients(
    family: str, seeing_models: Callable[[str], Path], rows: Path, tmp_path: Path
) -> None:
    """Otherwise ranks would wait for those of a tower's layers behind the one whose features are used."""
    from npukit.llm.finetune.train import make_model

    free = {"method": "full", "freeze_vision_tower": False, "freeze_projector": False}
    wanted = config(seeing_models(family), rows, tmp_path, tuning=free)
    model = make_model(wanted, wanted.model.path, torch.device("cpu"))
    body = model.base_model
    size = body.config.vision_config.image_size
    side = size if isinstance(size, int) else size[0]
    sizes = {} if family != "llava_onevision" else {"image_sizes": torch.tensor([[side, side]])}
    count = 3 if sizes else 1  # the whole, and the tiles of the smallest resolution that holds it
    pixels = torch.randn(count, 3, side, side)
    body.get_image_features(pixel_values=pixels, return_dict=True, **sizes).pooler_output[0].sum().backward()
    trained = {name for name, each in model.named_parameters() if each.requires_grad and "language_model" not in name}
    moved = {name for name, each in model.named_parameters() if each.grad is not None}
    assert trained - {"lm_head.weight"} <= moved and any("vision_tower" in name for name in trained)


@pytest.mark.parametrize(
    ("tuning", "parts"),
    [
        ({}, {"language_model"}),
        ({"freeze_vision_tower": False}, {"language_model", "visual.blocks"}),
        ({"targets": ["q_proj", "qkv"], "freeze_vision_tower": False}, {"language_model", "visual.blocks"}),
        ({"freeze_language_model": True, "freeze_projector": False}, {"visual.merger"}),
    ],
)
def test_adapters_sit_on_what_is_trained(
    tuning: dict[str, Any], parts: set[str], seeing_models: Callable[[str], Path], rows: Path, tmp_path: Path
) -> None:
    from npukit.llm.finetune.train import make_model

    wanted = config(seeing_models("qwen2_5_vl"), rows, tmp_path, tuning=tuning)
    model = make_model(wanted, wanted.model.path, torch.device("cpu"))
    names = [name for name, _ in model.named_parameters() if "lora_A" in name]
    known = ("language_model", "visual.blocks", "visual.merger", "lm_head")
    assert {part for name in names for part in known if part in name} == parts


def test_preferences_with_images(seeing_models: Callable[[str], Path], pictures: Path, tmp_path: Path) -> None:
    """Both answers see the pictures: the first loss of DPO is log 2, and training moves it."""
    file = tmp_path / "pairs.jsonl"
    pair = {"prompt": "<image>Who?", "chosen": "a cat", "rejected": "two birds", "images": ["a.png"]}
    file.write_text("".join(json.dumps(pair | {"images": [f"{name}.png"]}) + "\n" for name in "abcd"))
    wanted = config(
        seeing_models("qwen2_5_vl"), file, tmp_path / "run", data={"media_dir": pictures}, batch_size=4, epochs=3
    )
    train(wanted.model_copy(update={"task": "dpo"}))
    losses = logged(tmp_path / "run")
    assert losses[0] == pytest.approx(0.693147, abs=1e-5) and losses[-1] < losses[0]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "mllama"])
def test_a_reward_model_sees(family: str, seeing_models: Callable[[str], Path], pictures: Path, tmp_path: Path) -> None:
    """Its new layer scores what transformers' own code makes of the text and the picture."""
    from transformers import AutoModel

    from npukit.llm.finetune.train import make_model

    file = tmp_path / "pairs.jsonl"
    pair = {"prompt": "<image>Who?", "chosen": "a cat", "rejected": "two birds"}
    file.write_text("".join(json.dumps(pair | {"images": [f"{name}.png"]}) + "\n" for name in "ab"))
    wanted = config(seeing_models(family), file, tmp_path / "run", data={"media_dir": pictures}, batch_size=2)
    wanted = wanted.model_copy(update={"task": "rm"})
    train(wanted)
    score = make_model(wanted, wanted.model.path, torch.device("cpu")).base_model.model.score
    body = AutoModel.from_pretrained(wanted.model.path)
    rows = tmp_path / "rows.jsonl"
    answered = [{"messages": turns(pair[answer]), "images": [f"{name}.png"]} for answer in PAIR for name in "ab"]
    rows.write_text("\n".join(map(json.dumps, answered)))
    alone = config(seeing_models(family), rows, tmp_path, data={"media_dir": pictures})
    with torch.no_grad():
        states = [body(**without_labels(batch))[0][0, -1] for batch in batches_of(alone, body)]
        chosen, rejected = score(torch.stack(states)).flatten().chunk(2)
    loss = -(chosen - rejected).sigmoid().log().mean()
    assert logged(tmp_path / "run")[0] == pytest.approx(float(loss), abs=1e-5)


HEADS: dict[str, tuple[dict[str, Any], list[str]]] = {  # rows with a picture, and the texts that are read of each
    "classify": ({"label": 1}, ["<image>Who?"]),
    "embed": ({"positive": ["a cat"]}, ["<image>Who?", "a cat"]),
    "rerank": ({"positive": ["a cat"], "negative": ["two birds"]}, ["<image>Who?a cat", "<image>Who?two birds"]),
}


@pytest.mark.parametrize("task", HEADS)
def test_models_that_classify_embed_or_rank_see(
    task: str, seeing_models: Callable[[str], Path], pictures: Path, tmp_path: Path
) -> None:
    """By the last states that transformers' own code makes of the texts and their pictures."""
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    from npukit.llm.finetune.train import make_model

    columns, texts = HEADS[task]
    file, folder = tmp_path / "rows.jsonl", seeing_models("qwen2_5_vl")
    file.write_text(
        "".join(json.dumps({"query": "<image>Who?", "images": [f"{n}.png"], **columns}) + "\n" for n in "ac")
    )
    given = config(folder, file, tmp_path / "run", data={"media_dir": pictures, "packing": False}, batch_size=2)
    wanted = given.model_copy(update={"task": task, "head": HeadOptions(similarity="cosine_similarity")})
    train(wanted)
    body, processor = AutoModel.from_pretrained(folder), AutoImageProcessor.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    states = []
    for name, text in itertools.product("ac", texts):
        seen = (
            processor(images=[Image.open(pictures / f"{name}.png")], return_tensors="pt") if "<image>" in text else {}
        )
        for image in written("qwen2_5_vl", seen) if seen else []:
            text = text.replace("<image>", image)
        ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
        kinds = about_tokens("qwen2_5_vl", ids, seen, body.config.image_token_id, 0)
        with torch.no_grad():
            states.append(body(input_ids=ids, **seen, **kinds)[0][0, -1])
    model = make_model(wanted, str(folder), torch.device("cpu"))
    hidden = torch.stack(states)
    scores = None if task == "embed" else model.base_model.model.score(hidden).detach()
    if scores is None:
        loss = (torch.cosine_similarity(hidden[::2], hidden[1::2]) - 1).square().mean()
    elif task == "classify":
        loss = torch.nn.functional.cross_entropy(scores, torch.tensor([1, 1]))
    else:
        fits = torch.tensor([1.0, 0.0, 1.0, 0.0])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores.flatten(), fits)
    assert logged(tmp_path / "run")[0] == pytest.approx(float(loss), abs=1e-5)


PAIR = ("chosen", "rejected")


def without_labels(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name != "labels"}


def turns(answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": "<image>Who?"}, {"role": "assistant", "content": answer}]


@pytest.mark.parametrize(
    ("family", "tuning"),
    [("qwen2_5_vl", {}), ("llava", {}), ("qwen2_5_vl", {"whole_tower": True, "projector_rate": 1e-4})],
)
def test_an_adapter_is_merged_as_peft_does(
    family: str, tuning: dict[str, Any], seeing_models: Callable[[str], Path], rows: Path, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    from npukit.export.merge import merge

    folder = seeing_models(family)
    train(config(folder, rows, tmp_path / "run", max_steps=2, batch_size=4, tuning=tuning))
    merge(folder, [tmp_path / "run"], tmp_path / "merged")
    found = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged").state_dict()
    base = AutoModelForImageTextToText.from_pretrained(folder)
    wanted = PeftModel.from_pretrained(base, str(tmp_path / "run")).merge_and_unload().state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name], wanted[name], atol=1e-6) for name in wanted)
    before = AutoModelForImageTextToText.from_pretrained(folder).state_dict()
    changed = {name for name in before if not torch.equal(before[name], found[name])}
    assert any("visual" in name for name in changed) == ("whole_tower" in tuning)
