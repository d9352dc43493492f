"""Compare the losses of GRPO and its relatives with TRL's and with their formulas in float64, on fixed answers.

    python -m benchmarks grpo [--device cpu sim] [--devices 1 2 4] [--steps 20] [--only dapo,gspo]

Run it where TRL is installed too (pip install trl), in an environment of its own. npukit trains as it always does, but
its answers and their rewards are given; the devices share four batches of four answers in a step, or one has all of
them. Every second step learns from answers a second time, so that ratios differ from 1. Rows are packed, then padded.
All begin with the same model in fp32 and learn by SGD, since Adam makes whole steps of gradients that are nothing but
rounding. Nothing is downloaded. Aim: every loss within 1e-5.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from benchmarks.tiny_server import make_model
from tests.rl.test_losses import by_hand
from transformers import AutoModelForCausalLM, AutoTokenizer

from npukit.llm.config.options import Config
from npukit.llm.config.reinforcement import GrpoOptions
from npukit.llm.data.prompts import RolloutPrompt
from npukit.llm.tasks.grpo import GRPO
from npukit.rl import rollouts
from npukit.rl.rank import train
from npukit.rl.samples import RolloutSample

GROUP, BATCHES, RATE, WORDS = 4, 4, 0.05, 300
COMMON: dict[str, Any] = {"temperature": 0.7, "epsilon": 0.2, "max_completion_length": 16, "beta": 0.05}
COMMON |= {"use_bias_correction_kl": False, "num_generations": GROUP}
LOSSES: dict[str, dict[str, Any]] = {
    **{name: {"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "dapo", "sapo")},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.1},
    "weighed KL": {"loss_type": "dapo", "use_bias_correction_kl": True},
    "clipped higher": {"loss_type": "dapo", "epsilon_high": 0.28, "epsilon": 0.01},
    "two-sided": {"loss_type": "grpo", "delta": 1.02, "epsilon": 0.01},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    "fipo": {"loss_type": "fipo"},
    "real": {"loss_type": "real"},
}
NOT_IN_TRL = ("fipo", "real")
OF_A_STEP = ("dapo", "cispo", "fipo")  # whose mean is over the tokens of all batches
LAYOUTS = ("packed", "padded")


def answers(generation: int) -> list[RolloutSample]:
    """The same for all: groups of answers of several lengths, with rewards and the advantages that follow."""
    draw = np.random.default_rng(generation)
    made = []
    for number in range(BATCHES):
        prompt = tuple(draw.integers(3, WORDS, size=draw.integers(3, 9)).tolist())
        rewards = draw.normal(size=GROUP).round(3)
        advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        for reward, advantage in zip(rewards.tolist(), advantages.tolist(), strict=True):
            ids = draw.integers(3, WORDS, size=draw.integers(1, 16)).astype(np.int64)
            nothing = np.zeros(len(ids), dtype=np.float32)
            sample = RolloutSample(RolloutPrompt(number, prompt, [], {}), ids, nothing, "", is_cut=False)
            sample.rewards, sample.advantage = [reward], advantage
            made.append(sample)
    return made


class FixedAnswers:
    """In place of the sampler and the reward functions."""

    names, weights = ("reward",), torch.ones(1)

    def __init__(self, *_: Any) -> None:
        self.seconds: dict[str, float] = {}
        self.failures: dict[str, int] = {}

    def begin(self) -> None:
        """Nothing is counted."""

    def collect(self, generation: int, *_: Any) -> list[RolloutSample]:
        return answers(generation)

    def totals(self, samples: Sequence[RolloutSample]) -> torch.Tensor:
        return torch.tensor([sample.rewards[0] for sample in samples])


def wanted(folder: Path, loss: str, layout: str, device: str, ranks: int, steps: int) -> Config:
    training: dict[str, Any] = {"optimizer": "sgd", "learning_rate": RATE, "schedule": "constant", "warmup": 0}
    training |= {"max_grad_norm": 1e9, "weight_decay": 0.0, "precision": "fp32", "shuffle": False, "save_every": None}
    training |= {"max_steps": steps, "batch_size": GROUP, "accumulation": BATCHES // ranks, "log_every": 1}
    return Config.model_validate(
        {
            "task": "grpo",
            "model": {"path": str(folder / "model")},
            "tuning": {"method": "full"},
            "data": {"train": str(folder / "rows.jsonl"), "cutoff": 64, "cache": False, "preprocessing_workers": 1},
            "grpo": {**COMMON, **LOSSES[loss], "num_iterations": 2},
            "rewards": {"functions": ["format"]},
            "training": {**training, "output": folder_of(folder, loss, layout, device, ranks)}
            | {"plot": False, "workers": 0},
        }
    )


def folder_of(folder: Path, loss: str, layout: str, device: str, ranks: int) -> Path:
    return folder / f"{loss.replace(' ', '-')}-{layout}-{device}-{ranks}"


def train_all(folder: Path, losses: Sequence[str], device: str, ranks: int, steps: int) -> None:
    """As one of the ranks."""
    rollouts.Collector = FixedAnswers  # type: ignore[assignment]
    for layout in LAYOUTS:
        GRPO.joins = lambda self, config, can_pack, joins=layout == "packed": joins  # type: ignore[method-assign,misc]
        for loss in losses:
            train(wanted(folder, loss, layout, device, ranks, steps))


def logged(output: Path) -> list[float]:
    lines = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def steps_of(model: Any, steps: int, note: Callable[..., Any], losses: Callable[..., Iterator[Any]]) -> list[float]:
    """SGD with the sum of some losses, which are made of answers and of what was noted when they were new."""
    first, optimizer, totals = copy.deepcopy(model), torch.optim.SGD(model.parameters(), RATE), []
    for step in range(steps):
        if step % 2 == 0:
            samples = answers(step // 2)
            groups = [samples[start : start + GROUP] for start in range(0, len(samples), GROUP)]
            with torch.no_grad():
                noted = [note(some, samples, model, first) for some in groups]
        total = 0.0
        for loss in losses(model, noted):
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        totals.append(total)
    return totals


def by_formula(folder: Path, options: GrpoOptions, steps: int) -> list[float]:
    """A row at a time in float64."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)

    def rows(model: Any, samples: Sequence[RolloutSample]) -> list[torch.Tensor]:
        return [logps_of(model, sample, options.temperature) for sample in samples]

    def note(some: Any, _: Any, model: Any, first: Any) -> Any:
        return some, rows(model, some), rows(first, some)

    def losses(model: Any, noted: list[Any]) -> Iterator[Any]:
        if options.loss_type in OF_A_STEP:
            noted = [[[each for part in parts for each in part] for parts in zip(*noted, strict=True)]]
        for samples, old, reference in noted:
            advantages = [sample.advantage for sample in samples]
            yield by_hand(rows(model, samples), old, reference, advantages, options) / len(noted)

    return steps_of(model, steps, note, losses)


