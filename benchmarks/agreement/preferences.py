"""Compare the losses of preference training with TRL's, step by step: same model, rows, order and options, in fp32.

    python -m benchmarks preferences [--device cpu|sim] [--devices 2] [--steps 30]

Run it where TRL is installed too (pip install trl), in an environment of its own. Both train in the same processes, on
the same ranks. TRL is given npukit's token ids, so that what is compared is the loss, the reference and the optimizer.
Nothing is downloaded. Aim: every loss within 1e-4.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import trl
from accelerate import Accelerator
from benchmarks.tiny_server import make_example
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer
from trl.experimental.cpo import CPOTrainer
from trl.experimental.orpo import ORPOTrainer

from npukit.launch.devices import torch_device
from npukit.llm.config.options import Config
from npukit.llm.data.prepare import prepare
from npukit.llm.finetune.train import train
from npukit.llm.tasks.losses.preference import Pairs
from npukit.llm.tasks.task import named

WORDS = ["the", "sky", "is", "blue", "because", "light", "comes", "through", "air", "and", "two", "birds", "sing"]
BATCH, RATE = 2, 1e-4
RANK, RANKS = (int(os.environ.get(name, usual)) for name, usual in (("RANK", "0"), ("WORLD_SIZE", "1")))


LOSSES: dict[str, dict[str, Any]] = {
    **{loss: {"task": "dpo", "preference": {"loss": loss}} for loss in ("sigmoid", "hinge", "ipo")},
    "orpo": {"task": "dpo", "preference": {"loss": "orpo", "sft_mean": "all"}},
    "simpo": {"task": "dpo", "preference": {"loss": "simpo", "beta": 2.0, "gamma": 1.0}},
    "cpo": {"task": "dpo", "preference": {"loss": "cpo", "sft_weight": 1.0}},
    "kto": {"task": "kto", "preference": {}},
    "rm": {"task": "rm", "preference": {}},
}


def rows(count: int, task: str) -> list[dict[str, Any]]:
    pick = random.Random(0)
    texts = [" ".join(pick.choices(WORDS, k=pick.randint(2, 20))) for _ in range(3 * count)]
    triples = zip(texts[0::3], texts[1::3], texts[2::3], strict=True)
    if task == "kto":
        return [{"query": one, "response": two, "label": at % 2} for at, (one, two, _) in enumerate(triples)]
    return [{"query": one, "response": two, "rejected_response": three} for one, two, three in triples]


def ours(config: Config) -> list[float]:
    train(config)
    log = [json.loads(line) for line in (config.training.output / "log.jsonl").read_text().splitlines()]
    return [entry["loss"] for entry in log if "loss" in entry]


class InOrder:
    """TRL's trainers on rows that are tokens already, in their order."""

    train_dataset: Any

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset

    def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
        return SequentialSampler(self.train_dataset)


class OrderedDPO(InOrder, DPOTrainer):  # type: ignore[misc]
    pass


class OrderedKTO(InOrder, KTOTrainer):  # type: ignore[misc]
    pass


class OrderedReward(InOrder, RewardTrainer):  # type: ignore[misc]
    pass


def tokenised(config: Config, tokenizer: Any) -> Pairs:
    chosen: Any = prepare(config.data, named(config.task), tokenizer, config.training.seed).train
    return Pairs(chosen, mismatched=config.task == "kto")


def _halves(row: dict[str, Any]) -> tuple[list[int], list[int]]:
    counts = row["labels"] >= 0
    return row["input_ids"][: int(counts.argmax())].tolist(), row["input_ids"][counts].tolist()


