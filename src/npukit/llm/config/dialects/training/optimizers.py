"""The optimizers of LLaMA-Factory and ms-swift, which have four ways of naming them."""

from __future__ import annotations

import re

from npukit.llm.config.dialects.training.transformers import Translated
from npukit.llm.config.dialects.values import RefusedValue, Values

OPTIMIZERS = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_torch_npu_fused", "adamw_hf", "adamw"), "adamw"),
    "sgd": "sgd",
    "adafactor": "adafactor",
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"), "adamw_8bit"),
}
# the optimizer that each of these keys selects if it is true
SWITCHES = {"use_galore": "galore", "use_apollo": "apollo", "use_adam_mini": "adam_mini", "use_muon": "muon"}
# their names of the packages' options
GALORE = {
    "galore_rank": "rank",
    "galore_update_interval": "update_proj_gap",
    "galore_update_proj_gap": "update_proj_gap",
    "galore_scale": "scale",
    "galore_proj_type": "proj_type",
}
APOLLO = {
    "apollo_rank": "rank",
    "apollo_update_interval": "update_proj_gap",
    "apollo_scale": "scale",
    "apollo_proj": "proj",
    "apollo_proj_type": "proj_type",
    "apollo_scale_type": "scale_type",
}
# values of ms-swift's --optimizer
PLUGINS = {"default": None, "muon": "muon", "muonclip": "muonclip", "galore": "galore", "lorap": None}
# the names in --optim_args that ms-swift's MuonClip reads; it ignores all others
MUONCLIP = {"momentum": "momentum", "newton_schulz_steps": "ns_steps", "qk_clip_tau": "qk_clip_tau"}
FIXED = ("weight_decay", "nesterov", "qk_clip_enabled", "rms_scale_factor")
NUMBER = re.compile(r"\d+(\.\d*)?(e-?\d+)?")
ONE_BY_ONE = ("galore_layerwise", "apollo_layerwise", "galore_optim_per_parameter")


def optimizer(values: Values) -> Translated:
    """Translate the optimizer. LLaMA-Factory has a key for some, and ms-swift has --optimizer and --use_galore."""
    named = values.choice("optim", OPTIMIZERS, otherwise="adamw_torch")
    switched = [kind for key, kind in SWITCHES.items() if values.flag(key)]
    plugin = values.choice("optimizer", PLUGINS, "default")
    wanted = list(dict.fromkeys([*switched, *([plugin] if plugin else [])]))
    if len(wanted) > 1:
        raise RefusedValue("optim", f"{' and '.join(wanted)} are both asked for: remove one of them.")
    if not wanted:
        return {"training.optimizer": named}
    _refuse_parts(values)
    translated: Translated = {"training.optimizer": wanted[0]}
    if options := _options({"galore": GALORE, "apollo": APOLLO}.get(wanted[0], {}), values):
        translated["training.optimizer_options"] = options
    if any(values.flag(key) for key in ONE_BY_ONE):
        values.notes.append("layerwise: parameters are updated together, with the same result and without clipping")
        translated["training.max_grad_norm"] = 0.0
    return translated


def _options(keys: dict[str, str], values: Values) -> Translated:
    return {name: values.get(key) for key, name in keys.items() if values.get(key) is not None}


def _refuse_parts(values: Values) -> None:
    for key in ("galore_target", "apollo_target", "galore_target_modules"):
        if values.get(key, "all") not in ("all", ["all"]):
            raise RefusedValue(key, f"{key} must be all: every matrix of the layers is projected.")
    for key in ("galore_quantization", "galore_with_embedding", "apollo_scale_front"):
        if values.flag(key):
            raise RefusedValue(key, f"{key} is not supported: leave it out.")


def optim_args(values: Values) -> Translated:
    """Parse the comma-separated `name=number` pairs that ms-swift's MuonClip reads."""
    if (given := values.words("optim_args")) and values.get("optimizer") != "muonclip":
        raise RefusedValue("optim_args", "optim_args are read with --optimizer muonclip only: leave them out.")
    options: Translated = {}
    for word in given:
        name, _, value = word.replace(" ", "").partition("=")
        if name in FIXED or (name in MUONCLIP and not NUMBER.fullmatch(value)):
            raise RefusedValue("optim_args", f"optim_args {word} is not supported: leave it out.")
        if name in MUONCLIP:
            options[MUONCLIP[name]] = int(value) if value.isdigit() else float(value)
        else:
            values.notes.append(f"optim_args: muonclip does not know {name}, in ms-swift either")
    return {"training.optimizer_options": options} if options else {}
