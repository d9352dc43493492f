"""ms-swift's flags of GRPO that need more than a new name."""

from __future__ import annotations

from typing import Any

from npukit.llm.config.dialects.values import RefusedValue, Values

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "fipo", "real")
# the defaults of scale_rewards and kl_in_reward for each advantage estimator
ESTIMATORS = {"grpo": ("group", False), "rloo": ("none", True), "reinforce_plus_plus": ("batch", True)}
SAMPLING = ("temperature", "top_k", "top_p", "repetition_penalty", "max_completion_length")


def is_grpo(values: Values) -> bool:
    """Return whether this is reinforcement learning."""
    return values.verb == "rlhf" and values.get("rlhf_type") == "grpo"


def grpo(values: Values) -> dict[str, Any]:
    """Translate how answers are sampled, compared and learnt from. Other methods only get a note about sampling."""
    if not is_grpo(values):
        if given := [key for key in SAMPLING if key in values.explicit]:
            values.notes.append(f"{', '.join(given)}: only for generation")
        return {}
    scale, in_reward = values.choice("advantage_estimator", ESTIMATORS, otherwise="grpo")
    kinds = values.words("loss_type")
    if kinds == ["gspo"]:  # the name in the paper, which looks like a loss
        raise RefusedValue("loss_type", "loss_type gspo is not a loss here: set importance_sampling_level sequence.")
    values.choice("vllm_mode", ("colocate", "server"), otherwise="colocate")
    top_k = int(values.number("top_k", -1))
    return {
        "grpo.loss_type": values.choice("loss_type", LOSSES, kinds[0] if kinds else "grpo"),
        "grpo.beta": values.number("beta", 0.04),
        "grpo.kl_in_reward": values.flag("kl_in_reward", in_reward),
        "grpo.scale_rewards": "none" if kinds == ["real"] else _scale(values, scale),
        "grpo.temperature": values.number("temperature", 0.9),
        "grpo.top_k": max(top_k, 0),
        "grpo.top_p": values.number("top_p", 1.0),
        "grpo.repetition_penalty": values.number("repetition_penalty", 1.0),
        "grpo.max_completion_length": int(values.number("max_completion_length", 512)),
        "grpo.completion_length_limit_scope": values.choice(
            "completion_length_limit_scope", ("per_round", "total"), otherwise="per_round"
        ),
        **_generation(values),
    }


def plugins(values: Values) -> dict[str, Any]:
    """Return the files with reward functions and schedulers."""
    files = values.words("external_plugins")
    if files and not is_grpo(values):
        raise RefusedValue(
            "external_plugins", "external_plugins is not supported: write a script with npukit.train.Trainer."
        )
    return {"rewards.plugins": files} if files else {}


def sequence_parallel(values: Values) -> dict[str, Any]:
    """Return the number of devices that share a row.

    With GRPO it is 1. The step still has the same answers, because ms-swift then accumulates more batches.
    """
    size = values.get("sequence_parallel_size", 1)
    if size != 1 and is_grpo(values):
        values.notes.append("sequence_parallel_size: each device learns from whole answers, as many in a step")
        size = 1
    return {"training.sequence_parallel": size}


def _scale(values: Values, usual: str) -> str:
    """Translate true and false, which older versions of ms-swift use."""
    word = values.get("scale_rewards", usual)
    if isinstance(word, bool) or str(word).lower() in ("true", "false"):
        return "group" if str(word).lower() == "true" else "none"
    kinds = ("group", "batch", "none", "gdpo")
    return str(values.choice("scale_rewards", kinds, otherwise=usual))


def _generation(values: Values) -> dict[str, Any]:
    """Return the number of batches per device whose answers are sampled at once."""
    if (wanted := values.get("generation_batch_size")) is None:
        return {}
    batch = values.number("per_device_train_batch_size", 1) * values.ranks
    if values.number("generation_batch_size", wanted) % batch:
        text = f"generation_batch_size must be a multiple of per_device_train_batch_size x ranks, {batch:g}."
        raise RefusedValue("generation_batch_size", text)
    return {"grpo.steps_per_generation": int(wanted // batch)}
