"""Reinforcement learning: the model answers prompts and learns from the rewards of its answers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

from npukit.errors import NpukitError
from npukit.llm.config.options import Config, DataOptions
from npukit.llm.data.layout import question_of
from npukit.llm.data.media import with_tags
from npukit.llm.data.prompts import PromptRow
from npukit.llm.data.row import BadRow, Layout, Row
from npukit.llm.tasks.task import Learning, Task

# Columns that are not passed to reward functions, which get the messages anyway.
NOT_COLUMNS = ("messages", "conversations", "conversation")


class GRPO(Task):
    """Increases the probability of answers with a higher reward than other answers to the same prompt."""

    name = "grpo"
    summary = "reinforcement learning with rewards (grpo)"
    verb = "rlhf"
    uses: ClassVar[frozenset[str]] = frozenset({"chat", "grpo"})
    columns_tell = True
    counts_tokens = False
    samples = True

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        yield from _problems_of_rewards(config)
        yield from _problems_of_steps(config)
        if "" in config.grpo.stop:
            yield "grpo.stop", "an empty text would end every answer at once: leave it out of grpo.stop."
        if config.tuning.noise:
            yield (
                "tuning.noise",
                "with noise, training would not compute the probabilities of generation: set tuning.noise=0.",
            )

    def check_ranks(self, config: Config, ranks: int) -> None:
        super().check_ranks(config, ranks)
        groups_per_generation(config, ranks)

    def joins(self, config: Config, can_pack: bool) -> bool:
        return can_pack

    def data_options(self, data: DataOptions) -> DataOptions:
        return data.model_copy(update={"packing": False, "last_answer_only": True, "train_on_prompt": False})

    def row(self, row: dict[str, Any], layout: Layout) -> Row:
        row, media = with_tags(row)
        question = question_of(row, layout)
        while question and question[-1]["role"] == "assistant":  # the model writes its own last answer
            question = question[:-1]
        if not question:
            raise BadRow("has no question")
        contents = {id(medium.source) for medium in media if not isinstance(medium.source, str)}
        columns = {
            name: value
            for name, value in row.items()
            if name not in NOT_COLUMNS and contents.isdisjoint(map(id, [value, *_items(value)]))
        }
        return PromptRow(question, columns, media)

    def set_output(self, model: Any, config: Config, tokenizer: Any) -> None:
        from npukit.llm.models.forward import return_loss

        return_loss(model, config.model.balance_experts, None)

    def after_tuning(self, model: Any, tuned: Any, config: Config, device: Any) -> None:
        """Turn dropout off, so that training computes the same probabilities as the rollout engine."""
        from torch import nn

        for module in tuned.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0

    def learning(self, config: Config, train: Any, validation: Any, collate: Any) -> Learning:
        from npukit.llm.data.prompts import RolloutPrompts
        from npukit.llm.tasks.losses.grpo import grpo_loss

        prompts, held_out = (rows if rows is None else RolloutPrompts(rows) for rows in (train, validation))
        as_they_are: Any = list  # there is nothing to collate before the model has answered
        return Learning(prompts, held_out, as_they_are, partial(grpo_loss, options=config.grpo), len, len)


def _problems_of_rewards(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the options that do not suit the rewards, the teacher or the environment."""
    options, rewards = config.grpo, config.rewards
    if options.use_gym_env and not (options.multi_turn_scheduler or options.environment_factory):
        yield (
            "grpo.use_gym_env",
            "environments are for answers of several turns: set grpo.multi_turn_scheduler or grpo.environment_factory.",
        )
    if options.multi_turn_scheduler and options.has_tools:
        yield "grpo.tools", "a scheduler defines itself what may be called: leave out grpo.multi_turn_scheduler."
    sources = rewards.functions or rewards.plugins or rewards.models or options.use_gym_env
    if not (sources or options.teacher):
        yield (
            "rewards.functions",
            "task grpo needs rewards: functions, Python files (plugins) or models.",
        )
    if options.teacher and options.loss_type == "real":
        yield (
            "grpo.teacher",
            "real compares whole answers, but a teacher scores each token: choose another grpo.loss_type.",
        )
    if options.teacher and options.dynamic_sample and not sources:
        yield "grpo.dynamic_sample", "without rewards there are none to compare: set grpo.dynamic_sample=false."
    for file in rewards.plugins:
        if not file.is_file():
            yield "rewards.plugins", f"there is no Python file {file}."
    if rewards.weights and rewards.functions:
        count = len(rewards.functions) + len(rewards.models) + options.use_gym_env
        if len(rewards.weights) != count:
            text = f"rewards.weights has {len(rewards.weights)} numbers for {count} reward functions and models."
            yield "rewards.weights", text
    if "soft_overlong" in rewards.functions and rewards.soft_cache_length is None:
        yield (
            "rewards.soft_cache_length",
            "soft_overlong needs rewards.soft_cache_length: tokens over which its penalty grows.",
        )


def _problems_of_steps(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the options that do not allow the answers to be compared in groups."""
    options, training = config.grpo, config.training
    if options.num_generations == 1 and not options.teacher:
        yield (
            "grpo.num_generations",
            "answers are compared with others to the same prompt: set grpo.num_generations to at least 2.",
        )
    if training.sequence_parallel > 1:
        yield (
            "training.sequence_parallel",
            "task grpo cannot split rows over devices: set training.sequence_parallel=1.",
        )
    per_generation = options.steps_per_generation or training.accumulation
    if per_generation % training.accumulation:
        yield "grpo.steps_per_generation", "grpo.steps_per_generation must be a multiple of training.accumulation."
    if options.loss_type == "real" and (
        training.batch_size % options.num_generations or per_generation != training.accumulation
    ):
        yield (
            "training.batch_size",
            "real compares the answers of whole groups: make training.batch_size a multiple of "
            "grpo.num_generations, and leave grpo.steps_per_generation out.",
        )


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def groups_per_generation(config: Config, ranks: int) -> int:
    """Return the number of prompts that all ranks answer at once.

    Raise NpukitError if the answers cannot be divided into complete groups.

    >>> groups_per_generation(Config(task="grpo", training={"batch_size": 16}, …), ranks=2)
    4
    """
    training, size = config.training, config.grpo.num_generations
    answers = training.batch_size * (config.grpo.steps_per_generation or training.accumulation) * ranks
    if answers % size:
        raise NpukitError(
            f"training.batch_size x grpo.steps_per_generation x devices is {answers}: make it a multiple of "
            f"grpo.num_generations, {size}."
        )
    return answers // size


TASKS = (GRPO(),)
