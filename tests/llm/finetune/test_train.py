"""Fine-tuning from a configuration, beside transformers' Trainer on the same rows in the same order."""

from __future__ import annotations

import json
import random
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from npukit.errors import NpukitError
from npukit.llm.config.options import Config
from npukit.llm.data.collate import Collator, weight
from npukit.llm.data.prepare import pad_id, prepare
from npukit.llm.finetune.train import train
from npukit.llm.models import loss
from npukit.llm.models.loading import load_tokenizer
from npukit.llm.tasks.task import named
from npukit.train.claim import claim

WORDS = ["the", "sky", "is", "blue", "because", "light", "comes", "through", "air", "and", "two", "quiet", "birds"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions and answers of very different length."""
    pick = random.Random(0)
    file = tmp_path_factory.mktemp("data") / "rows.jsonl"
    with file.open("w") as lines:
        for _ in range(100):
            question, answer = (" ".join(pick.choices(WORDS, k=pick.randint(1, 30))) for _ in range(2))
            lines.write(json.dumps({"instruction": question, "output": answer}) + "\n")
    return file


def config(model: Path, data: Path, output: Path, method: str, **training: Any) -> Config:
    packing = training.pop("packing", False)
    plain = {
        "log_every": 1,
        "precision": "fp32",
        "shuffle": False,
        "save_every": None,
        "learning_rate": 1e-3,
        "workers": 0,
    }
    return Config.model_validate(
        {
            "model": {"path": str(model)},
            "tuning": {"method": method},
            "data": {"train": [str(data)], "cutoff": 256, "packing": packing},
            "training": {"output": output, **plain, **training},
        }
    )


def logged(output: Path, what: str) -> list[float]:
    lines = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    return [line[what] for line in lines if what in line]


def transformers_losses(config: Config, folder: Path) -> list[float]:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    training = config.training
    tokenizer = load_tokenizer(config.model, config.model.path)
    data = prepare(config.data, named(config.task), tokenizer, training.seed).train
    torch.manual_seed(training.seed)
    model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
    if config.tuning.method == "lora":
        options = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear")
        model = get_peft_model(model, options)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=training.max_steps or -1,
        per_device_train_batch_size=training.batch_size,
        gradient_accumulation_steps=training.accumulation,
        learning_rate=training.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=int(training.warmup),
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        train_sampling_strategy="sequential",
        use_cpu=True,
        disable_tqdm=True,
    )
    collate = Collator(False, pad_id(tokenizer))
    trainer = Trainer(model=model, args=arguments, train_dataset=data, data_collator=collate)
    trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


@pytest.mark.parametrize("method", ["lora", "full"])
def test_losses_are_those_of_transformers_trainer(method: str, tiny_qwen2: Path, rows: Path, tmp_path: Path) -> None:
    ours = config(
        tiny_qwen2, rows, tmp_path / "ours", method, max_steps=15, epochs=4, batch_size=2, accumulation=2, warmup=5
    )
    train(ours)
    expected = transformers_losses(ours, tmp_path / "theirs")
    got = logged(tmp_path / "ours", "loss")
    assert len(got) == len(expected) == 15
    assert max(abs(one - other) for one, other in zip(got, expected, strict=True)) < 1e-4
    assert got[-1] < got[0] - 0.05, "and something was learnt"


def test_packed_rows_have_the_loss_of_unpacked_ones(tiny_qwen2: Path, rows: Path, tmp_path: Path) -> None:
    """All rows in one step, packed and not: the same mean over the same labels, and the same step from there."""
    losses = {}
    for packing in (True, False):
        output = tmp_path / str(packing)
        made = config(
            tiny_qwen2, rows, output, "full", packing=packing, max_steps=2, epochs=9, accumulation=200, batch_size=1
        )
        train(made)
        losses[packing] = logged(output, "loss")
    assert len(losses[True]) == 2
    assert losses[True] == pytest.approx(losses[False], abs=1e-4)


def test_logits_are_made_of_answers_alone(
    tiny_qwen2: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, compute = [], loss.loss_and_gradient

    def count(logits: torch.Tensor, labels: torch.Tensor, words: int) -> Any:
        counted.append((labels != -100).tolist())
        return compute(logits, labels, words)

    monkeypatch.setattr(loss, "loss_and_gradient", count)
    train(config(tiny_qwen2, rows, tmp_path, "lora", packing=True, max_steps=1, batch_size=1))
    assert counted and all(map(all, counted))


def test_rows_are_padded_only_where_they_must_be(tiny_qwen2: Path, rows: Path, tmp_path: Path) -> None:
    unpacked = config(tiny_qwen2, rows, tmp_path, "lora")
    assert named("sft").joins(unpacked, can_pack=True) and not named("sft").joins(unpacked, can_pack=False)
    noisy = unpacked.tuning.model_copy(update={"noise": 5.0})  # whose size depends on the length of a row
    assert not named("sft").joins(unpacked.model_copy(update={"tuning": noisy}), can_pack=True)
    assert not named("rm").joins(unpacked, can_pack=True)


def test_an_adapter_is_what_peft_reads(tiny_qwen2: Path, rows: Path, tmp_path: Path) -> None:
    from peft import AutoPeftModelForCausalLM
    from safetensors.torch import load_file
    from transformers import AutoTokenizer
    from transformers.trainer_callback import TrainerState

    train(config(tiny_qwen2, rows, tmp_path, "lora", max_steps=2, packing=True))
    model = AutoPeftModelForCausalLM.from_pretrained(str(tmp_path))
    assert all("lora_" in name for name in load_file(tmp_path / "adapter_model.safetensors"))
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path))
    model(**tokenizer("the sky is", return_tensors="pt"))
    again = Config.model_validate_json(json.dumps(yaml.safe_load((tmp_path / "npukit.yaml").read_text())))
    state = TrainerState.load_from_json(str(tmp_path / "trainer_state.json"))
    assert state.global_step == 2 and [entry["step"] for entry in state.log_history] == [1, 2]
    assert again.model.path == str(tiny_qwen2), "the run can be repeated from its own folder"


def test_a_model_is_saved_with_the_template_that_it_was_taught(tiny_qwen2: Path, rows: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    bare = shutil.copytree(tiny_qwen2, tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    train(config(bare, rows, tmp_path / "out", "lora", max_steps=1))
    asked = [{"role": "user", "content": "Why?"}]
    saved = AutoTokenizer.from_pretrained(str(tmp_path / "out"))
    prompt = saved.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    assert prompt == "Human: Why?\nAssistant:"


def test_a_run_that_cannot_go_on_leaves_the_one_before_as_it_was(tiny_qwen2: Path, rows: Path, tmp_path: Path) -> None:
    train(config(tiny_qwen2, rows, tmp_path, "lora", max_steps=1, save_every=1))
    before = (tmp_path / "npukit.yaml").read_text()
    with pytest.raises(NpukitError, match="batch_size"):
        train(config(tiny_qwen2, rows, tmp_path, "lora", max_steps=2, batch_size=2))
    assert (tmp_path / "npukit.yaml").read_text() == before
    train(config(tiny_qwen2, rows, tmp_path, "lora", max_steps=2))
    assert "max_steps: 2" in (tmp_path / "npukit.yaml").read_text()


def test_two_runs_do_not_share_a_folder(rows: Path, tmp_path: Path) -> None:
    """The second one is refused before it reads anything: there is no such model."""
    another = ProcessPoolExecutor(1, get_context("fork"))
    with claim(tmp_path / "out"), another, pytest.raises(NpukitError, match="Another run"):
        another.submit(train, config(tmp_path / "no-model", rows, tmp_path / "out", "lora")).result()


def test_a_model_without_a_tokenizer(tiny_qwen2: Path, rows: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(tiny_qwen2, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(NpukitError, match=r"has no tokenizer: copy its tokenizer.json"):
        train(config(bare, rows, tmp_path / "out", "lora", max_steps=1))


def test_tokens_that_the_model_does_not_have(tiny_qwen2: Path, rows: Path, tmp_path: Path) -> None:
    small = shutil.copytree(tiny_qwen2, tmp_path / "small")
    shape = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps({**shape, "vocab_size": 300}))
    with pytest.raises(NpukitError, match="but the model has embeddings for 300 tokens"):
        train(config(small, rows, tmp_path / "out", "lora", max_steps=1))


def test_the_whole_model_is_what_transformers_reads(tiny_qwen2: Path, rows: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    made = config(tiny_qwen2, rows, tmp_path, "full", max_steps=2, save_every=1)
    train(made)
    model = AutoModelForCausalLM.from_pretrained(str(tmp_path))
    tokenizer = load_tokenizer(made.model, str(tiny_qwen2))
    data = prepare(made.data, named("sft"), tokenizer, 0).train
    batch = Collator(False, pad_id(tokenizer))([data[0], data[1]])
    assert weight(batch) > 0
    before = AutoModelForCausalLM.from_pretrained(str(tiny_qwen2))
    assert model(**batch).loss < before(**batch).loss
    assert AutoModelForCausalLM.from_pretrained(str(tmp_path / "checkpoint-2")) is not None


def changed_layers(output: Path, model: Path) -> set[str]:
    before, after = (load_file(folder / "model.safetensors") for folder in (model, output))
    different = [name for name in before if not torch.equal(before[name], after[name])]
    return {name.split(".")[2] if ".layers." in name else "outside" for name in different}


@pytest.mark.parametrize(
    ("turns", "steps", "changed"),
    [("badam", 1, {"0"}), ("badam", 2, {"0", "1"}), ("lisa", 2, {"0", "outside"}), ("lisa", 3, {"0", "1", "outside"})],
)
def test_layers_take_turns(
    turns: str, steps: int, changed: set[str], tiny_qwen2: Path, rows: Path, tmp_path: Path
) -> None:
    """Of one of the layers at a time; with LISA (this seed draws 0, then 1) the embeddings and the last norm, too."""
    wanted = config(tiny_qwen2, rows, tmp_path, "full", max_steps=steps, seed=1)
    tuning = {"method": "full", "turns": turns, "turn_steps": 2, "turn_layers": 1}
    train(Config.model_validate({**wanted.model_dump(), "tuning": tuning}))
    assert changed_layers(tmp_path, tiny_qwen2) == changed


TURNS = {"method": "full", "turn_steps": 2, "turn_layers": 1}
CLIPPED = {"optimizer": "muonclip", "optimizer_options": {"qk_clip_tau": 0.1}, "packing": True}


@pytest.mark.parametrize(
    ("tuning", "more"),
    [
        ({**TURNS, "turns": "lisa"}, {}),
        ({**TURNS, "turns": "badam"}, {}),
        ({"method": "lora"}, CLIPPED),
        ({"method": "bottleneck"}, {}),
    ],
    ids=["lisa", "badam", "muonclip", "bottleneck"],
)
def test_a_stopped_run_goes_on_as_if_it_had_not_been(
    tuning: dict[str, Any], more: dict[str, Any], tiny_qwen2: Path, rows: Path, tmp_path: Path
) -> None:
    for folder, lengths in (("whole", [5]), ("parts", [3, 5])):
        for steps in lengths:
            wanted = config(tiny_qwen2, rows, tmp_path / folder, "full", max_steps=steps, save_every=1, **more)
            training = {**wanted.training.model_dump(), "schedule": "constant"}
            train(Config.model_validate({**wanted.model_dump(), "tuning": tuning, "training": training}))
    assert logged(tmp_path / "parts", "loss") == logged(tmp_path / "whole", "loss")
    if more:  # the second matrix of a pair begins at zero, and the first of queries and keys only ever shrinks
        trained = load_file(tmp_path / "whole" / "adapter_model.safetensors")
        first = {
            name: trained[next(key for key in trained if f"{name}.lora_A" in key)] for name in ("q_proj", "v_proj")
        }
        assert first["q_proj"].norm() < first["v_proj"].norm() / 2


@pytest.mark.parametrize("init", ["pissa_niter_4", "lora_ga"])
def test_an_adapter_that_changed_the_model_fits_the_model_as_it_was(
    init: str, tiny_qwen2: Path, rows: Path, tmp_path: Path
) -> None:
    """What PEFT makes of the saved adapter and the untouched model has the loss that the last evaluation had."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    wanted = config(tiny_qwen2, rows, tmp_path, "lora", max_steps=2, eval_every=2, learning_rate=0.05)
    tuning = {"init": init, "convert": True, "rank": 4}
    data = {**wanted.data.model_dump(), "validation": [{"path": str(rows)}]}
    train(Config.model_validate({**wanted.model_dump(), "tuning": tuning, "data": data}))
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_qwen2), tmp_path)
    assert adapted.peft_config["default"].r == 8
    tokenizer = load_tokenizer(wanted.model, str(tiny_qwen2))
    encoded = prepare(wanted.data, named("sft"), tokenizer, 0).train
    batch = Collator(False, pad_id(tokenizer), 256)([encoded[number] for number in range(len(encoded))])
    with torch.no_grad():
        loss = adapted(**batch).loss
    assert float(loss) == pytest.approx(logged(tmp_path, "eval_loss")[-1], abs=1e-4)