def logps_of(model: Any, sample: RolloutSample, temperature: float) -> torch.Tensor:
    ids = torch.tensor([[*sample.prompt.ids, *sample.ids]])
    logits = model(input_ids=ids).logits[0, len(sample.prompt.ids) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, torch.from_numpy(sample.ids)[:, None])[:, 0]  # type: ignore[no-any-return]


def by_trl(folder: Path, options: dict[str, Any], steps: int) -> list[float]:
    """TRL's own loss of padded batches."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as output:
        args = GRPOConfig(
            output, use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False,
            per_device_train_batch_size=GROUP, gradient_accumulation_steps=BATCHES, **options,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model,
            lambda completions, **_: [0.0] * len(completions),
            args,
            Dataset.from_list([{"prompt": "Why?"}]),
            processing_class=AutoTokenizer.from_pretrained(folder),
        )
    trainer.current_gradient_accumulation_steps = BATCHES
    model.train()

    def note(some: Any, samples: Any, model: Any, first: Any) -> Any:
        inputs = padded(some) | {"num_items_in_batch": torch.tensor(sum(len(sample.ids) for sample in samples))}
        old, reference = (trl_logps(trainer, each, inputs) for each in (model, first))
        return inputs | {"old_per_token_logps": old, "ref_per_token_logps": reference}

    def losses(model: Any, noted: list[Any]) -> Iterator[Any]:
        return (trainer._compute_loss(model, inputs) for inputs in noted)

    return steps_of(model, steps, note, losses)


def trl_logps(trainer: Any, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    length = inputs["completion_ids"].shape[1]
    return trainer._get_per_token_logps_and_entropies(model, ids, mask, length)[0]  # type: ignore[no-any-return]


def padded(samples: Sequence[RolloutSample]) -> dict[str, Any]:
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
    return made | {"advantages": torch.tensor([sample.advantage for sample in samples])}


def start(folder: Path, only: str, device: str, ranks: int, steps: int) -> None:
    again = [sys.executable, "-m", "npukit", "run", "--device", device, "--devices", str(ranks)]
    again += ["-m", "benchmarks.agreement.grpo", str(folder), only, device, str(ranks), str(steps)]
    subprocess.run(
        again,
        check=True,
        env={**os.environ, "NPUKIT_VERBOSITY": "quiet", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def main(
    device: Annotated[tuple[str, ...], "cpu, sim"] = ("cpu", "sim"),
    devices: Annotated[tuple[int, ...], "which share the batches of a step"] = (1, 2, 4),
    steps: int = 20,
    only: Annotated[str, "losses, as dapo,gspo"] = ",".join(LOSSES),
) -> None:
    import trl

    torch.set_num_threads(1)  # matrices are tiny
    losses = only.split(",")
    print(f"TRL {trl.__version__}, {steps} steps of {GROUP * BATCHES} answers, fp32", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder / "model")
        rows = [{"messages": [{"role": "user", "content": f"Say {number}."}]} for number in range(BATCHES)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        formula = {loss: by_formula(model, GrpoOptions(**COMMON | LOSSES[loss]), steps) for loss in losses}
        trls = {loss: by_trl(model, COMMON | LOSSES[loss], steps) for loss in losses if loss not in NOT_IN_TRL}
        runs: dict[str, list[list[float]]] = {loss: [] for loss in losses}
        for kind in device:
            for ranks in devices:
                start(folder, only, kind, ranks, steps)
                for loss in losses:
                    two = [logged(folder_of(folder, loss, layout, kind, ranks)) for layout in LAYOUTS]
                    runs[loss] += two
                    known = {"float64's": formula, "TRL's": trls}
                    text = ", ".join(
                        f"{max(apart(one, all_of[loss]) for one in two):.1e} from {name}"
                        for name, all_of in known.items()
                        if loss in all_of
                    )
                    change = f"{two[0][0]:.6f} → {two[0][-1]:.6f}"
                    print(f"{ranks} x {kind} {loss:15} packed and padded: {change}, at most {text}", flush=True)
    worst = max(apart(one, other) for of in runs.values() for one in of for other in of)
    print(f"any two of {len(next(iter(runs.values())))} runs with a loss: at most {worst:.1e} apart")


if __name__ == "__main__":  # one of the ranks
    place, names, kind, count, until = sys.argv[1:]
    train_all(Path(place), names.split(","), kind, int(count), int(until))
