"""The additional work of a reinforcement learning step: sampling and rewarding answers."""

from __future__ import annotations

from math import ceil

from npukit.llm.config.options import Config, ModelOptions
from npukit.llm.models.outline import Outline, look_at
from npukit.llm.tasks import task as tasks
from npukit.performance.plan.memory import low_bytes, row_length, stage_of, token_cache
from npukit.performance.plan.work import PlannedWork


def phases(config: Config, model: Outline, devices: int, learning: list[PlannedWork]) -> dict[str, list[PlannedWork]]:
    """The work of a step by phase, with prompts and answers of the maximum length.

    Reward functions are not counted, because their time is unknown. Other tasks sample nothing.
    """
    if not tasks.of(config).samples:
        return {}
    training, options = config.training, config.grpo
    answers = training.batch_size * training.accumulation / options.num_iterations  # of a device, in a step
    tokens = answers * row_length(config)
    passes = (options.num_iterations > 1) + (options.beta > 0)  # for log-probabilities before learning
    noted = PlannedWork("matmul", 2 * tokens * model.computed() * passes, 0.0, 0)
    return {
        "sampling": _sampling(config, model, devices, answers),
        "rewards": [
            _scoring(path, config, tokens) for path in (*config.rewards.models, *filter(None, [options.teacher]))
        ],
        "learning": [*learning, noted],
    }


def _sampling(config: Config, model: Outline, devices: int, answers: float) -> list[PlannedWork]:
    """Prompts are read once per group; then every step of the engine reads all weights and the cache."""
    options, low = config.grpo, low_bytes(config)
    weights = float(model.computed() + model.sizes.vocabulary * model.sizes.hidden)
    share = (config.training.batch_size * (options.steps_per_generation or config.training.accumulation)) / answers
    together = min(options.max_num_seqs, answers * share)  # one generation may serve several steps
    steps = ceil(answers * share / together) * options.max_completion_length / share
    length = config.data.cutoff + options.max_completion_length / 2
    prompts = answers / options.num_generations * config.data.cutoff
    work = [
        PlannedWork("matmul", 2 * weights * prompts, 0.0, 0),
        PlannedWork("matmul", 2 * weights * together * steps, weights * low * steps, steps),  # one graph launch each
        PlannedWork("vector", 0.0, together * length * token_cache(config, model) * steps, 0),
    ]
    if stage_of(config) == 3 and devices > 1:
        sent = (devices - 1) / devices * model.parameters * low / share
        work.append(PlannedWork("collective", 0.0, sent, model.sizes.layers / share))
    return work


def _scoring(path: str, config: Config, tokens: float) -> PlannedWork:
    judge = look_at(ModelOptions(path=path, hub=config.model.hub))
    return PlannedWork("matmul", 2 * tokens * judge.computed() if judge else 0.0, 0.0, 0)
