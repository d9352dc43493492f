"""Find options of a valid configuration that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from npukit.llm.config.options import ANSWER_METRICS, Config
from npukit.llm.tasks.task import of as task_of

LOSS = "eval_loss"


@dataclass(frozen=True)
class ConfigProblem:
    """A sentence about an option."""

    key: str
    text: str


def value_of(config: Config, key: str) -> Any:
    """The value of an option, by its dotted key."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def options_together(config: Config) -> Iterator[ConfigProblem]:
    """Options that contradict each other, or require another one."""
    yield from (ConfigProblem(key, text) for key, text in task_of(config).problems(config))
    yield from _data(config)
    yield from _evaluation(config)
    yield from _best_metric(config)
    yield from _optimization(config)
    yield from _model(config)
    yield from _tuning(config)


def _data(config: Config) -> Iterator[ConfigProblem]:
    data, training = config.data, config.training
    if data.streaming and training.max_steps is None:
        yield ConfigProblem("data.streaming", "streamed data has no known length: set training.max_steps.")
    if data.streaming and isinstance(data.validation, float) and 0 < data.validation < 1:
        yield ConfigProblem("data.validation", "a share of a stream is not known: give a number of rows, or files.")
    if data.pack_length and data.packing and data.pack_length < data.cutoff:
        text = f"rows of up to {data.cutoff} tokens (data.cutoff) do not fit into {data.pack_length}: increase it."
        yield ConfigProblem("data.pack_length", text)
    if data.train_on_prompt and data.last_answer_only:
        yield ConfigProblem(
            "data.last_answer_only", "data.train_on_prompt and data.last_answer_only contradict each other: remove one."
        )


def _evaluation(config: Config) -> Iterator[ConfigProblem]:
    training = config.training
    if training.eval_every and not config.data.validation:
        yield ConfigProblem("training.eval_every", "there is no data to evaluate on: set data.validation.")
    if training.early_stopping and not training.eval_every:
        yield ConfigProblem("training.early_stopping", "early stopping needs evaluations: set training.eval_every.")
    if training.load_best and not (training.eval_every and training.save_every):
        text = "the best model is a checkpoint found by evaluations: set training.eval_every and training.save_every."
        yield ConfigProblem("training.load_best", text)


def _optimization(config: Config) -> Iterator[ConfigProblem]:
    training = config.training
    if training.min_learning_rate > training.learning_rate:
        text = f"training.min_learning_rate is above training.learning_rate ({training.learning_rate:g})."
        yield ConfigProblem("training.min_learning_rate", text)
    if training.warmup > 1 and training.warmup % 1:
        yield ConfigProblem(
            "training.warmup",
            f"{training.warmup:g} is neither a whole number of steps nor a share below 1.",
        )
    if training.optimizer not in ("adamw", "adam", "sgd") and training.parallel != "ddp":
        yield ConfigProblem(
            "training.optimizer", f"{training.optimizer} needs whole parameters: set training.parallel=ddp."
        )
    if training.optimizer not in ("adamw", "adam", "sgd") and config.tuning.plus_ratio:
        yield ConfigProblem("training.optimizer", f"LoRA+ goes with adamw, adam or sgd, not with {training.optimizer}.")
    if training.offload and training.parallel == "ddp":
        yield ConfigProblem("training.offload", "ddp cannot offload: use zero2, zero3 or fsdp2.")


def _model(config: Config) -> Iterator[ConfigProblem]:
    model, tuning = config.model, config.tuning
    if model.from_config and tuning.is_adapter:
        yield ConfigProblem("model.from_config", "new weights must all be trained: set tuning.method=full.")
    if model.rope and not ("rope_type" in model.rope and ("factor" in model.rope or model.length)):
        yield ConfigProblem("model.rope", "model.rope needs a rope_type, and a factor or model.length.")
    if model.dtype == "float16" and not tuning.is_adapter:
        yield ConfigProblem("model.dtype", "float16 is too imprecise for trained weights: use float32 or bfloat16.")
    if model.quantize and not tuning.is_adapter:
        yield ConfigProblem("model.quantize", f"quantised weights cannot be trained by {tuning.method}: use lora.")
    if model.quantize and config.training.parallel != "ddp":
        yield ConfigProblem("model.quantize", "quantised weights are not sharded: set training.parallel=ddp.")
    if model.adapter and tuning.method not in ("lora", "bottleneck"):
        yield ConfigProblem(
            "model.adapter",
            f"an adapter can only be continued with lora or bottleneck; tuning.method is {tuning.method}.",
        )


def _tuning(config: Config) -> Iterator[ConfigProblem]:
    tuning = config.tuning
    if tuning.layers == 0:
        yield ConfigProblem(
            "tuning.layers", "tuning.layers must not be 0: 2 trains the last two layers, -2 the first two."
        )
    if (tuning.turns or tuning.method == "adalora") and config.training.parallel != "ddp":
        name = "tuning.turns" if tuning.turns else "tuning.method"
        yield ConfigProblem(name, f"{tuning.turns or tuning.method} needs whole parameters: set training.parallel=ddp.")
    if tuning.converts and (tuning.dora or "rank_pattern" in tuning.peft):
        yield ConfigProblem("tuning.convert", "an adapter with dora or a rank_pattern cannot be saved as a plain LoRA.")
    if tuning.init == "lora_ga" and tuning.method == "lora" and (config.model.quantize or config.data.streaming):
        yield ConfigProblem(
            "tuning.init", "lora_ga computes gradients of whole weights: no quantised weights, no streaming."
        )


def _best_metric(config: Config) -> Iterator[ConfigProblem]:
    """Higher is better for all metrics that compare answers."""
    training, key = config.training, "training.best_metric"
    if not config.evaluation.predict_with_generate:
        if training.best_metric != LOSS:
            yield ConfigProblem(key, f"evaluations compute {LOSS} only: leave it out.")
        return
    known = [f"eval_{name}" for name in ANSWER_METRICS]
    needs_best = training.load_best or training.early_stopping or training.best_metric != LOSS
    if needs_best and training.best_metric not in known:
        text = f"evaluations that generate answers compute {', '.join(known)}: choose one of them."
        yield ConfigProblem(key, text)
    elif needs_best and not training.best_is_highest:
        text = f"a higher {training.best_metric} is better: set training.best_is_highest=true."
        yield ConfigProblem("training.best_is_highest", text)