def theirs(config: Config, steps: int, folder: Path) -> list[float]:
    if config.preference.loss in ("orpo", "simpo", "cpo"):
        return by_loss_function(config, steps)
    tokenizer = AutoTokenizer.from_pretrained(config.model.path)
    pairs = tokenised(config, tokenizer)
    data: list[dict[str, Any]] = []
    for number in range(len(pairs)):
        item = pairs[number]
        first, second = item["rows"]
        question, answer = _halves(first)
        other = _halves(second)[1]
        if config.task == "kto":
            data.append({"prompt_ids": question, "completion_ids": answer, "KL_completion_ids": other})
            data[-1]["label"] = item["is_good"]
        elif config.task == "rm":
            whole = [row["input_ids"].tolist() for row in (first, second)]  # the score is that of the last token
            data.append({"chosen_ids": whole[0], "rejected_ids": whole[1]})
        else:
            data.append({"prompt_ids": question, "chosen_ids": answer, "rejected_ids": other})
    common: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": BATCH,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": torch_device().type == "cpu",
        "bf16": False,
        "gradient_checkpointing": False,
        "seed": config.training.seed,
    }
    own = {"train_dataset": Dataset.from_list(data), "processing_class": tokenizer}
    if config.task == "rm":
        scored = AutoModelForSequenceClassification.from_pretrained(config.model.path, num_labels=1)
        trainer: Any = OrderedReward(scored, args=RewardConfig(**common), **own)
    else:
        model = AutoModelForCausalLM.from_pretrained(config.model.path)
        common["model_init_kwargs"] = {"device_map": None}  # of the reference: TRL knows that of several GPUs only
        options: Any = KTOConfig(**common, beta=config.preference.beta)
        if config.task == "dpo":
            options = DPOConfig(**common, beta=config.preference.beta, loss_type=[config.preference.loss])
        trainer = (OrderedDPO if config.task == "dpo" else OrderedKTO)(model, args=options, **own)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def by_loss_function(config: Config, steps: int) -> list[float]:
    """ORPO, SimPO and CPO: TRL's own loss of a batch, in a plain loop; these trainers insist on tokenising rows."""
    options, tokenizer = config.preference, AutoTokenizer.from_pretrained(config.model.path)
    kind: Any = ORPOTrainer if options.loss == "orpo" else CPOTrainer
    trainer = kind.__new__(kind)
    trainer.beta, trainer.is_encoder_decoder, trainer.padding_value = options.beta, False, tokenizer.pad_token_id
    device = torch_device()
    trainer.aux_loss_enabled, trainer.label_smoothing = False, 0.0
    trainer.accelerator = Accelerator(cpu=device.type == "cpu")
    trainer.pad_token_id = tokenizer.pad_token_id
    trainer.loss_type = "simpo" if options.loss == "simpo" else "sigmoid"
    trainer.simpo_gamma, trainer.cpo_alpha, trainer.alpha = options.gamma, options.sft_weight, 0.0
    model = AutoModelForCausalLM.from_pretrained(config.model.path).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    pairs, losses = tokenised(config, tokenizer), []
    for step in range(steps):
        first = (step * RANKS + RANK) * BATCH
        batch = _padded([pairs[first + at]["rows"] for at in range(BATCH)], tokenizer.pad_token_id)
        loss, _ = trainer.get_batch_loss_metrics(model, {name: value.to(device) for name, value in batch.items()})
        loss.backward()
        losses.append(_mean(loss.detach()).item())
        for weight in model.parameters():
            _mean(weight.grad)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def _mean(value: Any) -> Any:
    """Over all ranks."""
    if RANKS > 1:
        dist.all_reduce(value)
        value /= RANKS
    return value


def _padded(items: list[Any], pad: int) -> dict[str, torch.Tensor]:
    batch = {}
    for at, name in enumerate(("chosen", "rejected")):
        rows = [item[at] for item in items]
        for column, key, filling in (("input_ids", "input_ids", pad), ("labels", "labels", -100)):
            several = [torch.as_tensor(row[key]) for row in rows]
            batch[f"{name}_{column}"] = torch.nn.utils.rnn.pad_sequence(several, True, filling)
        masks = [torch.ones(len(row["input_ids"]), dtype=torch.long) for row in rows]
        batch[f"{name}_attention_mask"] = torch.nn.utils.rnn.pad_sequence(masks, True, 0)
    return batch


def make_files(folder: Path, count: int) -> None:
    """A small model, the same with a score for reward models, and rows."""
    make_example(folder)
    for task in ("dpo", "kto", "rm"):
        (folder / f"{task}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(count, task)))
    scored = AutoModelForSequenceClassification.from_pretrained(folder / "model", num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    scored.config.pad_token_id = tokenizer.pad_token_id
    scored.save_pretrained(folder / "scored")
    tokenizer.save_pretrained(folder / "scored")


def wanted(name: str, folder: Path, steps: int) -> Config:
    task = LOSSES[name]["task"]
    file, model = folder / f"{task}.jsonl", folder / ("scored" if task == "rm" else "model")
    return Config.model_validate(
        {
            **LOSSES[name],
            "model": {"path": str(model)},
            "tuning": {"method": "full"},
            "data": {"train": str(file), "cache": False, "packing": False, "cutoff": 512},
            "training": {"output": folder / name, "max_steps": steps, "batch_size": BATCH, "log_every": 1}
            | {"learning_rate": RATE, "schedule": "constant", "precision": "fp32", "shuffle": False}
            | {"save_every": None, "plot": False, "workers": 0},
        }
    )


def compare(loss: str, folder: Path, steps: int) -> None:
    config = wanted(loss, folder, steps)
    actual, expected = ours(config), theirs(config, steps, folder / f"trl-{loss}")
    worst = max(abs(a - b) for a, b in zip(actual, expected, strict=True))
    if RANK == 0:
        shown = f"{actual[0]:.4f} → {actual[-1]:.4f}"
        print(f"  {loss:8} {len(actual)} steps, at most {worst:.1e} from TRL's ({shown})", flush=True)


def main(
    steps: int = 30,
    only: Annotated[str, "losses, as orpo,kto"] = ",".join(LOSSES),
    device: str = "cpu",
    devices: str = "1",
    folder: Annotated[Path | None, "of the model: this is one of the ranks"] = None,
) -> None:
    if folder:
        for loss in only.split(","):
            compare(loss, folder, steps)
        return
    print(f"TRL {trl.__version__}, {devices} x {device}, batches of {BATCH}, fp32", flush=True)
    with tempfile.TemporaryDirectory() as name:
        make_files(Path(name), BATCH * int(devices) * steps)
        again = [sys.executable, "-m", "npukit", "run", "--device", device, "--devices", devices]
        again += ["-m", "benchmarks.agreement.preferences", "--folder", name, "--steps", str(steps)]
        subprocess.run([*again, "--only", only], check=True, env={**os.environ, "NPUKIT_VERBOSITY": "quiet"})
