"""Trains a language model according to its configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate.utils import send_to_device
from transformers.utils.logging import disable_progress_bar

from npukit.errors import NpukitError
from npukit.launch.abilities import abilities
from npukit.launch.devices import torch_device
from npukit.llm import families
from npukit.llm.chat.chat import Chat, writes_alike
from npukit.llm.config.options import Config
from npukit.llm.data.answers import Questions, answered
from npukit.llm.data.collate import Collator
from npukit.llm.data.prepare import Prepared, pad_id, prepare
from npukit.llm.data.stream import Stream
from npukit.llm.finetune.card import write_card
from npukit.llm.finetune.convert import INITIAL, keep_initial
from npukit.llm.finetune.during import follow
from npukit.llm.finetune.save import RUN, save_model, save_run, save_trainer_state
from npukit.llm.images.images import Images
from npukit.llm.models.attention import NAME as PACKED_ATTENTION
from npukit.llm.models.attention import register, watch_scores
from npukit.llm.models.experts import use_grouped_experts
from npukit.llm.models.forward import share_rows
from npukit.llm.models.fused import use_compilable_gelu, use_fused_operators
from npukit.llm.models.loading import load_config, load_images, load_model, load_tokenizer, locate, make_room
from npukit.llm.models.lora import fuse_adapted_layers
from npukit.llm.models.quantized import quantize
from npukit.llm.models.tuning import compute_again, layers_of, layers_of_tower, rate_groups, tune
from npukit.llm.models.vision import register as register_tower
from npukit.llm.models.vision import see_images
from npukit.llm.tasks import task as tasks
from npukit.llm.tasks.task import Learning, Log, Task
from npukit.quiet import verbosity
from npukit.report.language import translated
from npukit.train import Trainer
from npukit.train.claim import claim
from npukit.train.precision import choose_precision
from npukit.train.rollouts import Rollouts
from npukit.train.watch import Summary

# Makes the rollouts of reinforcement learning from the configuration, the Learning, the collator, the tokenizer, the
# tokens that end an answer, and a function that logs a message.
MakeRollouts = Callable[[Config, Learning, Collator, Any, frozenset[int], Log], Rollouts]
QUESTIONS = 64  # the batch size of evaluations that generate answers


class Answering(Protocol):
    """Evaluates the model with answers that it generates during training."""

    def begin(self, trainer: Trainer) -> None:
        """Prepare for the evaluations. This is called before training, with the model on its devices."""

    def metrics(self, model: Any, questions: Any) -> dict[str, float]:
        """Return the mean metrics of a list of `RolloutPrompt`."""


# Makes an Answering from the configuration, the collator, the tokenizer and the tokens that end an answer.
MakePredictions = Callable[[Config, Collator, Any, frozenset[int]], Answering]


def train(
    config: Config, make_rollouts: MakeRollouts | None = None, make_predictions: MakePredictions | None = None
) -> Summary:
    """Train to the end, and write the results to training.output.

    >>> train(Config(model={"path": "Qwen/Qwen2-0.5B"}, data={"train": ["alpaca.jsonl"]}))
    """
    is_main = os.environ.get("RANK", "0") == "0"
    logs = is_main and verbosity() != "quiet"
    log: Log = _print if logs else lambda _: None
    if not (is_main and sys.stderr.isatty()):
        disable_progress_bar()
    with claim(config.training.output) if is_main else nullcontext():
        return _train(config, log, is_main, make_rollouts, make_predictions)


def _train(
    config: Config,
    log: Log,
    is_main: bool,
    make_rollouts: MakeRollouts | None,
    make_predictions: MakePredictions | None,
) -> Summary:
    task = tasks.of(config)
    task.check_ranks(config, int(os.environ.get("WORLD_SIZE", "1")))
    device, place = torch_device(), locate(config.model)
    shape = load_config(config.model, place)
    config = _within_positions(_packed_if_possible(config, task, shape, log), task, shape)
    _check_sharing(config, shape)
    tokenizer = load_tokenizer(config.model, place)
    images = load_images(config.model, place, shape, config.data)
    prepared = prepare(config.data, task, tokenizer, config.training.seed, log, config.model.hub, images)
    words = max(shape.get_text_config().vocab_size, max(images.token_ids) + 1 if images else 0)
    _check_vocabulary(config, prepared, tokenizer, words)
    if is_main:
        _begin_run(config, prepared, log)
    if task.uses_template(config.data) and not writes_alike(tokenizer, prepared.template_used):
        # The saved tokenizer gets the chat template of the training, so that the model is used with the same one.
        tokenizer.chat_template = prepared.template_used.text
    collate = _collator(config, task, shape, pad_id(tokenizer), images)
    learning = task.learning(config, prepared.train, prepared.validation, collate)
    gradients = partial(_gradients, learning=learning, config=config) if config.tuning.init == "lora_ga" else None
    model = make_model(config, place, device, tokenizer, gradients)
    if is_main and config.tuning.converts:
        keep_initial(model, config.training.output)
    rollouts = predictions = None
    if make_rollouts:
        rollouts = make_rollouts(config, learning, collate, tokenizer, _end_tokens(model, tokenizer, prepared), log)
    if make_predictions:
        predictions = make_predictions(config, collate, tokenizer, _end_tokens(model, tokenizer, prepared))
        questions: Any = Questions(learning.validation)
        learning = replace(learning, validation=questions, metrics=predictions.metrics)
    trainer = _trainer(config, task, learning, model, tokenizer, Path(place), rollouts, predictions is not None)
    if predictions:
        predictions.begin(trainer)
    task.before_training(learning, trainer, config, log)
    summary = trainer.train()
    if is_main:
        _end_run(config, trainer, summary)
    return summary


def _print(text: str) -> None:
    """Print a message. npukit's own messages have one line and are translated; answers of the model have several."""
    print(text if "\n" in text else translated(text), flush=True)


