"""LLaMA-Factory's keys that need more than a new name."""

from __future__ import annotations

from pathlib import Path

from npukit.llm.config.dialects.table import Dialect, load
from npukit.llm.config.dialects.training import transformers
from npukit.llm.config.dialects.training.optimizers import optimizer
from npukit.llm.config.dialects.training.transformers import TABLE, Translated, quantized, shifted_attention
from npukit.llm.config.dialects.values import RefusedValue, Values


def task(values: Values) -> Translated:
    if "do_train" in values.explicit and not values.flag("do_train"):
        raise RefusedValue("do_train", "do_train must be true: this command trains.")
    if values.get("stage") == "ppo":
        raise RefusedValue(
            "stage", "stage ppo is not supported: use task grpo, with the reward model in rewards.models."
        )
    stages = {stage: stage for stage in ("sft", "pt", "dpo", "kto", "rm")} | {"orpo": "dpo"}  # a stage until 0.7.1
    return {"task": values.choice("stage", stages, otherwise="sft")}


def preference(values: Values) -> Translated:
    """Translate pref_loss. LLaMA-Factory never had a separate method for kto_pair."""
    if values.get("stage") not in ("dpo", "kto", "orpo"):
        return {}
    if values.get("ref_model") or values.get("ref_model_adapters"):
        raise RefusedValue("ref_model", "ref_model is not supported: the reference is the model before it is trained.")
    losses = ("sigmoid", "hinge", "ipo", "orpo", "simpo")
    return {
        "preference.loss": "orpo"
        if values.get("stage") == "orpo"
        else values.choice("pref_loss", losses, otherwise="sigmoid"),
        "preference.beta": values.number("pref_beta", 0.1),
        "preference.sft_weight": values.number("pref_ftx", 0.0),
        "preference.sft_mean": "rows",
        "preference.gamma": values.number("simpo_gamma", 0.5),
        "preference.label_smoothing": values.number("dpo_label_smoothing", 0.0),
        "preference.desirable_weight": values.number("kto_chosen_weight", 1.0),
        "preference.undesirable_weight": values.number("kto_rejected_weight", 1.0),
    }


def resume(values: Values) -> Translated:
    wanted = values.get("resume_from_checkpoint")
    if isinstance(wanted, str):
        return {"training.resume": wanted}
    return {"training.resume": "never" if values.flag("overwrite_output_dir") else "auto"}


def precision(values: Values) -> Translated:
    if values.flag("pure_bf16"):
        return {"training.precision": "bf16", "model.dtype": "bfloat16"}
    bf16, fp16 = values.flag("bf16"), values.flag("fp16")
    if bf16 and fp16:
        raise RefusedValue("fp16", "bf16 and fp16 are both true: remove one of them.")
    if not bf16 and not fp16:
        values.notes.append("bf16, fp16: neither is set, so training runs in fp32; bf16: true is several times faster")
    return {"training.precision": "bf16" if bf16 else "fp16" if fp16 else "fp32"}


def shuffle(values: Values) -> Translated:
    sampling = values.choice("train_sampling_strategy", {"random": True, "sequential": False}, otherwise="random")
    return {"training.shuffle": sampling and not values.flag("disable_shuffling")}


def adapter(values: Values) -> Translated:
    paths = values.words("adapter_name_or_path")
    if len(paths) > 1:
        raise RefusedValue(
            "adapter_name_or_path", "several adapters are not supported: merge them first (npukit export)."
        )
    return {"model.adapter": paths[0]} if paths else {}


def badam(values: Values) -> Translated:
    """Translate BAdam, which switches layers at the same steps as the badam package."""
    if not values.flag("use_badam"):
        return {}
    if values.get("badam_mode", "layer") != "layer":
        raise RefusedValue("badam_mode", f"badam_mode {values.get('badam_mode')} is not supported: use layer.")
    orders = ("ascending", "descending", "random")
    return {
        "tuning.turns": "badam",
        "tuning.turn_order": values.choice("badam_switch_mode", orders, otherwise="ascending"),
        "tuning.turn_steps": values.number("badam_switch_interval", 50),
    }


def rope(values: Values) -> Translated:
    """Scale RoPE to the length of the longest row."""
    if values.get("rope_scaling") is None:
        return {}
    kinds = ("linear", "dynamic", "yarn", "llama3")
    kind = values.choice("rope_scaling", {word: {"rope_type": word} for word in kinds}, otherwise="")
    return {"model.rope": kind, "model.length": values.get("cutoff_len", 2048)}


