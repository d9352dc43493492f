"""Keys of transformers' TrainingArguments in LLaMA-Factory and ms-swift that need more than a new name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from npukit import packages
from npukit.llm.config.dialects.values import RefusedValue, Values
from npukit.llm.config.nearest import nearest

TABLE = "training/transformers"
Translated = dict[str, Any]

SCHEDULES = {
    "cosine": "cosine",
    "linear": "linear",
    "constant": "constant",
    "constant_with_warmup": "constant",
    "inverse_sqrt": "inverse_sqrt",
    "cosine_with_min_lr": "cosine",
    "cosine_with_restarts": "cosine_restarts",
    "polynomial": "polynomial",
    "warmup_stable_decay": "wsd",
}
# the names in lr_scheduler_kwargs that are options here
SCHEDULE_OPTIONS = {"min_lr": "min_learning_rate", "lr_end": "min_learning_rate", "power": "power"}
PRESETS = ("zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload")


def schedule(values: Values) -> Translated:
    name = values.choice("lr_scheduler_type", SCHEDULES, otherwise="linear")
    options = values.get("lr_scheduler_kwargs", {})
    if not isinstance(options, dict):
        raise RefusedValue("lr_scheduler_kwargs", "lr_scheduler_kwargs must be a mapping, such as {min_lr: 1e-6}.")
    result: Translated = {"training.schedule": name}
    if name == "polynomial":
        result["training.min_learning_rate"] = 1e-7  # the default of transformers
    if name == "wsd":
        return {**result, **_stable_then_decay(options, values)}
    for option, value in options.items():
        if option in SCHEDULE_OPTIONS:
            result[f"training.{SCHEDULE_OPTIONS[option]}"] = value
        elif option == "num_cycles" and name == "cosine_restarts":
            result["training.cycles"] = value
        elif option == "min_lr_rate":
            if values.get("learning_rate") is None:
                raise RefusedValue("lr_scheduler_kwargs", "min_lr_rate is a share of learning_rate: give that too.")
            result["training.min_learning_rate"] = value * values.number("learning_rate", 0)
        else:
            raise RefusedValue("lr_scheduler_kwargs", f"{option} in lr_scheduler_kwargs is not supported; min_lr is.")
    return result


def _stable_then_decay(options: dict[str, Any], values: Values) -> Translated:
    """Translate the decay, which is a number of steps in transformers and a share here, so max_steps must be known."""
    decay, steps = options.pop("num_decay_steps", None), values.number("max_steps", -1)
    if options.get("decay_type", "cosine") != "linear":
        values.notes.append("lr_scheduler_type: warmup_stable_decay decays linearly here")
    if decay is None:
        return {}
    if steps <= 0:
        text = (
            "num_decay_steps needs max_steps; or set training.decay, the share of the steps in which the rate decays."
        )
        raise RefusedValue("lr_scheduler_kwargs", text)
    return {"training.decay": min(1.0, decay / steps)}


def warmup(values: Values) -> Translated:
    ratio, steps = values.number("warmup_ratio", 0), values.number("warmup_steps", 0)
    if ratio and steps:
        raise RefusedValue("warmup_ratio", "warmup_ratio and warmup_steps are both given: remove one of them.")
    if ratio >= 1:
        raise RefusedValue("warmup_ratio", f"warmup_ratio must be below 1, not {ratio}: warmup_steps counts steps.")
    if (ratio or steps) and values.get("lr_scheduler_type") == "constant":
        key = "warmup_ratio" if ratio else "warmup_steps"
        values.notes.append(f"{key}: not used, because lr_scheduler_type is constant, not constant_with_warmup")
        return {"training.warmup": 0}
    return {"training.warmup": ratio or steps}


def betas(values: Values) -> Translated:
    return {"training.betas": [values.get("adam_beta1", 0.9), values.get("adam_beta2", 0.999)]}


def evaluation(values: Values) -> Translated:
    key = "evaluation_strategy" if "evaluation_strategy" in values.explicit else "eval_strategy"
    strategy = values.choice(key, ("no", "steps", "epoch"), otherwise="no")
    if strategy == "steps":
        return {"training.eval_every": values.get("eval_steps") or values.get("logging_steps")}
    if "eval_steps" in values.explicit:
        values.notes.append(f"eval_steps: not used, because eval_strategy is {strategy}")
    return {"training.eval_every": "epoch" if strategy == "epoch" else None}


def saving(values: Values) -> Translated:
    strategies = {"no": None, "steps": values.get("save_steps"), "epoch": "epoch"}
    if values.get("save_strategy") == "best":
        raise RefusedValue(
            "save_strategy", "save_strategy best is not supported: use steps; the best checkpoint is kept."
        )
    return {"training.save_every": values.choice("save_strategy", strategies, otherwise="steps")}


def logging(values: Values) -> Translated:
    values.choice("logging_strategy", {"steps": "steps"}, otherwise="steps")
    return {}


LOGGERS = ("tensorboard", "wandb", "swanlab", "mlflow")


def loggers(values: Values) -> Translated:
    known = LOGGERS
    wanted = [word for word in values.words("report_to") if word != "none"]
    if "all" in wanted:  # as in transformers: all that are installed
        wanted = [logger for logger in known if packages.is_installed(logger)]
    if "report_to" not in values.explicit:
        for name in [name for name in wanted if not packages.is_installed(name)]:
            values.notes.append(f"report_to: {name} is the default there but not installed here, so it is left out")
            wanted.remove(name)
    for logger in wanted:
        if logger not in known:
            near = nearest(logger, known)
            hint = f": did you mean {near}?" if near else f": choose from {', '.join(known)}."
            raise RefusedValue("report_to", f"report_to {logger} is not supported{hint}")
    if values.flag("use_swanlab"):
        wanted.append("swanlab")
    return {"training.loggers": list(dict.fromkeys(wanted))}


def checkpointing(values: Values) -> Translated:
    """Turn checkpointing on by default, as LLaMA-Factory and ms-swift do."""
    on = values.flag("gradient_checkpointing", not values.flag("disable_gradient_checkpointing"))
    if on and "gradient_checkpointing" not in values.explicit:
        values.notes.append(
            "gradient_checkpointing: on by default, as there; off is about a third faster and takes more memory"
        )
    return {"training.activation_checkpointing": on}


def best_metric(values: Values) -> Translated:
    """Return the metric. Unless the user says otherwise, higher is better for all but losses."""
    name = values.get("metric_for_best_model")
    if not isinstance(name, str):
        return {"training.best_is_highest": values.flag("greater_is_better")}
    return {
        "training.best_metric": f"eval_{name.removeprefix('eval_')}",
        "training.best_is_highest": values.flag("greater_is_better", not name.endswith("loss")),
    }


def parallel(values: Values) -> Translated:
    wanted, sharded = values.get("deepspeed"), values.get("fsdp")
    if wanted and sharded:
        raise RefusedValue("fsdp", "deepspeed and fsdp are both given: remove one of them.")
    if sharded:
        return _fsdp(sharded, values)
    return deepspeed(wanted, values) if wanted else {"training.parallel": "ddp"}


def _fsdp(wanted: Any, values: Values) -> Translated:
    words = " ".join(map(str, wanted)) if isinstance(wanted, list) else str(wanted)
    if "fsdp_config" in values.explicit:
        values.notes.append("fsdp_config: npukit always wraps each layer of the model")
    if not re.search(r"full_shard|fsdp2|True", words):
        raise RefusedValue("fsdp", f"fsdp {words} is not supported: use full_shard, or deepspeed zero2.")
    return {"training.parallel": "fsdp2", "training.offload": "offload" in words}


def deepspeed(wanted: Any, values: Values) -> Translated:
    """Return a DeepSpeed file, or the ZeRO stage of a file that comes with LLaMA-Factory or ms-swift."""
    if not isinstance(wanted, str):
        raise RefusedValue("deepspeed", f"deepspeed must be one of {', '.join(PRESETS)}, or a JSON file.")
    wanted = wanted.removeprefix("default-")  # the file names of ms-swift 2
    if Path(wanted).is_file():
        return {"training.parallel": wanted}
    # The names of the files that come with LLaMA-Factory and ms-swift say what they contain.
    match = re.fullmatch(
        r"(?:ds_z|zero|ds_zero_?|stage_?)([0-3])([_-]offload)?(?:_config)?(?:\.json)?", Path(wanted).name
    )
    if not match:
        near = nearest(Path(wanted).name, PRESETS)
        hint = f": did you mean {near}?" if near else f", and it is none of {', '.join(PRESETS)}."
        raise RefusedValue("deepspeed", f"there is no DeepSpeed file {wanted}{hint}")
    stage, offload = match.groups()
    if stage in "12" and (values.get("quant_bits") or values.get("quantization_bit")):
        values.notes.append("deepspeed: with quantised weights only the adapter is trained, which every device keeps")
        return {"training.parallel": "ddp"}
    if stage == "0":
        values.notes.append("deepspeed: ZeRO-0 is plain data parallelism")
    return {"training.parallel": "ddp" if stage == "0" else f"zero{stage}", "training.offload": bool(offload)}


def token_loss(values: Values) -> Translated:
    """Translate the losses that weight tokens."""
    wanted = [kind for key, kind in TOKEN_LOSSES.items() if values.flag(key)]
    if len(wanted) > 1:
        raise RefusedValue("use_dft_loss", f"{' and '.join(wanted)} are both asked for: choose one loss.")
    return {"tuning.loss": wanted[0]} if wanted else {}


def quantized(values: Values, bits: str, method: str, kind: str) -> Translated:
    """Translate quantised weights below an adapter. The formats are those of bitsandbytes, which is not needed."""
    if not values.get(bits):
        return {}
    if str(values.get(method)).lower() == "hqq":
        return {"model.quantize": values.choice(bits, {"4": "hqq"}, otherwise="4")}
    if values.get(method) not in (None, "bnb", "BNB", "bitsandbytes"):
        text = f"{method} {values.get(method)} is not supported: use bnb or hqq, which need no package here."
        raise RefusedValue(method, text)
    if kind != "nf4":
        raise RefusedValue(bits, f"4 bits are kept as nf4, not as {kind}.")
    return {"model.quantize": values.choice(bits, {"4": "nf4", "8": "int8"}, otherwise="4")}


TOKEN_LOSSES = {"use_dft_loss": "dft", "enable_dft_loss": "dft", "use_eaft_loss": "eaft", "use_asft_loss": "asft"}
OF_STEPS = (schedule, warmup, betas, checkpointing, parallel, token_loss)
OF_WATCHING = (evaluation, saving, logging, loggers, best_metric)
FUNCTIONS = {function.__name__: function for function in (*OF_STEPS, *OF_WATCHING)}


def shifted_attention(values: Values, cutoff: int) -> Translated:
    """Translate LongLoRA, whose groups have a quarter of the maximum row length."""
    values.notes.append(
        "LongLoRA: groups are a quarter of the longest row, and end where a row does; its first tokens see none of its "
        "last ones"
    )
    return {"tuning.shifted_attention": max(2, cutoff // 4)}