def _begin_run(config: Config, prepared: Prepared, log: Log) -> None:
    data = config.data
    longest = min(data.cutoff, data.pack_length or data.cutoff) if data.packing else data.cutoff
    for sentence in prepared.problems.sentences(longest):
        log(sentence if sentence.startswith(" ") else f"Warning: {sentence}")
    if config.training.resume == "never" or not (config.training.output / RUN).exists():
        save_run(config, config.training.output)  # a run that cannot resume keeps the previous run's file


def _end_run(config: Config, trainer: Trainer, summary: Summary) -> None:
    save_run(config, config.training.output)
    save_trainer_state(config.training.output, trainer.total_steps)
    if summary.model_step is not None:
        write_card(config, summary, config.training.output)


def _collator(config: Config, task: Task, shape: Any, padding: int, images: Images | None) -> Collator:
    packed = config.data.packing and task.packs
    length = (config.data.pack_length or config.data.cutoff) if packed else None
    joined = task.joins(config, families.of(shape).can_pack)
    is_shared = config.training.parallel != "ddp" or not config.tuning.freezes_vision
    if images and (is_shared or images.vision.crosses):
        images = images.with_blanks()
    answers_alone = task.models_tokens and not task.counts_everything and config.training.sequence_parallel == 1
    group = config.tuning.shifted_attention
    if group and not joined:
        raise NpukitError(
            f"tuning.shifted_attention needs rows that are joined, which {shape.model_type} or task {config.task} does "
            "not do: leave it out."
        )
    return Collator(
        joined,
        padding,
        length,
        weighs=bool(config.data.weigh),
        group=group,
        images=images,
        finds_labels=answers_alone,
    )


def _end_tokens(model: Any, tokenizer: Any, prepared: Prepared) -> frozenset[int]:
    """Return the tokens that end an answer of this model."""
    ends = model.generation_config.eos_token_id
    several = [ends] if isinstance(ends, int) else list(ends or [])
    return Chat(tokenizer, prepared.template_used, eos_ids=several).stop_ids


