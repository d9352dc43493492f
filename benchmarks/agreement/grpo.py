"""Compare the losses of GRPO and its relatives with TRL's on fixed answers, step by step, in fp32.

    python -m benchmarks grpo [--steps 20]

Run it where TRL is installed too (pip install trl), in an environment of its own. Both sides begin with the same model
and take the same answers, advantages and optimizer (SGD, since Adam makes whole steps of gradients that are nothing
but rounding); every second step learns from answers a second time, so that ratios differ from 1. npukit's rows are
packed, then padded. Nothing is downloaded. Aim: every loss within 1e-5.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
from benchmarks.tiny_server import make_example
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from npukit.llm.config.options import Config
from npukit.llm.config.reinforcement import GrpoOptions
from npukit.llm.data.collate import Collator
from npukit.llm.data.prompts import RolloutPrompt
from npukit.llm.finetune.train import make_model
from npukit.llm.tasks.losses.grpo import grpo_loss, log_probabilities
from npukit.rl.samples import RolloutSample, SampleCollator

ANSWERS, RATE = 8, 0.05
COMMON: dict[str, Any] = {"temperature": 0.7, "epsilon": 0.2, "max_completion_length": 16, "beta": 0.05}
COMMON["use_bias_correction_kl"] = False
LOSSES: dict[str, dict[str, Any]] = {
    **{name: {"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "dapo", "sapo")},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.1},
    "weighed KL": {"loss_type": "dapo", "use_bias_correction_kl": True},
    "clipped higher": {"loss_type": "dapo", "epsilon_high": 0.28, "epsilon": 0.01},
    "two-sided": {"loss_type": "grpo", "delta": 1.02, "epsilon": 0.01},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
}


def answers(step: int, words: int) -> list[RolloutSample]:
    """The same for both sides: prompts and answers of several lengths, with advantages."""
    draw = np.random.default_rng(step)
    made = []
    for number in range(ANSWERS):
        prompt = tuple(draw.integers(3, words, size=draw.integers(3, 9)).tolist())
        ids = draw.integers(3, words, size=draw.integers(1, 16)).astype(np.int64)
        nothing = np.zeros(len(ids), dtype=np.float32)
        sample = RolloutSample(RolloutPrompt(number, prompt, [], {}), ids, nothing, "", is_cut=False)
        sample.advantage = float(draw.normal())
        made.append(sample)
    return made


def ours(folder: Path, options: GrpoOptions, steps: int, joined: bool) -> Iterator[float]:
    config = Config(task="grpo", model={"path": str(folder)}, data={"train": "none"}, tuning={"method": "full"})
    model = make_model(config, str(folder), torch.device("cpu"))
    first = make_model(config, str(folder), torch.device("cpu"))
    if not joined:
        for network in (model, first):
            network.set_attn_implementation("sdpa")
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    collate = SampleCollator(Collator(joined, 0), masks_cut=False)
    for step in range(steps):
        if step % 2 == 0:
            batch = collate(answers(step, model.config.vocab_size))
            with torch.no_grad():
                batch["old"] = log_probabilities(model, batch, options.temperature)[0]
                batch["reference"] = log_probabilities(first, batch, options.temperature)[0]
        loss, _ = grpo_loss(model, batch, options)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield float(loss.detach())


def theirs(folder: Path, options: dict[str, Any], steps: int) -> Iterator[float]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as output:
        args = GRPOConfig(
            output, use_cpu=True, bf16=False, report_to=[], num_generations=ANSWERS, gradient_checkpointing=False,
            per_device_train_batch_size=ANSWERS, **options,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model,
            lambda completions, **_: [0.0] * len(completions),
            args,
            Dataset.from_list([{"prompt": "Why?"}]),
            processing_class=AutoTokenizer.from_pretrained(folder),
        )
    trainer.current_gradient_accumulation_steps = 1
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for step in range(steps):
        if step % 2 == 0:
            inputs = padded(answers(step, model.config.vocab_size))
            inputs["old_per_token_logps"] = logprobs(trainer, model, inputs)
            inputs["ref_per_token_logps"] = logprobs(trainer, trainer.ref_model, inputs)
        loss = trainer._compute_loss(model, inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield float(loss.detach())


@torch.no_grad()
def logprobs(trainer: Any, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    length = inputs["completion_ids"].shape[1]
    return trainer._get_per_token_logps_and_entropies(model, ids, mask, length)[0]  # type: ignore[no-any-return]


def padded(samples: list[RolloutSample]) -> dict[str, Any]:
    """Prompts padded at the left, answers at the right, as TRL has them."""
    prompt, answer = max(len(sample.prompt.ids) for sample in samples), max(len(sample.ids) for sample in samples)
    made: dict[str, Any] = {}
    for name, width in (("prompt", prompt), ("completion", answer)):
        made[f"{name}_ids"], made[f"{name}_mask"] = torch.zeros(2, len(samples), width, dtype=torch.long)
    for row, sample in enumerate(samples):
        made["prompt_ids"][row, prompt - len(sample.prompt.ids) :] = torch.tensor(sample.prompt.ids)
        made["prompt_mask"][row, prompt - len(sample.prompt.ids) :] = 1
        made["completion_ids"][row, : len(sample.ids)] = torch.from_numpy(sample.ids)
        made["completion_mask"][row, : len(sample.ids)] = 1
    tokens = made["completion_mask"].sum()
    return made | {"advantages": torch.tensor([sample.advantage for sample in samples]), "num_items_in_batch": tokens}


def main(steps: int = 20) -> None:
    torch.manual_seed(0)
    print(f"TRL {trl.__version__}, {steps} steps, fp32, CPU")
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = make_example(Path(name))
        for loss, own in LOSSES.items():
            options = COMMON | own
            expected = list(theirs(folder, options, steps))
            for joined in (True, False):
                losses = list(ours(folder, GrpoOptions(**options), steps, joined))
                apart = max(abs(one - other) for one, other in zip(losses, expected, strict=True))
                worst = max(worst, apart)
                way = "packed" if joined else "padded"
                print(f"{loss:15} {way}: {expected[0]:.6f} → {expected[-1]:.6f}, at most {apart:.1e} apart", flush=True)
    print(f"all: at most {worst:.1e} apart")
