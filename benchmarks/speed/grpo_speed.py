"""How long does a step of GRPO take, by phase? npukit's trainer and engine on the same weights, and TRL beside it.

    PYTHONPATH=src python -m benchmarks grpo_speed --shape 1.5b --trl pip
    python -m benchmarks grpo_speed --shape small --prompts 2 --answers 2 --length 8 --batch 2

A model of that shape with random weights, LoRA of rank 16 on all linear layers, bf16 on a GPU, answers that all have
the given length (no token ends them, unless npukit's are to have a `--mean` length), and a reward that costs nothing.
TRL samples with transformers' continuous batching. `--trl` names a folder with TRL and what else the machine lacks, or
`pip` where it is installed. Both run in processes of their own. The first step tells how far the learner's
log-probabilities are from the sampler's; `--warm-up` steps, whose answers may have fewer tokens (`--warm-up-length`),
do not count for the times. A phase ends when the device has done its work.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

import torch
from benchmarks.contest import result, results
from benchmarks.speed.serve import SHAPES, make_config
from benchmarks.tiny_server import make_tokenizer

REWARDS = """
def ends_evenly(prompts, completions, **columns):
    return [float(len(str(completion)) % 2) for completion in completions]
"""
RANK, RATE = 16, 1e-5
ON_GPU = torch.cuda.is_available()


class EnoughError(Exception):
    """All steps are measured."""


@dataclass(frozen=True)
class Work:
    """What a contestant does in each of its steps."""

    folder: Path
    shape: str
    prompts: int
    answers: int
    length: int
    batch: int
    steps: int
    recomputes: bool
    max_num_seqs: int
    keep_cache: bool
    warm_up: int
    warm_up_length: int
    mean: int
    log: Path | None

    @property
    def rows(self) -> list[str]:
        return [f"What is {number} times {number + 1}?" for number in range(self.prompts)]

    @property
    def all_steps(self) -> int:
        return self.warm_up + self.steps

    @property
    def accumulation(self) -> int:
        return self.prompts * self.answers // self.batch


@dataclass
class Clock:
    """The phases of steps, and how far the learner's log-probabilities are from the sampler's in the first."""

    work: Work
    name: str
    steps: list[dict[str, float]] = field(default_factory=list)
    apart: list[torch.Tensor] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    began: float = 0.0
    tokens: int = 0  # of the answers of a step

    @staticmethod
    def now() -> float:
        if ON_GPU:
            torch.cuda.synchronize()
        return time.perf_counter()

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time counts for a phase."""

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            began = self.now()
            try:
                return function(*args, **kwargs)
            finally:
                self.phases[phase] = self.phases.get(phase, 0.0) + self.now() - began

        return wrapper

    def begin_step(self) -> None:
        """Note the step before, if there was one, and end the run after the last."""
        now = self.now()
        if self.began:
            phases = {name: self.phases.get(name, 0.0) for name in ("sampling", "rewards", "prepare")}
            step, prepare = now - self.began, phases.pop("prepare")
            learning = step - prepare
            parts = {"learning": learning, "other": prepare - sum(phases.values()), "step": step}
            self.steps.append({**phases, **parts, "tokens": self.tokens})
            if self.work.log:
                with self.work.log.open("a") as file:
                    file.write(json.dumps({"name": self.name, **self.steps[-1]}) + "\n")
        if len(self.steps) == self.work.all_steps:
            raise EnoughError
        self.phases, self.began = {}, self.now()

    @property
    def is_first(self) -> bool:
        return not self.steps

    @property
    def length(self) -> int:
        """The tokens of an answer in this step."""
        return self.work.warm_up_length if len(self.steps) < self.work.warm_up else self.work.length

    def result(self) -> dict[str, float]:
        """Means of the steps that count."""
        measured = self.steps[self.work.warm_up :]
        means = {name: sum(step[name] for step in measured) / len(measured) for name in measured[0]}
        apart = torch.cat(self.apart).double().abs().sort().values
        mismatch = {
            "mean": float(apart.mean()),
            "p999": float(apart[int(len(apart) * 0.999)]),
            "most": float(apart[-1]),
        }
        means["tokens"] = means["tokens"] or self.work.prompts * self.work.answers * self.work.length
        return result(means["tokens"] / means["step"], **means, **mismatch, compared=len(apart))


