"""DeepSpeed's configuration, made from the options or from a file whose "auto" values they fill in."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.train.options import TrainOptions

STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}

Config = dict[str, Any]


def deepspeed_config(options: TrainOptions, world_size: int, precision: str, hidden_size: int | None) -> Config:
    """The complete configuration. Values of a file that are not "auto" must agree with the options.

    >>> deepspeed_config(TrainOptions(parallel="zero2"), world_size=2, precision="bf16", hidden_size=None)
    {'zero_optimization': {'stage': 2}, 'zero_force_ds_cpu_optimizer': False, ...}
    """
    name = str(options.parallel)
    config: Config = {"zero_optimization": {"stage": STAGES[name]}} if name in STAGES else _read(Path(name))
    _drop_if_auto(config, ("optimizer", "scheduler"), name)
    if options.offload:
        config.setdefault("zero_optimization", {}).setdefault("offload_optimizer", {"device": "cpu"})
    # torch's optimizer on the host, because DeepSpeed's would have to be compiled first.
    config.setdefault("zero_force_ds_cpu_optimizer", False)
    config["zero_allow_untested_optimizer"] = True
    config.setdefault("steps_per_print", 2**31)
    for place, value in _from_options(options, world_size, precision).items():
        _settle(config, place, value, name)
    if hidden_size is not None:
        for place, value in _from_hidden_size(hidden_size).items():
            if _get(config, place) == "auto":
                _set(config, place, value)
    return _without_auto(config)


def _read(path: Path) -> Config:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        names = ", ".join(("ddp", "fsdp2", *STAGES))
        raise NpukitError(f"parallel: {path} is neither one of {names} nor an existing DeepSpeed file.") from None
    except ValueError as error:
        raise NpukitError(f"{path} is not JSON: {error}.") from None
    if not isinstance(config, dict):
        raise NpukitError(f"{path} is not a DeepSpeed configuration: it must be a JSON object.")
    return config


def _drop_if_auto(config: Config, sections: tuple[str, ...], name: str) -> None:
    """Remove a section with only "auto" values: optimizer and schedule come from the options."""
    for section in sections:
        chosen = (config.pop(section, None) or {}).get("params", {})
        fixed = [key for key, value in chosen.items() if value != "auto" and key not in ("torch_adam", "adam_w_mode")]
        if fixed:
            raise NpukitError(
                f"{name}: take `{section}` ({', '.join(fixed)}) out and set it in the training options, or make its "
                'values "auto": the optimizer is set in one place only.'
            )


def _from_options(options: TrainOptions, world_size: int, precision: str) -> dict[str, Any]:
    batch, accumulation = options.batch_size, options.accumulation
    return {
        "train_micro_batch_size_per_gpu": batch,
        "gradient_accumulation_steps": accumulation,
        "train_batch_size": batch * accumulation * world_size,
        "gradient_clipping": options.max_grad_norm,
        "bf16.enabled": precision == "bf16",
        "fp16.enabled": precision == "fp16",
        "fp16.initial_scale_power": int(math.log2(options.loss_scale)),
    }


def _from_hidden_size(size: int) -> dict[str, int]:
    return {
        "zero_optimization.reduce_bucket_size": size * size,
        "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * size * size),
        "zero_optimization.stage3_param_persistence_threshold": 10 * size,
    }


def _settle(config: Config, place: str, value: Any, name: str) -> None:
    present = _get(config, place)
    if present in (None, "auto"):
        _set(config, place, value)
    elif present != value and not place.endswith("scale_power"):
        raise NpukitError(
            f'{name} says {place} {present}, the training options {value}: change one of them, or set it to "auto".'
        )


def _get(config: Config, place: str) -> Any:
    *sections, key = place.split(".")
    for section in sections:
        config = config.get(section) or {}
    return config.get(key)


def _set(config: Config, place: str, value: Any) -> None:
    *sections, key = place.split(".")
    for section in sections:
        config = config.setdefault(section, {})
    config[key] = value


def _without_auto(config: Config) -> Config:
    """Remove the remaining "auto" values, so that DeepSpeed uses its defaults."""
    return {
        key: _without_auto(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if value != "auto"
    }