def shifted(values: Values) -> Translated:
    return shifted_attention(values, int(values.number("cutoff_len", 2048))) if values.flag("shift_attn") else {}


def datasets(values: Values) -> Translated:
    names, shares = values.words("dataset"), values.words("interleave_probs")
    if (made := values.get("tokenized_path")) is not None:
        if (Path(str(made)) / "dataset_dict.json").is_file():
            return {"data.train": [{"path": str(made)}]}
        values.notes.append("tokenized_path: not there yet; tokenised rows are kept in npukit's own cache")
    strategies = ("concat", "interleave_under", "interleave_over", "interleave_once")
    mixed = values.choice("mix_strategy", strategies, otherwise="concat") != "concat"
    if shares and len(shares) != len(names):
        text = f"interleave_probs has {len(shares)} numbers for {len(names)} data sets: give one for each."
        raise RefusedValue("interleave_probs", text)
    if not mixed:
        return {"data.train": [{"path": name} for name in names]} if names else {}
    weights = shares or ["1"] * len(names)
    return {"data.train": [{"path": name, "weight": weight} for name, weight in zip(names, weights, strict=True)]}


def validation(values: Values) -> Translated:
    names, size = values.words("eval_dataset"), values.number("val_size", 0)
    if names and size:
        raise RefusedValue("val_size", "val_size and eval_dataset are both given: remove one of them.")
    return {"data.validation": [{"path": name} for name in names] if names else size}


def folder(values: Values) -> Translated:
    path = values.get("dataset_dir", "data")
    if not isinstance(path, str) or path == "ONLINE":
        raise RefusedValue(
            "dataset_dir", "dataset_dir must be a folder, or REMOTE: and the name of a data set on a hub."
        )
    return {"data.folder": path}


def template(values: Values) -> Translated:
    """Reproduce the tokens of LLaMA-Factory."""
    name = values.get("template")
    if name is None and values.get("stage") != "pt":
        values.notes.append("template: not given, so the tokenizer's own is used, in npukit's way")
        return {"data.template": None}
    thinking = values.get("enable_thinking", True)
    return {
        "data.template": name,
        "data.tokens": "llama_factory",
        "data.thinking": None if thinking in ("none", "null") else values.flag("enable_thinking", True),
    }


def template_name(values: Values) -> str | None:
    """Return npukit's name of a template."""
    name = values.get("template")
    return "qwen2_5" if name == "qwen" else name


def packing(values: Values) -> Translated:
    wanted = values.flag("packing", values.get("stage") == "pt") or values.flag("neat_packing")
    if wanted and not values.flag("neat_packing"):
        values.notes.append("packing: packed rows do not attend to each other, as with neat_packing")
    if not wanted:
        values.notes.append("packing: off, as in LLaMA-Factory; packing: true is several times faster on short rows")
    return {"data.packing": wanted}


def quantization(values: Values) -> Translated:
    return quantized(values, "quantization_bit", "quantization_method", values.get("quantization_type", "nf4"))


def oft(values: Values) -> Translated:
    if values.get("finetuning_type") != "oft":
        return {}
    size, rank = int(values.number("oft_block_size", 32)), int(values.number("oft_rank", 0))
    blocks = {"oft_block_size": 0, "r": rank} if rank else {"oft_block_size": size}
    return {"tuning.peft": {**blocks, "module_dropout": values.number("module_dropout", 0.0)}}


def layer_modules(values: Values) -> Translated:
    names = values.words("freeze_trainable_modules") or ["all"]
    return {"tuning.layer_modules": [] if "all" in names else names}


def targets(values: Values) -> Translated:
    key = "oft_target" if values.get("finetuning_type") == "oft" else "lora_target"
    names = values.words(key) or ["all"]
    return {"tuning.targets": "all-linear" if "all" in names else names}


def lora_init(values: Values) -> Translated:
    if not values.flag("pissa_init"):
        return {}
    rounds = int(values.number("pissa_iter", 16))
    return {"tuning.init": "pissa" if rounds == -1 else f"pissa_niter_{rounds}"}


OWN = (task, preference, resume, precision, shuffle, adapter, datasets, validation, folder, template, packing)
ALSO = (rope, shifted, badam, optimizer, targets, lora_init, quantization, oft, layer_modules)
FUNCTIONS = {function.__name__: function for function in (*OWN, *ALSO)}
LLAMA_FACTORY = Dialect("LLaMA-Factory", load(TABLE, "training/llama_factory"), {**transformers.FUNCTIONS, **FUNCTIONS})