def _trainer(
    config: Config,
    task: Task,
    learning: Learning,
    model: Any,
    tokenizer: Any,
    base: Path,
    rollouts: Any,
    answers: bool,
) -> Trainer:
    tuning, options = config.tuning, config.training
    changes: dict[str, Any] = {"compile": False} | ({"find_unused_parameters": True} if tuning.turns else {})
    if answers:
        changes["eval_batch_size"] = QUESTIONS
    initial = options.output / INITIAL if tuning.converts else None
    trainer = Trainer(
        model,
        options.model_copy(update=changes),
        learning.train,
        learning.validation,
        loss=learning.loss,
        weight=learning.weight,
        size=learning.size,
        collate=learning.collate,
        metrics=rollouts.metrics if rollouts else learning.metrics,
        eval_collate=answered if answers else None,
        parameter_groups=rate_groups(model, tuning, options.learning_rate, options.weight_decay),
        save_model=partial(save_model, tokenizer=tokenizer, base=base, initial=initial),
        save_frozen=not tuning.is_adapter,  # checkpoints of an adapter leave out the base model's weights
        flops_per_item=task.flops_per_token(model),
        item="tokens",
        must_stay=_must_stay(config),
        noted=_noted(config),
        rollouts=rollouts,
    )
    if trainer.parallel.sequence:
        share_rows(model, trainer.parallel.sequence)
    follow(trainer, config)
    return trainer


# A run may resume while it learns from a generation, so these options cannot change.
OF_GENERATIONS = ("num_generations", "steps_per_generation", "num_iterations")


def _must_stay(config: Config) -> dict[str, Any]:
    """Return the options whose values cannot change when a run resumes."""
    names = OF_GENERATIONS if tasks.of(config).samples else ()
    generations = {f"grpo.{name}": getattr(config.grpo, name) for name in names}
    return {**generations, **{f"tuning.{name}": value for name, value in config.tuning if name != "dropout"}}


def _noted(config: Config) -> dict[str, Any]:
    """Return the options whose changes are logged when a run resumes."""
    groups = {"grpo": config.grpo, "rewards": config.rewards} if tasks.of(config).samples else {}
    data = config.data
    sources = {"train": data.train, "validation": data.validation}
    names = {name: ", ".join(source.path for source in of) for name, of in sources.items() if isinstance(of, tuple)}
    plain = {name: getattr(data, name) for name in ("template", "system", "cutoff", "max_rows", "packing")}
    return {
        "model.path": config.model.path,
        "tuning.dropout": config.tuning.dropout,
        **{f"data.{name}": value for name, value in {**names, **plain}.items()},
        **{f"{group}.{name}": value for group, options in groups.items() for name, value in options},
    }


def _gradients(model: Any, learning: Learning, config: Config) -> None:
    """Compute the gradients of the first rows, which are the same on every rank."""
    size, device = config.training.batch_size, next(model.parameters()).device
    examples = learning.train
    for first in range(0, min(config.tuning.init_rows, len(examples)), size):
        rows = [examples[number] for number in range(first, min(first + size, len(examples)))]
        learning.loss(model, send_to_device(learning.collate(rows), device)).backward()


def make_model(
    config: Config,
    place: str,
    device: torch.device,
    tokenizer: Any = None,
    gradients: Callable[[Any], None] | None = None,
) -> Any:
    """Load the model for training, with faster loss and attention, adapters, and compiled layers."""
    register()
    register_tower()
    torch.manual_seed(config.training.seed)  # so that new weights are the same on every rank
    task, can_pack = tasks.of(config), families.of(load_config(config.model, place)).can_pack
    joined = task.joins(config, can_pack) or config.training.sequence_parallel > 1
    attention = PACKED_ATTENTION if joined else None
    if not joined:
        torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN would plan for every length of padded rows, 0.14 s each
    loaded = load_model(config.model, place, weights_dtype(config, device), attention, task.new_layer(config))
    if config.model.new_tokens:
        make_room(loaded, len(tokenizer))
    if tokenizer is not None and not task.models_tokens:
        loaded.config.get_text_config().pad_token_id = pad_id(tokenizer)
    if gradients:
        loaded.to(device)
    return adapt(loaded, config, device, tokenizer, gradients)


