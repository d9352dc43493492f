"""Options of reinforcement learning: how answers are sampled, rewarded and learnt from.

Where TRL's GRPOConfig or ms-swift has a name for an option, it is called that.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from npukit.llm import tasks
from npukit.train.options import Called, Fraction, FrozenOptions, Needs, When

GRPO = When("task", partial(tasks.using, "grpo"))
OURS = Called()  # ms-swift has no such option, or one of another meaning
Correction = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


def _as_list(value: Any) -> Any:
    """One of a list may stand alone."""
    return (value,) if isinstance(value, str | Path | int | float) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class GrpoOptions(FrozenOptions):
    """How a model learns from rewards."""

    WHEN = GRPO
    CALLED = Called(swift=True)

    num_generations: PositiveInt = Field(
        8, description="answers to each prompt, which are compared with each other; with a teacher 1 will do"
    )
    steps_per_generation: PositiveInt | None = Field(
        None,
        description="batches of each device that are sampled at once; training.accumulation, or a multiple of it, "
        "which then makes several steps",
    )
    num_iterations: PositiveInt = Field(1, description="how often the same answers are learnt from")
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "fipo", "real"] = Field(
        "dapo",
        description="how ratios are clipped and tokens averaged: over each answer, then over answers (grpo, sapo), "
        "over the tokens of a batch (bnpo) or of a step (dapo, cispo, fipo), or over the longest answer (dr_grpo); "
        "real tells the good answers of a group from the bad ones",
    )
    importance_sampling_level: Literal["token", "sequence", "sequence_token"] = Field(
        "token", description="whether each token has its ratio, or an answer has one (GSPO)"
    )
    epsilon: Annotated[float, Field(ge=0)] = Field(
        0.2, description="how far a ratio may fall below 1, and rise above it unless epsilon_high says so"
    )
    epsilon_high: PositiveFloat | None = Field(
        None, description="how far a ratio may rise above 1; of cispo, the highest ratio itself"
    )
    delta: PositiveFloat | None = Field(
        None, description="highest ratio of a token with a negative advantage (two-sided clipping)"
    )
    tau_pos: PositiveFloat = Field(1.0, description="sapo: temperature of the gate for good answers")
    tau_neg: PositiveFloat = Field(1.05, description="sapo: temperature of the gate for bad answers")
    real_tau: PositiveFloat = Field(0.5, description="real: temperature of an answer's mean log-ratio")
    fipo_decay_rate: PositiveFloat = Field(
        32.0, description="fipo: tokens after which a change counts half for those before it"
    )
    fipo_clip_range: Annotated[float, Field(ge=0)] = Field(
        0.2, description="fipo: how far from 1 a token may be weighed by the changes after it; 0 for no limit"
    )
    fipo_clip_high_only: bool = Field(True, description="fipo: weigh no token less than 1")
    fipo_safety_threshold: PositiveFloat = Field(
        4.0, description="fipo: a token of a bad answer whose ratio is higher than this is not weighed more than 1"
    )
    beta: Annotated[float, Field(ge=0)] = Field(
        0.0, description="weight of the distance (KL) from the model before training"
    )
    use_bias_correction_kl: Annotated[bool, OURS] = Field(
        False, description="weigh that distance by the ratio, as DeepSeek-V3.2 and TRL's default do"
    )
    kl_in_reward: bool = Field(False, description="take that distance off the reward, instead of adding it to the loss")
    teacher: Annotated[str | None, Called(swift="teacher_model")] = Field(
        None,
        description="a model with the same tokens, folder or name on a hub: tokens that it thinks likelier become "
        "likelier (on-policy distillation), beside rewards or without them",
    )
    teacher_kl_coef: PositiveFloat = Field(1.0, description="weight of the teacher's opinion beside the rewards")
    advantage_estimator: Literal["grpo", "rloo", "reinforce_plus_plus"] = Field(
        "grpo", description="an answer's reward is compared with the mean of its group, or of the others (rloo)"
    )
    scale_rewards: Literal["group", "batch", "none", "gdpo"] = Field(
        "group",
        description="advantages are divided by the standard deviation of the group or of the batch, or not; gdpo "
        "scales each reward function in its group before they are added",
    )
    mask_truncated_completions: Annotated[bool, Called(swift="overlong_filter")] = Field(
        False, description="learn nothing from answers that were cut off"
    )
    top_entropy_quantile: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="share of tokens that are learnt from, those of the highest entropy"
    )
    dynamic_sample: bool = Field(
        False, description="replace groups whose answers have the same reward by other prompts (DAPO)"
    )
    max_resample_times: PositiveInt = Field(3, description="how often that is tried in a step")
    importance_correction: Annotated[Correction | None, Called(swift="rollout_importance_sampling_mode")] = Field(
        None,
        description="weigh tokens by how likely they are to the learner compared with the sampler: at most the "
        "threshold (truncate), or nothing above it (mask)",
    )
    importance_threshold: Annotated[PositiveFloat, Called(swift="rollout_importance_sampling_threshold")] = Field(
        2.0, description="the highest such weight"
    )
    off_policy_mask: Annotated[PositiveFloat | None, Called(swift="off_policy_sequence_mask_delta")] = Field(
        None, description="learn nothing from bad answers that became less likely by more than this (DeepSeek-V3.2)"
    )
    max_completion_length: PositiveInt = Field(512, description="most tokens of an answer")
    multi_turn_scheduler: str | None = Field(
        None,
        description="what follows an answer, so that the model answers again: a function of messages in "
        "rewards.plugins, a class of ms-swift's form there, math_tip_trick or gym_scheduler",
    )
    tools: Annotated[Names, OURS] = Field(
        (), description="functions in rewards.plugins that the model may call, by name; their results follow its answer"
    )
    environment_factory: Annotated[str | None, OURS] = Field(
        None,
        description="a class in rewards.plugins, of which each conversation has an object: the model may call its "
        "methods, reset begins it, and get_reward is its reward if use_gym_env is true",
    )
    max_turns: PositiveInt = Field(8, description="answers of the model in a conversation, after which it ends")
    completion_length_limit_scope: Literal["total", "per_round"] = Field(
        "total",
        description="whether max_completion_length is that of a conversation with all that the scheduler adds, or of "
        "each answer in it",
    )
    use_gym_env: bool = Field(
        False,
        description="the total_reward that a scheduler notes, or what get_reward of an environment returns, is a "
        "reward, too: gym_reward",
    )
    gym_env: str | None = Field(None, description="gym_scheduler: the environment, unless a row has env_config")
    temperature: PositiveFloat = Field(1.0, description="of sampling, and of the learner's ratios")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="sample from this share of probability")
    top_k: NonNegativeInt = Field(0, description="sample from so many tokens; all if 0")
    min_p: Fraction = Field(
        0.0, description="sample tokens with at least this share of the likeliest one's probability"
    )
    repetition_penalty: PositiveFloat = Field(1.0, description="above 1, tokens that occurred before are less likely")
    stop: Annotated[Names, Called(swift="stop_words")] = Field((), description="texts with which an answer ends")
    max_num_seqs: Annotated[PositiveInt, Called(swift="vllm_max_num_seqs")] = Field(
        256, description="answers that a device samples at the same time"
    )
    cache_share: Annotated[float, Field(gt=0, lt=1), OURS] = Field(
        0.9, description="share of the device's memory that may be in use while answers are sampled"
    )
    keep_cache: Annotated[bool, OURS] = Field(
        False, description="keep the memory of the key/value cache while the model learns"
    )
    log_completions: bool = Field(
        False, description="show the best and the worst answer of logged steps; all are in completions.jsonl"
    )

    @property
    def has_tools(self) -> bool:
        """Whether the model may call what is in a file of the user's."""
        return bool(self.tools or self.environment_factory)

    @property
    def has_turns(self) -> bool:
        """Whether an answer may have several turns."""
        return self.has_tools or self.multi_turn_scheduler is not None