def with_npukit(work: Work) -> dict[str, float]:
    from npukit.llm.config.options import Config
    from npukit.llm.finetune.train import train
    from npukit.llm.tasks.losses import grpo
    from npukit.rl import collector, rollouts
    from npukit.rl.rollouts import GrpoRollouts
    from npukit.rl.sampler import Sampler

    clock = Clock(work, "npukit")
    (work.folder / "rewards.py").write_text(REWARDS)
    (work.folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": row}) + "\n" for row in work.rows))

    class Clocked(GrpoRollouts):
        def batches(self, step: int, rows: Any) -> Any:
            clock.begin_step()
            batches = clock.timed("prepare", super().batches)(step, rows)
            clock.tokens = sum(int(batch.content["mask"].sum()) for batch in batches)
            return batches

    class Sampling(Sampler):
        def sample(self, *args: Any) -> Any:
            self._options = self._options.model_copy(update={"max_completion_length": clock.length})
            return clock.timed("sampling", super().sample)(*args)

    def noting(logprobs: Any, entropy: Any, batch: Any, options: Any) -> Any:
        if clock.is_first:
            clock.apart.append((logprobs.detach() - batch["sampled"])[batch["mask"] > 0].cpu())
        return loss_of(logprobs, entropy, batch, options)

    loss_of, grpo.loss_of = grpo.loss_of, noting
    cast(Any, rollouts).Sampler = Sampling
    collector.Scorer.score = clock.timed("rewards", collector.Scorer.score)  # type: ignore[method-assign]
    training: dict[str, Any] = {"batch_size": work.batch, "accumulation": work.accumulation}
    training |= {
        "max_steps": work.all_steps + 1,
        "output": work.folder / "output",
        "learning_rate": RATE,
        "plot": False,
    }
    training |= {
        "save_every": None,
        "activation_checkpointing": work.recomputes,
        "precision": "bf16" if ON_GPU else "fp32",
    }
    sampling = {"num_generations": work.answers, "max_completion_length": work.length}
    config = Config.model_validate(
        {
            "task": "grpo",
            "model": {"path": str(work.folder / "model"), "from_config": True},
            "tuning": {"method": "lora", "rank": RANK},
            "data": {"train": str(work.folder / "rows.jsonl")},
            "rewards": {"plugins": str(work.folder / "rewards.py")},
            "grpo": {**sampling, "max_num_seqs": work.max_num_seqs, "keep_cache": work.keep_cache},
            "training": training,
        }
    )

    def make(config: Config, learning: Any, collate: Any, tokenizer: Any, _ends: Any, log: Any) -> Any:
        ends = range(0, make_config(work.shape).vocab_size, work.mean) if work.mean else ()  # one token in so many
        return Clocked(config, learning.train, collate, tokenizer, frozenset(ends), log)

    with contextlib.suppress(EnoughError):
        train(config, make)
    return clock.result()


def with_trl(work: Work, site: str) -> dict[str, float]:
    if site != "pip":
        sys.path.append(site)  # after what the machine has itself
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    clock = Clock(work, "TRL")
    sampled: dict[tuple[int, ...], list[float]] = {}

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            clock.begin_step()
            trainer.generation_config.max_new_tokens = clock.length

    class Clocked(GRPOTrainer):  # type: ignore[misc]
        def _get_per_token_logps_and_entropies(self, model: Any, ids: Any, mask: Any, keep: int, **more: Any) -> Any:
            result = super()._get_per_token_logps_and_entropies(model, ids, mask, keep, **more)
            for answer, logprobs in zip(ids[:, -keep:].tolist(), result[0].detach().cpu(), strict=True):
                if clock.is_first:
                    clock.apart.append(logprobs.float() - torch.tensor(sampled[tuple(answer)]))
            return result

    for phase, method in {
        "prepare": "_prepare_inputs",
        "sampling": "_generate_single_turn",
        "rewards": "_calculate_rewards",
    }.items():
        setattr(Clocked, method, clock.timed(phase, getattr(GRPOTrainer, method)))
    space: dict[str, Any] = {}
    exec(REWARDS, space)
    with torch.device("cuda" if ON_GPU else "cpu"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(work.folder / "model"), dtype=torch.bfloat16 if ON_GPU else torch.float32
        )
    generate_batch = model.generate_batch

    def noting(*args: Any, **kwargs: Any) -> Any:
        outputs = generate_batch(*args, **kwargs)
        if clock.is_first:
            sampled.update({tuple(output.generated_tokens): output.logprobs for output in outputs.values()})
        return outputs

    model.generate_batch = noting
    options = GRPOConfig(
        output_dir=str(work.folder / "trl"),
        per_device_train_batch_size=work.batch,
        gradient_accumulation_steps=work.accumulation,
        num_generations=work.answers,
        max_completion_length=work.length,
        max_steps=work.all_steps + 1,
        learning_rate=RATE,
        bf16=ON_GPU,
        use_cpu=not ON_GPU,
        gradient_checkpointing=work.recomputes,
        use_transformers_continuous_batching=True,
        transformers_continuous_batching_config={"return_logprobs": True},
        generation_kwargs={"eos_token_id": -1},
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Clocked(
        model,
        space["ends_evenly"],
        options,
        Dataset.from_list([{"prompt": [{"role": "user", "content": row}]} for row in work.rows]),
        processing_class=AutoTokenizer.from_pretrained(work.folder / "model"),
        callbacks=[Steps()],
        peft_config=LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=2 * RANK, target_modules="all-linear"),
    )
    with contextlib.suppress(EnoughError):
        trainer.train()
    return clock.result()


def main(
    shape: Annotated[str, SHAPES] = "small",
    prompts: Annotated[int, "in a step"] = 64,
    answers: Annotated[int, "to each prompt"] = 8,
    length: Annotated[int, "tokens of an answer"] = 512,
    batch: Annotated[int, "answers that are learned from at once"] = 16,
    steps: Annotated[int, "of each, that count"] = 1,
    warm_up: Annotated[int, "steps before them"] = 1,
    warm_up_length: Annotated[int, "tokens of an answer in these; 0: as many as in the others"] = 0,
    trl: Annotated[str, "TRL beside it: a folder with its packages, or `pip`"] = "",
    recomputing: Annotated[bool, "both compute activations again instead of keeping them"] = False,
    max_num_seqs: Annotated[int, "answers that npukit samples at the same time"] = 512,
    keep_cache: Annotated[bool, "npukit keeps the key/value cache while it learns"] = False,
    mean: Annotated[int, "mean tokens of npukit's answers, which then end at random; 0: all have the length"] = 0,
    log: Annotated[str, "a file for the phases of each step, as they come"] = "",
) -> None:
    """Train both for a few steps, and print the phases of the measured ones."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    device = torch.cuda.get_device_name() if ON_GPU else "CPU"
    print(f"{device}, torch {torch.__version__}, {shape} shape, {prompts} x {answers} answers of {length} tokens")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_config(shape).save_pretrained(folder / "model")
        make_tokenizer().save_pretrained(folder / "model")  # one for text, with a chat template
        own = recomputing, max_num_seqs, keep_cache, warm_up, warm_up_length or length, mean, Path(log) if log else None
        work = Work(folder, shape, prompts, answers, length, batch, steps, *own)
        contestants = {"npukit": functools.partial(with_npukit, work)}
        if trl:
            contestants["TRL"] = functools.partial(with_trl, work, trl)
        _show(contestants)


def _show(contestants: Mapping[str, Callable[[], dict[str, float]]]) -> None:
    print("| | sampling | rewards | learning | other | step, s | tokens/s | GiB | npukit is | apart | 99.9% | most |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    ours = 0.0
    for name, got in results(contestants):
        if "failed" in got:
            print(f"| {name} | failed: {got['failed']} |", flush=True)
            continue
        ours = ours or got["step"]
        phases = " | ".join(f"{got[phase]:.2f}" for phase in ("sampling", "rewards", "learning", "other", "step"))
        apart = " | ".join(f"{got[figure]:.2g}" for figure in ("mean", "p999", "most"))
        print(
            f"| {name} | {phases} | {got['tokens_per_second']:,.0f} | {got['peak_gib']:.1f} "
            f"| {got['step'] / ours:.2f} times | {apart} |",
            flush=True,
        )
