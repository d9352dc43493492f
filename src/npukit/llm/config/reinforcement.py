"""The options of reinforcement learning: how answers are sampled, rewarded and learnt from.

Options that TRL's GRPOConfig or ms-swift have, too, have the same names.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from npukit.llm import tasks
from npukit.train.options import Called, Fraction, FrozenOptions, Needs, When

GRPO = When("task", partial(tasks.using, "grpo"))
OURS = Called()  # ms-swift has no such option, or a different one with this name
Correction = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


def _as_list(value: Any) -> Any:
    """Turn a single value into a list."""
    return (value,) if isinstance(value, str | Path | int | float) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class GrpoOptions(FrozenOptions):
    """How a model learns from rewards."""

    WHEN = GRPO
    CALLED = Called(swift=True)

    num_generations: PositiveInt = Field(
        8, description="answers per prompt, which are compared with each other; with a teacher, 1 is enough"
    )
    steps_per_generation: PositiveInt | None = Field(
        None,
        description="batches per device that are generated at once: training.accumulation, or a multiple of "
        "it, which is then used for several steps",
    )
    num_iterations: PositiveInt = Field(1, description="number of updates from the same answers")
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "fipo", "real"] = Field(
        "dapo",
        description="how ratios are clipped and the loss of tokens is averaged: over each answer, then over "
        "answers (grpo, sapo), over the tokens of a batch (bnpo) or of a step (dapo, cispo, "
        "fipo), or over the maximum length (dr_grpo); real is a classification loss of good "
        "against bad answers of a group",
    )

    importance_sampling_level: Literal["token", "sequence", "sequence_token"] = Field(
        "token", description="one ratio per token, or one per answer (GSPO)"
    )
    epsilon: Annotated[float, Field(ge=0)] = Field(
        0.2, description="clipping range of the ratio below 1, and above 1 unless epsilon_high is set"
    )
    epsilon_high: PositiveFloat | None = Field(
        None, description="clipping range of the ratio above 1; for cispo, the upper limit of the ratio itself"
    )
    delta: PositiveFloat | None = Field(
        None, description="upper limit of the ratio of tokens with a negative advantage (two-sided clipping)"
    )
    tau_pos: PositiveFloat = Field(1.0, description="sapo: temperature of the gate for good answers")
    tau_neg: PositiveFloat = Field(1.05, description="sapo: temperature of the gate for bad answers")
    real_tau: PositiveFloat = Field(0.5, description="real: temperature of an answer's mean log-ratio")
    fipo_decay_rate: PositiveFloat = Field(
        32.0, description="fipo: distance in tokens at which the weight of a change is halved"
    )
    fipo_clip_range: Annotated[float, Field(ge=0)] = Field(
        0.2, description="fipo: maximum distance of a token's weight from 1; 0 for no limit"
    )
    fipo_clip_high_only: bool = Field(True, description="fipo: no weight below 1")
    fipo_safety_threshold: PositiveFloat = Field(
        4.0, description="fipo: tokens with a negative advantage and a ratio above this get a weight of at most 1"
    )
    beta: Annotated[float, Field(ge=0)] = Field(0.0, description="weight of the KL divergence from the initial model")
    use_bias_correction_kl: Annotated[bool, OURS] = Field(
        False, description="multiply the KL term by the ratio, as in DeepSeek-V3.2 and by default in TRL"
    )
    kl_in_reward: bool = Field(
        False, description="subtract the KL term from the reward instead of adding it to the loss"
    )
    teacher: Annotated[str | None, Called(swift="teacher_model")] = Field(
        None,
        description="on-policy distillation: folder or hub name of a teacher model with the same tokenizer, "
        "used with rewards or without",
    )
    teacher_kl_coef: PositiveFloat = Field(1.0, description="weight of the distillation term")
    advantage_estimator: Literal["grpo", "rloo", "reinforce_plus_plus"] = Field(
        "grpo",
        description="the baseline of an answer's reward: the mean of its group, or of the other answers in "
        "the group (rloo)",
    )
    scale_rewards: Literal["group", "batch", "none", "gdpo"] = Field(
        "group",
        description="advantages are divided by the standard deviation of the group or of the batch, or not; gdpo "
        "scales each reward function in its group before they are added",
    )
    mask_truncated_completions: Annotated[bool, Called(swift="overlong_filter")] = Field(
        False, description="exclude truncated answers from the loss"
    )
    top_entropy_quantile: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="share of tokens in the loss: those with the highest entropy"
    )
    dynamic_sample: bool = Field(
        False, description="replace groups whose answers have the same reward by other prompts (DAPO)"
    )
    max_resample_times: PositiveInt = Field(3, description="maximum number of attempts per step")
    importance_correction: Annotated[Correction | None, Called(swift="rollout_importance_sampling_mode")] = Field(
        None,
        description="weight tokens by the ratio of their probabilities in training and in generation: limited"
        " to the threshold (truncate), or 0 above it (mask)",
    )
    importance_threshold: Annotated[PositiveFloat, Called(swift="rollout_importance_sampling_threshold")] = Field(
        2.0, description="maximum weight of importance_correction"
    )
    off_policy_mask: Annotated[PositiveFloat | None, Called(swift="off_policy_sequence_mask_delta")] = Field(
        None,
        description="exclude answers with a negative advantage whose probability fell by more than this "
        "(DeepSeek-V3.2)",
    )
    max_completion_length: PositiveInt = Field(512, description="maximum number of tokens of an answer")
    multi_turn_scheduler: str | None = Field(
        None,
        description="decides what follows an answer, for conversations of several turns: a function or an ms-"
        "swift class in rewards.plugins, math_tip_trick or gym_scheduler",
    )
    tools: Annotated[Names, OURS] = Field(
        (), description="functions in rewards.plugins that the model may call, by name; their results follow its answer"
    )
    environment_factory: Annotated[str | None, OURS] = Field(
        None,
        description="a class in rewards.plugins, instantiated for each conversation: the model may call its "
        "methods; reset is called at the start, and get_reward returns the reward if use_gym_env "
        "is true",
    )
    max_turns: PositiveInt = Field(8, description="maximum number of answers in a conversation")
    completion_length_limit_scope: Literal["total", "per_round"] = Field(
        "total",
        description="whether max_completion_length limits the whole conversation, including what the "
        "scheduler adds, or each answer",
    )
    use_gym_env: bool = Field(
        False,
        description="add the reward gym_reward: the scheduler's total_reward, or what the environment's "
        "get_reward returns",
    )
    gym_env: str | None = Field(None, description="gym_scheduler: the environment, unless a row has env_config")
    temperature: PositiveFloat = Field(1.0, description="sampling temperature, also used for the ratios")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="sample from the likeliest tokens up to this total probability"
    )
    top_k: NonNegativeInt = Field(0, description="sample from this many of the likeliest tokens; all if 0")
    min_p: Fraction = Field(
        0.0, description="sample tokens with at least this share of the likeliest one's probability"
    )
    repetition_penalty: PositiveFloat = Field(1.0, description="above 1, tokens that occurred before are less likely")
    stop: Annotated[Names, Called(swift="stop_words")] = Field((), description="texts with which an answer ends")
    max_num_seqs: Annotated[PositiveInt, Called(swift="vllm_max_num_seqs")] = Field(
        512, description="answers that a device generates at the same time"
    )
    cache_share: Annotated[float, Field(gt=0, lt=1), OURS] = Field(
        0.9, description="share of the device's memory that may be in use during generation"
    )
    keep_cache: Annotated[bool, OURS] = Field(
        False, description="keep the key/value cache allocated during training steps"
    )
    log_completions: bool = Field(
        False, description="show the best and the worst answer of logged steps; all are in completions.jsonl"
    )

    @field_validator("loss_type", mode="before")
    @classmethod
    def _not_gspo(cls, value: Any) -> Any:
        if value == "gspo":
            raise ValueError("gspo is not a loss here: set grpo.importance_sampling_level=sequence")
        return value

    @property
    def has_tools(self) -> bool:
        """Whether the model may call tools from the user's Python files."""
        return bool(self.tools or self.environment_factory)

    @property
    def has_turns(self) -> bool:
        """Whether an answer may have several turns."""
        return self.has_tools or self.multi_turn_scheduler is not None