REWARD_PACKAGES = Needs(dict.fromkeys(("accuracy", "cosine"), "math_verify"))


class RewardOptions(FrozenOptions):
    """What rewards answers."""

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
    weights: Annotated[tuple[float, ...], BeforeValidator(_as_list), Called(swift="reward_weights")] = Field(
        (), description="of the functions, then of the reward models; 1 each if empty"
    )
    models: Annotated[Names, Called(swift="reward_model")] = Field(
        (), description="reward models, as task rm trains them: folders, or names on a hub"
    )
    timeout: Annotated[PositiveFloat, OURS] = Field(
        300.0,
        description="seconds that a reward function or a scheduler may take for a batch; then its answers have no "
        "reward, or end",
    )
    cosine_min_len_value_wrong: float = Field(-0.5, description="cosine: reward of a wrong answer without tokens")
    cosine_max_len_value_wrong: float = Field(0.0, description="cosine: reward of the longest wrong answer")
    cosine_min_len_value_correct: float = Field(1.0, description="cosine: reward of a right answer without tokens")
    cosine_max_len_value_correct: float = Field(0.5, description="cosine: reward of the longest right answer")
    cosine_max_len: PositiveInt | None = Field(
        None, description="cosine: tokens of the longest answer; grpo.max_completion_length if empty"
    )
    repetition_n_grams: PositiveInt = Field(3, description="repetition: words of a phrase")
    repetition_max_penalty: Annotated[float, Field(le=0)] = Field(
        -1.0, description="repetition: reward of an answer that is nothing but repetition"
    )
    soft_max_length: PositiveInt | None = Field(
        None, description="soft_overlong: tokens at which the penalty is 1; grpo.max_completion_length if empty"
    )
    soft_cache_length: PositiveInt | None = Field(
        None, description="soft_overlong: tokens before that, over which the penalty grows"
    )
