"""--dry-run: what a run needs, known before anything is loaded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npukit.llm.config.options import Config, ModelOptions
from npukit.llm.config.schema import choices
from npukit.llm.models.outline import look_at
from npukit.llm.reading.read import read
from npukit.performance.plan.job import Plan, plan
from npukit.performance.plan.memory import GIB
from npukit.performance.plan.text import as_text, dry_run, duration
from npukit.train.options import TrainOptions

QWEN2_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
}


def config(model: str = "models/tiny", **training: Any) -> Config:
    data = training.pop("data", {})
    tuning = training.pop("tuning", {})
    return Config(model={"path": model}, data={"train": "rows.jsonl", **data}, tuning=tuning, training=training)


@pytest.fixture
def qwen2_7b(folder: Path) -> str:
    (folder / "models" / "7b").mkdir()
    (folder / "models" / "7b" / "config.json").write_text(json.dumps(QWEN2_7B))
    return "models/7b"


def test_weights_that_are_there_tell_more_than_the_kind(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    shape = json.loads((folder / "models" / "tiny" / "config.json").read_text()) | {"model_type": "unheard_of"}
    (folder / "models" / "tiny" / "config.json").write_text(json.dumps(shape))
    assert look_at(ModelOptions(path="models/tiny")) is None
    save_file({"layers.0.up.weight": torch.zeros(8, 4)}, folder / "models" / "tiny" / "model.safetensors")
    planned = look_at(ModelOptions(path="models/tiny"))
    assert planned and planned.parameters == 32


@pytest.mark.parametrize(
    ("pack", "checkpointing", "measured"),
    # Peaks of a Qwen2-7B with LoRA of rank 8 on all its matrices, in GiB on an H200.
    [(4096, False, 42.9), (8192, True, 20.1)],
)
def test_memory_is_near_what_was_measured(pack: int, checkpointing: bool, measured: float, qwen2_7b: str) -> None:
    planned = plan(config(qwen2_7b, data={"cutoff": pack}, activation_checkpointing=checkpointing), devices=1)
    assert (planned.parameters, planned.trained) == (7_615_616_512, 20_185_088)
    assert planned.memory and planned.memory.total / GIB == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(
    ("batch", "cutoff", "checkpointing", "measured"),
    # Milliseconds of a step of plain transformers with LoRA on a Qwen2-7B, on an H200 (benchmarks/results/plan.md).
    [(1, 2048, False, 183.7), (2, 2048, True, 497.4), (1, 4096, True, 503.5)],
)
def test_what_adapters_move_is_in_the_time_of_a_step(
    batch: int, cutoff: int, checkpointing: bool, measured: float, qwen2_7b: str
) -> None:
    options = {"data": {"cutoff": cutoff}, "batch_size": batch, "precision": "bf16"}
    planned = plan(config(qwen2_7b, activation_checkpointing=checkpointing, **options), devices=1, card="H200")
    assert planned.time and planned.time.step[0] < measured / 1e3 < planned.time.step[1]


def test_zero3_updates_a_part_of_its_parameters_at_a_time() -> None:
    def update(parallel: str) -> float:
        model = {"path": "Qwen/Qwen2.5-72B"}
        data, training = {"train": "rows.jsonl", "cutoff": 128}, {"parallel": parallel}
        planned = plan(Config(model=model, data=data, tuning={"method": "full"}, training=training), devices=8)
        assert planned.memory
        return planned.memory.update

    assert update("zero3") == 0 < update("zero2") / GIB < 2 * 4 * 72.7 / 8


def test_zero3_loads_a_part_of_the_model_on_each_device() -> None:
    model, training = {"path": "Qwen/Qwen2.5-72B"}, {"parallel": "zero3", "activation_checkpointing": True}
    planned = plan(Config(model=model, data={"train": "rows.jsonl", "cutoff": 512}, training=training), devices=8)
    assert planned.parameters and planned.memory and planned.memory.total < planned.parameters * 2 / 4


@pytest.mark.parametrize(
    ("name", "parameters", "computed"),
    # All parameters, and those of its layers' matrices that a token meets, in billions as the models' cards say.
    [
        ("Qwen/Qwen3-30B-A3B", 30.5, 2.7),
        ("mistralai/Mixtral-8x7B-v0.1", 46.7, 12.6),
        ("Qwen/Qwen1.5-MoE-A2.7B", 14.3, 2.1),
    ],
)
def test_experts_are_all_held_and_partly_computed(name: str, parameters: float, computed: float) -> None:
    planned = plan(config(name), devices=1, card="910B3")
    assert planned.parameters and planned.parameters / 1e9 == pytest.approx(parameters, abs=0.1)
    assert planned.memory and planned.memory.weights / 2e9 == pytest.approx(parameters, abs=0.1) and planned.time
    outline = look_at(ModelOptions(path=name))
    assert outline and outline.computed() / 1e9 == pytest.approx(computed, abs=0.1)


def test_what_is_trained_in_16_bits_has_gradients_and_states_in_16_bits() -> None:
    def memory(dtype: str) -> Any:
        model = {"path": "Qwen/Qwen2.5-7B", "dtype": dtype}
        return plan(Config(model=model, data={"train": "rows.jsonl"}, tuning={"method": "full"}), devices=1).memory

    small, large = memory("bfloat16"), memory("float32")
    assert (small.weights, small.gradients, small.optimizer) == pytest.approx(
        (large.weights / 2, large.gradients / 2, large.optimizer / 2)
    )


def test_devices_share_what_the_way_of_sharing_says(qwen2_7b: str) -> None:
    def memory(**training: Any) -> Any:
        return plan(config(qwen2_7b, tuning={"method": "full"}, **training), devices=8).memory

    ddp, zero1, zero2, zero3 = (memory(parallel=parallel) for parallel in ("ddp", "zero1", "zero2", "zero3"))
    assert zero1.optimizer < ddp.optimizer and zero1.gradients > zero2.gradients > 0
    assert zero3.weights < zero2.weights / 4 and zero3.optimizer == zero2.optimizer
    assert memory(parallel="fsdp2").weights < ddp.weights / 4
    assert memory(parallel="zero2", offload=True).optimizer == 0


def test_every_optimizer_and_small_weights_have_an_estimate(qwen2_7b: str) -> None:
    def memory(quantize: str | None = None, method: str = "full", **training: Any) -> Any:
        wanted = config(qwen2_7b, tuning={"method": method}, **training)
        kept = wanted.model.model_copy(update={"quantize": quantize})
        return plan(wanted.model_copy(update={"model": kept}), devices=1).memory

    names = choices(TrainOptions.model_fields["optimizer"])
    states = {name: memory(optimizer=name).optimizer for name in names}
    assert states["adamw"] > states["muon"] > states["galore"] > states["sgd"] == 0
    whole, small = (memory(kind, "lora").weights for kind in (None, "nf4"))
    assert small < whole / 2


def test_steps_of_pairs_are_not_those_of_packed_rows(folder: Path) -> None:
    pair = json.dumps({"query": "Hi", "response": "Yes.", "rejected_response": "No."}) + "\n"
    (folder / "rows.jsonl").write_text(pair * 100)
    planned = plan(config().model_copy(update={"task": "dpo"}), devices=1)
    assert planned.steps == 100 and "packed into about" not in dry_run(planned)


def test_steps(folder: Path) -> None:
    row = (folder / "rows.jsonl").read_text()
    (folder / "rows.jsonl").write_text(row * 100)
    unpacked = {"packing": False, "validation": 0.1}
    assert plan(config(data=unpacked, batch_size=2, accumulation=4, epochs=2), devices=2).steps == 2 * 6
    assert plan(config(data={"packing": False, "train": "rows.jsonl#7"}), devices=1).steps == 7
    assert plan(config(data=unpacked, max_steps=3), devices=1).steps == 3
    packed = plan(config(data={"cutoff": 512}), devices=1)
    assert packed.steps and packed.steps < 20 and "packed into about" in dry_run(packed)
    assert plan(config(data={"train": "owner/on-a-hub"}), devices=1).steps is None


@pytest.fixture
def with_weights(folder: Path) -> Path:
    """The model has what a training looks for before it starts."""
    (folder / "models" / "tiny" / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    (folder / "models" / "tiny" / "tokenizer.json").write_text("{}")
    return folder


def test_what_it_prints_can_be_run_again(with_weights: Path) -> None:
    text = dry_run(plan(config(tuning={"method": "full"}, precision="bf16"), devices=4))
    (with_weights / "again.yaml").write_text(text)
    again = read(Path("again.yaml"), [], {}).config
    assert again == config(tuning={"method": "full"}, precision="bf16")


def test_the_command_starts_nothing(with_weights: Path) -> None:
    command = [sys.executable, "-m", "npukit", "sft", "--model", "models/tiny", "--dataset", "rows.jsonl"]
    command += ["--device", "cpu", "--devices", "4", "--dry-run", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    planned_ = json.loads(ended.stdout)["result"]
    assert (planned_["devices"], planned_["steps"], planned_["config"]["training"]["accumulation"]) == (4, 3, 4)
    assert planned_["memory"]["total"] > planned_["memory"]["weights"] > 0
    assert not Path("output").exists()


def test_a_plan_needs_neither_weights_nor_data(folder: Path) -> None:
    theirs = {"model_name_or_path": "Qwen/Qwen2-7B-Instruct", "stage": "sft", "finetuning_type": "full"}
    theirs |= {"dataset": "nowhere", "template": "qwen", "output_dir": "out", "bf16": True}
    (folder / "theirs.yaml").write_text(json.dumps(theirs))
    command = [sys.executable, "-X", "importtime", "-m", "npukit", "plan", "theirs.yaml", "--devices", "8", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    planned_ = json.loads(ended.stdout)["result"]
    assert (planned_["card"], planned_["devices"], planned_["trained"], planned_["fits"]) == (
        "910B3",
        8,
        7_615_616_512,
        False,
    )
    assert planned_["time"]["step"][0] < planned_["time"]["step"][1]
    assert " torch\n" not in ended.stderr


def test_what_is_known_of_the_card_decides(qwen2_7b: str) -> None:
    small, large = (plan(config(qwen2_7b), 1, card) for card in ("910B4", "910B3"))
    assert (small.fits, large.fits) == (False, True)
    assert small.time and large.time and small.time.step[0] > large.time.step[0]
    assert plan(config(qwen2_7b), 1, "910A").time is None, "its speed is not known"
    assert plan(config(qwen2_7b), 1).fits is None


def test_reinforcement_learning_has_three_phases(qwen2_7b: str, folder: Path) -> None:
    row = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}) + "\n"
    (folder / "rows.jsonl").write_text(row * 64)

    def planned(devices: int = 1, parallel: str = "ddp", **grpo: Any) -> Plan:
        options = {"num_generations": 8, "max_completion_length": 1024, **grpo}
        chosen = config(qwen2_7b, batch_size=8, accumulation=8, parallel=parallel, data={"cutoff": 512})
        rewards = {"functions": ["format"], "models": [qwen2_7b]}
        return plan(
            Config(**chosen.model_dump() | {"task": "grpo", "grpo": options, "rewards": rewards}), devices, "910B3"
        )

    one = planned()
    assert one.steps == 64 * 8 // 64 and one.tokens_per_step == 64 * (512 + 1024)
    assert one.phases and one.time and list(one.phases) == ["sampling", "rewards", "learning"]
    # Each of 1,024 engine steps reads 15 GB of weights; a 910B3 reads at most 1.6 TB/s.
    assert 9.5 < one.phases["sampling"][0] < one.phases["sampling"][1] < 60
    assert sum(span[1] for span in one.phases.values()) == pytest.approx(one.time.step[1], rel=0.2)
    longer, again = planned(max_completion_length=2048), planned(num_iterations=2)
    assert longer.phases and longer.phases["sampling"][0] > 2 * one.phases["sampling"][0]
    assert again.steps == 16 and again.phases and again.phases["sampling"][0] < one.phases["sampling"][0]
    shared, kept = planned(8, "fsdp2"), planned(beta=0.1)
    assert shared.memory and one.memory and kept.memory and kept.memory.total > one.memory.total
    assert shared.memory.sampling + shared.memory.activations > 2 * (shared.parameters or 0)  # whole, in 16 bits
    assert "reward functions are not counted" in as_text(one)


@pytest.mark.parametrize("method", ["freeze", "oft", "ia3"])
def test_every_way_of_tuning_can_be_planned(method: str, qwen2_7b: str) -> None:
    planned = plan(config(qwen2_7b, tuning={"method": method}), 1, "910B3")
    assert planned.memory and planned.time and 0 < (planned.trained or 0) < (planned.parameters or 0)


def test_what_does_not_fit_names_the_way_to_a_fit_and_times_have_their_unit(qwen2_7b: str) -> None:
    assert "--fit" in as_text(plan(config(qwen2_7b), 1, "910B4"))
    assert "--fit" not in as_text(plan(config(qwen2_7b), 1, "910B3"))
    assert duration((1e-8, 3e-8)).endswith(" ms") and duration((1e-4, 3e-4)).endswith(" s")


def test_a_gpu_can_be_planned_for_and_is_not_walked_on(npukit: Any, folder: Path) -> None:
    (folder / "sft.yaml").write_text("model: {path: models/tiny}\ndata: {train: rows.jsonl}\n")
    planned_ = json.loads(npukit("plan", "sft.yaml", "--card", "h100", "--devices", "8", "--json").stdout)["result"]
    assert planned_["card"] == "H100" and planned_["usable"] > 79 * GIB and planned_["time"]
    assert npukit("plan", "sft.yaml", "--card", "H100", "--walk").returncode == 2
    assert npukit("plan", "sft.yaml", "--card", "H101").returncode == 2


def test_one_row_and_one_step_are_singular(folder: Path) -> None:
    (folder / "one.jsonl").write_text('{"instruction": "Why?", "output": "Because."}\n')
    text = dry_run(plan(config(data={"train": [{"path": "one.jsonl"}], "packing": False}, max_steps=1), devices=1))
    assert not re.search(r"\b1 (rows|steps)\b", text)
    assert re.search(r"\b1 step\b.*\b1 row\b", text)