REWARD_PACKAGES = Needs(dict.fromkeys(("accuracy", "cosine"), "math_verify"))


class RewardOptions(FrozenOptions):
    """How answers are rewarded."""

    WHEN = GRPO
    CALLED = Called(swift=True)

    functions: Annotated[Names, Called(swift="reward_funcs"), REWARD_PACKAGES] = Field(
        (),
        description="names of reward functions: accuracy, format, react_format, toolbench, cosine, repetition, "
        "soft_overlong, or of a plug-in",
    )
    plugins: Annotated[tuple[Path, ...], BeforeValidator(_as_list), OURS] = Field(
        (),
        description="Python files with reward functions and schedulers, which are run; the functions are named in "
        "functions",
    )
    weights: Annotated[tuple[FiniteFloat, ...], BeforeValidator(_as_list), Called(swift="reward_weights")] = Field(
        (), description="weights of the functions, then of the reward models; 1 each if empty"
    )
    models: Annotated[Names, Called(swift="reward_model")] = Field(
        (), description="reward models, such as those trained with task rm: folders, or names on a hub"
    )
    timeout: Annotated[PositiveFloat, OURS] = Field(
        300.0,
        description="time limit in seconds for a reward function or a scheduler per batch; after it, the "
        "answers get no reward, or the conversations end",
    )
    cosine_min_len_value_wrong: float = Field(-0.5, description="cosine: reward of a wrong answer of length 0")
    cosine_max_len_value_wrong: float = Field(0.0, description="cosine: reward of a wrong answer of maximum length")
    cosine_min_len_value_correct: float = Field(1.0, description="cosine: reward of a correct answer of length 0")
    cosine_max_len_value_correct: float = Field(0.5, description="cosine: reward of a correct answer of maximum length")
    cosine_max_len: PositiveInt | None = Field(
        None, description="cosine: maximum length in tokens; grpo.max_completion_length if empty"
    )
    repetition_n_grams: PositiveInt = Field(3, description="repetition: words of a phrase")
    repetition_max_penalty: Annotated[float, Field(le=0)] = Field(
        -1.0, description="repetition: reward of an answer that consists of repetition only"
    )
    soft_max_length: PositiveInt | None = Field(
        None, description="soft_overlong: tokens at which the penalty is 1; grpo.max_completion_length if empty"
    )
    soft_cache_length: PositiveInt | None = Field(
        None, description="soft_overlong: number of tokens before that over which the penalty grows"
    )