def adapt(
    model: Any,
    config: Config,
    device: torch.device,
    tokenizer: Any = None,
    gradients: Callable[[Any], None] | None = None,
) -> Any:
    """Turn a loaded model into the one that is trained."""
    compiles = config.training.compile
    if compiles is None:
        compiles = abilities(device).compiles and config.training.sequence_parallel == 1
    if config.model.quantize:
        quantize(model, config.model.quantize, device)
    if abilities(device).torch_npu:
        use_fused_operators(model)
        use_grouped_experts(model)
    elif compiles:
        use_compilable_gelu(model)
    if vision := families.vision_of(model.config):
        see_images(model, vision)
    task = tasks.of(config)
    task.set_output(model, config, tokenizer)
    tuned = tune(model, config.tuning, config.model, gradients)
    task.after_tuning(model, tuned, config, device)
    if config.training.optimizer == "muonclip":
        watch_scores(model, device)
    if compiles:
        if config.tuning.is_adapter:
            compute_again()
            if config.training.parallel == "ddp" and not task.samples:
                fuse_adapted_layers(tuned)
        for layer in (*layers_of(model), *layers_of_tower(model)):
            layer.compile(dynamic=task.samples or None)  # the lengths of generated answers vary
    return tuned


def _packed_if_possible(config: Config, task: Task, shape: Any, log: Log) -> Config:
    """Turn packing off if the model's attention does not support packed rows."""
    can_pack = families.of(shape).can_pack
    if not config.data.packing or (can_pack and task.can_join(config)):
        return config
    if not can_pack and task.can_join(config):
        log(f"Packing is off: it is for families with plain attention, not for {shape.model_type}.")
    return with_data(config, packing=False)


def _within_positions(config: Config, task: Task, shape: Any) -> Config:
    """Shorten the cutoff if necessary, so that there is room for at least one token of an answer."""
    positions = getattr(shape.get_text_config(), "max_position_embeddings", None)
    if not task.samples or not positions or config.data.cutoff < positions:
        return config
    return with_data(config, cutoff=positions - 1)


def with_data(config: Config, **changes: Any) -> Config:
    """Return a copy of the configuration in which some options of `data` have other values."""
    return config.model_copy(update={"data": config.data.model_copy(update=changes)})


def _check_sharing(config: Config, shape: Any) -> None:
    """Refuse models and options that do not work when several devices share a row."""
    if config.training.sequence_parallel == 1:
        return
    if families.vision_of(shape):
        raise NpukitError(f"training.sequence_parallel supports text models only, not {shape.model_type}: set it to 1.")
    if not families.of(shape).can_pack:
        raise NpukitError(
            f"training.sequence_parallel is for families with plain attention, not for {shape.model_type}: set it to 1."
        )
    if config.tuning.shifted_attention:
        raise NpukitError(
            "tuning.shifted_attention needs whole rows on a device: set training.sequence_parallel=1, or leave it out."
        )
    if config.model.balance_experts:
        raise NpukitError(
            "With training.sequence_parallel a rank sees a part of a row, but model.balance_experts needs all of it: "
            "leave out one of the two."
        )


def _check_vocabulary(config: Config, prepared: Prepared, tokenizer: Any, words: int) -> None:
    """Refuse rows with tokens that have no embedding. Unused tokens of the tokenizer need none."""
    if config.model.new_tokens or len(tokenizer) <= words or isinstance(prepared.train, Stream):
        return
    used = max(prepared.train.highest_token(), pad_id(tokenizer))
    if used >= words:
        raise NpukitError(
            f"The rows contain the token {tokenizer.convert_ids_to_tokens(used)!r} (id {used}), but the model has "
            f"embeddings for {words} tokens only: use the model's own tokenizer, or resize the model first."
        )


def weights_dtype(config: Config, device: torch.device) -> torch.dtype:
    """Return the dtype of the weights: fp32 for full training, so that small updates are not lost.

    Frozen weights have the dtype of the computation.
    """
    if config.model.dtype != "auto":
        return getattr(torch, config.model.dtype)  # type: ignore[no-any-return]
    return choose_precision(config.training, device).dtype if config.tuning.is_adapter else torch.float32
