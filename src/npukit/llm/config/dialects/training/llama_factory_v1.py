"""The keys of LLaMA-Factory's v1 that need more than a new name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.config.dialects.table import Dialect, load
from npukit.llm.config.dialects.training import transformers
from npukit.llm.config.dialects.training.transformers import Translated, quantized
from npukit.llm.config.dialects.values import RefusedValue, Values
from npukit.llm.config.yaml_file import read_yaml

PREFERENCES = ("pref_loss", "pref_beta", "pref_ftx", "simpo_gamma", "dpo_label_smoothing", "ld_alpha")


def task(values: Values) -> Translated:
    """Determine the task. v1 has it on the command line; here the model class or the data set shows it."""
    kind = values.choice("model_class", ("llm", "cls"), otherwise="llm")
    pairs = any(row.get("converter") == "pair" for row in _described("train_dataset", values).values())
    if kind == "cls":
        return {"task": "rm"}
    return {"task": "dpo" if pairs or any(key in values.explicit for key in PREFERENCES) else "sft"}


def _described(key: str, values: Values) -> dict[str, dict[str, Any]]:
    """Return the data sets of a key: a single one, or those that a YAML file describes."""
    path = values.get(key)
    if path is None:
        return {}
    if not str(path).endswith((".yaml", ".yml")):
        return {"": {"path": str(path)}}
    try:
        rows = read_yaml(Path(str(path))).values
    except NpukitError as error:
        raise RefusedValue(key, f"{key}: {error}") from error
    if wrong := [name for name, row in rows.items() if not isinstance(row, dict) or "path" not in row]:
        raise RefusedValue(key, f"{wrong[0]} in {path} must have a path, as {{path: rows.json, source: local}}.")
    return rows


FORMATS = {"alpaca": "alpaca", "sharegpt": "sharegpt", "pair": "auto", None: "auto"}


def _sources(key: str, values: Values) -> Iterator[Translated]:
    for name, row in _described(key, values).items():
        if row.get("converter") not in FORMATS:
            raise RefusedValue(key, f"converter {row['converter']} of {name} is not supported: use alpaca or sharegpt.")
        if row.get("weight") not in (None, 1, 1.0):
            raise RefusedValue(key, f"weight of {name} is not supported: give size, a number of rows.")
        if row.get("streaming"):
            raise RefusedValue(key, f"streaming of {name} is not supported here: set data.streaming=true.")
        size = f"#{row['size']}" if row.get("size") else ""
        yield {
            "path": f"{row['path']}{size}",
            "format": FORMATS[row.get("converter")],
            **({"split": row["split"]} if "split" in row else {}),
        }


def datasets(values: Values) -> Translated:
    train = list(_sources("train_dataset", values))
    return {"data.train": train} if train else {}


def validation(values: Values) -> Translated:
    return {"data.validation": list(_sources("eval_dataset", values)) or 0.0}


def template(values: Values) -> Translated:
    """Use the templates of v1 0.9.5, whose qwen3 is that of Qwen3's tokenizers. Later releases use the tokenizer's."""
    names = {"chatml": "chatml", "qwen3_nothink": "qwen3_nothink", "qwen3": None}
    name = values.choice("template", names, otherwise="qwen3")
    if name:
        values.notes.append("template: the header of an answer does not count in the loss, as it does in v1")
    else:
        values.notes.append("template: the tokenizer's own, as in v1; each answer of a conversation counts once")
    return {"data.template": name}


def batching(values: Values) -> Translated:
    """Translate batches with a maximum number of tokens into packing."""
    strategies = {
        "normal": False,
        "padding_free": False,
        "dynamic_batching": True,
        "dynamic_padding_free": True,
    }
    packing = values.choice("batching_strategy", strategies, otherwise="normal")
    if packing:
        values.notes.append("batching_strategy: rows are packed up to cutoff_len, and do not attend to each other")
    return {"data.packing": packing}


def accumulation(values: Values) -> Translated:
    """Return the number of batches in the global batch, or one if its size is not given."""
    batch = values.number("micro_batch_size", 1) * max(1, values.ranks // int(values.number("cp_size", 1)))
    whole = values.number("global_batch_size", batch)
    if not batch or whole % batch:
        text = f"global_batch_size {whole:g} is not a multiple of micro_batch_size on all devices ({batch:g})."
        raise RefusedValue("global_batch_size", text)
    return {"training.accumulation": int(whole // batch)}


def schedule(values: Values) -> Translated:
    return {"training.schedule": "constant"}


def saving(values: Values) -> Translated:
    epochs = values.get("save_epochs")
    if epochs not in (None, 1, 1.0):
        raise RefusedValue("save_epochs", "save_epochs must be 1: use save_steps for another interval.")
    return {"training.save_every": "epoch" if epochs else values.get("save_steps")}


def method(values: Values) -> Translated:
    return {"tuning.method": values.choice("peft_config.name", ("lora", "freeze", "full"), otherwise="full")}


def targets(values: Values) -> Translated:
    names = values.words("peft_config.target_modules") or ["all"]
    return {"tuning.targets": "all-linear" if "all" in names else names}


def layer_modules(values: Values) -> Translated:
    names = values.words("peft_config.freeze_trainable_modules") or ["all"]
    return {"tuning.layer_modules": [] if "all" in names else names}


def adapter(values: Values) -> Translated:
    paths = values.words("peft_config.adapter_name_or_path")
    if len(paths) > 1:
        raise RefusedValue("peft_config.adapter_name_or_path", "one adapter can be continued: merge the others first.")
    return {"model.adapter": paths[0]} if paths else {}


def quantization(values: Values) -> Translated:
    method = values.choice("quant_config.name", {"bnb": "bnb", "auto": None}, otherwise="auto")
    if method and not values.get("quant_config.quantization_bit"):
        return {"model.quantize": "nf4"}
    kind = values.get("quant_config.quantization_type", "nf4")
    return quantized(values, "quant_config.quantization_bit", "", kind)


def parallel(values: Values) -> Translated:
    name = values.get("dist_config.name")
    if name == "deepspeed":
        if (file := values.get("dist_config.config_file")) is None:
            raise RefusedValue("dist_config.name", "deepspeed needs dist_config.config_file, a DeepSpeed JSON file.")
        return transformers.deepspeed(file, values)
    if name not in (None, "fsdp2"):
        raise RefusedValue("dist_config.name", f"dist_config.name {name} is not supported: use fsdp2 or deepspeed.")
    return {"training.parallel": name or "ddp", "training.offload": values.flag("dist_config.offload_params")}


def optimizer(values: Values) -> Translated:
    """Use AdamW with torch's default weight decay, unless Muon is selected."""
    if values.get("optim_config.name") is None:
        return {"training.weight_decay": 0.01}
    options = {name: values.get(f"optim_config.{name}") for name in ("momentum", "nesterov", "ns_steps")}
    return {
        "training.optimizer": values.choice("optim_config.name", ("muon",), otherwise=""),
        "training.optimizer_options": {name: value for name, value in options.items() if value is not None},
        "training.weight_decay": values.number("optim_config.wd", 0.1),
        "training.betas": values.get("optim_config.adamw_betas", [0.9, 0.95]),
    }


def preference(values: Values) -> Translated:
    loss = values.choice("pref_loss", ("sigmoid", "orpo", "simpo"), otherwise="sigmoid")
    return {"preference.loss": loss, "preference.sft_mean": "rows"} if task(values)["task"] == "dpo" else {}


OF_MODEL = (task, method, targets, layer_modules, adapter, quantization, preference)
OF_TRAINING = (datasets, validation, template, batching, accumulation, schedule, saving, parallel, optimizer)
FUNCTIONS = {function.__name__: function for function in (*OF_MODEL, *OF_TRAINING)}
LLAMA_FACTORY_V1 = Dialect("LLaMA-Factory v1", load("training/llama_factory_v1"), FUNCTIONS)
