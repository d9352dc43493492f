"""ms-swift's flags for what is trained: tuners and their options, and quantised weights below adapters."""

from __future__ import annotations

from typing import Any

from npukit.llm.config.dialects.training.transformers import Translated, quantized
from npukit.llm.config.dialects.values import RefusedValue, Values

# ms-swift's flags for options of PEFT's adapters, and its defaults
ADAPTERS: dict[str, dict[str, Any]] = {
    "boft": {"boft_block_size": 4, "boft_block_num": 0, "boft_n_butterfly_factor": 1, "boft_dropout": 0.0},
    "vera": {"vera_rank": 256, "vera_projection_prng_key": 0, "vera_dropout": 0.0, "vera_d_initial": 0.1},
    "adalora": {
        **{"adalora_target_r": 8, "adalora_init_r": 12, "adalora_tinit": 0, "adalora_tfinal": 0, "adalora_deltaT": 1},
        **{"adalora_beta1": 0.85, "adalora_beta2": 0.85, "adalora_orth_reg_weight": 0.5},
        **{"lora_alpha": 32, "lora_dropout": 0.05},
    },
    "fourierft": {"fourier_n_frequency": 2000, "fourier_scaling": 300.0},
}
OTHER_NAMES = {"vera_rank": "r", "bone": "miss", "longlora": "lora"}


def method(values: Values) -> Translated:
    given = [key for key in ("tuner_type", "train_type") if key in values.explicit]
    if len(given) == 2 and values.get("tuner_type") != values.get("train_type"):
        raise RefusedValue("tuner_type", "--tuner_type and --train_type say different things: remove one.")
    wanted = values.get(given[0]) if given else "lora"
    if wanted == "llamapro":
        layers = values.get("llamapro_num_groups") or values.number("llamapro_num_new_blocks", 4)
        values.notes.append("tuner_type: llamapro saves the whole model, with its new layers")
        return {"tuning.method": "freeze", "tuning.new_layers": layers}
    if wanted == "lora_llm":
        return {"tuning.method": "lora", "tuning.whole_tower": True}
    if wanted == "adapter":
        return {"tuning.method": "bottleneck", "tuning.rank": values.number("adapter_length", 128)}
    return {"tuning.method": OTHER_NAMES.get(str(wanted), wanted)}


def turns(values: Values) -> Translated:
    """Translate LISA."""
    layers = values.number("lisa_activated_layers", 0)
    if not layers:
        return {}
    every = values.number("lisa_step_interval", 20)
    return {"tuning.turns": "lisa", "tuning.turn_layers": layers, "tuning.turn_steps": every}


def peft(values: Values) -> Translated:
    """Return the options of an adapter other than LoRA, with ms-swift's defaults."""
    wanted = str(method(values)["tuning.method"])
    if wanted not in ADAPTERS:
        return {}
    keys = ADAPTERS[wanted]
    own = {OTHER_NAMES.get(key, _in_peft(key)): values.get(key, default) for key, default in keys.items()}
    return {"tuning.peft": own}


def _in_peft(key: str) -> str:
    """Return PEFT's name of an option. For BOFT and VeRA, some contain the method's name."""
    return key if key.startswith(("boft_", "lora_")) or key == "vera_dropout" else key.partition("_")[2]


def quantization(values: Values) -> Translated:
    return quantized(values, "quant_bits", "quant_method", values.get("bnb_4bit_quant_type", "nf4"))


NAMES_BEFORE_3 = {"ALL": "all-linear", "AUTO": "all-linear"}  # 2.4 to 2.6 had target_modules, but no all-linear


def targets(values: Values) -> Translated:
    if regex := values.get("target_regex"):
        return {"tuning.targets": regex}
    names = [NAMES_BEFORE_3.get(name, name) for name in values.words("target_modules")] or ["all-linear"]
    if other := next((name for name in names if name.startswith("all-") and name != "all-linear"), None):
        raise RefusedValue(
            "target_modules", f"target_modules {other} is not supported: use all-linear, or names of modules."
        )
    if "all-linear" in names:
        return {"tuning.targets": "all-linear"}  # other modules are included in it, or trained in full
    return {"tuning.targets": names}


def modules_to_save(values: Values) -> Translated:
    named = values.words("target_modules") if "all-linear" in values.words("target_modules") else []
    whole = [name for name in named if name in ("embed_tokens", "lm_head")]
    if whole:
        values.notes.append(f"target_modules: {', '.join(whole)} are trained as a whole, beside the adapters")
    return {"tuning.modules_to_save": list(dict.fromkeys([*values.words("modules_to_save"), *whole]))}


def lora_init(values: Values) -> Translated:
    value = values.get("init_weights", True)
    if value == "lora-ga":
        rows = values.number("lora_ga_batch_size", 2) * values.number("lora_ga_iters", 2)
        usual = {"direction": "ArB2r", "scale": "stable", "stable_gamma": 16}
        options = {name: values.get(f"lora_ga_{name}", otherwise) for name, otherwise in usual.items()}
        return {"tuning.init": "lora_ga", "tuning.init_rows": rows, "tuning.peft": {"lora_ga_config": options}}
    return {"tuning.init": {"true": True, "false": False}.get(str(value).lower(), value)}


TUNING = (method, turns, peft, quantization, targets, modules_to_save, lora_init)
