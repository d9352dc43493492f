"""ms-swift's flags that need more than a new name."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from npukit.llm.chat.peers.ms_swift import meta_named, template_of
from npukit.llm.chat.peers.swift_agent import weights
from npukit.llm.chat.peers.tools import names
from npukit.llm.config.dialects.table import Dialect, load, named_values
from npukit.llm.config.dialects.training import transformers
from npukit.llm.config.dialects.training.optimizers import optim_args, optimizer
from npukit.llm.config.dialects.training.swift_data import datasets, uses_hugging_face, validation
from npukit.llm.config.dialects.training.swift_grpo import grpo, is_grpo, plugins, sequence_parallel
from npukit.llm.config.dialects.training.swift_heads import head, head_of
from npukit.llm.config.dialects.training.swift_tuning import TUNING
from npukit.llm.config.dialects.training.transformers import TABLE, Translated
from npukit.llm.config.dialects.values import RefusedValue, Values
from npukit.llm.config.media import media_type
from npukit.llm.start import nodes_of


def task(values: Values) -> Translated:
    if is_grpo(values):
        return {"task": "grpo"}
    if values.verb == "rlhf":
        return {"task": _method(values)[0]}
    if (kind := head_of(values)) is not None:
        return {"task": kind}
    chat = values.flag("use_chat_template", values.verb != "pt")
    if chat != (values.verb != "pt"):
        text = "use_chat_template distinguishes sft from pt: use npukit pt for text, npukit sft for conversations."
        raise RefusedValue("use_chat_template", text)
    return {"task": values.verb}


LATER = ("ppo", "gkd")
# the task, the loss and ms-swift's default of beta for each --rlhf_type
METHODS = {
    "dpo": ("dpo", "sigmoid", 0.1),
    "orpo": ("dpo", "orpo", 0.1),
    "simpo": ("dpo", "simpo", 2.0),
    "cpo": ("dpo", "cpo", 0.1),
    "kto": ("kto", "sigmoid", 0.1),
    "rm": ("rm", "sigmoid", 0.1),
}


def _method(values: Values) -> tuple[str, str, float]:
    if values.get("rlhf_type") == "ppo":
        raise RefusedValue("rlhf_type", "rlhf_type ppo is not supported: use grpo, which takes the same reward_model.")
    if values.get("rlhf_type") in LATER:
        kinds = ", ".join((*METHODS, "grpo"))
        raise RefusedValue("rlhf_type", f"rlhf_type {values.get('rlhf_type')} is not supported yet: {kinds} are.")
    known = {**METHODS, "grpo": ("grpo", "", 0.04)}
    method: tuple[str, str, float] = values.choice("rlhf_type", known, otherwise="dpo")
    return method


def preference(values: Values) -> Translated:
    """Translate the preference loss and its parameters."""
    if is_grpo(values):
        return {}
    if values.verb != "rlhf":
        if head_of(values) is None and values.get("loss_type") not in (None, "cross_entropy"):
            raise RefusedValue("loss_type", f"loss_type {values.get('loss_type')} is not supported: leave it out.")
        return {}
    kind = values.choice("rlhf_type", (*METHODS, *LATER), otherwise="dpo")
    _, loss, beta = _method(values)
    kinds = values.words("loss_type")
    mix = _mix(kinds, values) if kind == "dpo" and len(kinds) > 1 else {}
    if kind == "dpo" and kinds and not mix:
        loss = values.choice("loss_type", ("sigmoid", "hinge", "ipo"), otherwise=kinds[0])
    weight = {"dpo": "rpo_alpha", "cpo": "cpo_alpha", "simpo": "cpo_alpha"}.get(kind, "")
    default = 1.0 if kind == "cpo" else 0.0
    return {
        "preference.loss": loss,
        "preference.mix": mix,
        "preference.beta": values.number("beta", beta),
        "preference.gamma": values.number("simpo_gamma", 1.0),
        "preference.label_smoothing": values.number("label_smoothing", 0.0),
        "preference.sft_weight": values.number(weight, default) if weight else 0.0,
        "preference.sft_mean": "all" if kind == "orpo" else "answers",
        "preference.desirable_weight": values.number("desirable_weight", 1.0),
        "preference.undesirable_weight": values.number("undesirable_weight", 1.0),
    }


MIXED = ("sigmoid", "hinge", "bco_pair", "sft")


def _mix(kinds: list[str], values: Values) -> dict[str, float]:
    """Translate several weighted losses."""
    if unknown := [kind for kind in kinds if kind not in MIXED]:
        text = f"loss_type {unknown[0]} is not supported beside others; {', '.join(MIXED)} are."
        raise RefusedValue("loss_type", text)
    weights = values.words("loss_weights") or ["1"] * len(kinds)
    try:
        return dict(zip(kinds, map(float, weights), strict=True))
    except ValueError:
        text = f"loss_weights must be {len(kinds)} numbers, one for each loss_type."
        raise RefusedValue("loss_weights", text) from None


def hub(values: Values) -> Translated:
    """Return the hub on which names are looked up."""
    return {"model.hub": "huggingface" if uses_hugging_face(values) else "modelscope"}


def model(values: Values) -> Translated:
    """Return the model, which model_type may name on either hub.

    If the model's code comes with its checkpoint, it is the copy in transformers' format.
    """
    name = str(values.get("model", ""))
    if uses_hugging_face(values):
        both = [ids for ids in named_values("training/swift_2:models").values() if isinstance(ids, tuple)]
        name = {ids[0]: ids[1] for ids in both}.get(name, name)
    if not Path(name).expanduser().exists() and media_type(name) == "" and media_type(f"{name}-hf"):
        values.notes.append(f"model: {name} needs its own Python code; {name}-hf has the same weights for transformers")
        name = f"{name}-hf"
    return {"model.path": name} if name else {}


def dtype(values: Values) -> Translated:
    name = values.choice("torch_dtype", ("auto", "bfloat16", "float16", "float32"), "auto")
    precision = {"auto": "auto", "bfloat16": "bf16"}.get(name, "fp16")
    if name == "float32" and not {"fp16", "bf16"} & set(values.explicit):
        values.notes.append("torch_dtype: float32 weights are trained with fp16 autocast, as in ms-swift")
    for key in ("bf16", "fp16"):
        if values.flag(key):
            precision = key
    if not values.flag("fp16", True) and not values.flag("bf16", name == "bfloat16"):
        precision = "fp32"
    return {"model.dtype": name, "training.precision": precision}


def adapter(values: Values) -> Translated:
    paths = values.words("adapters")
    if len(paths) > 1:
        raise RefusedValue("adapters", "several adapters are not supported: merge them first (npukit export).")
    return {"model.adapter": paths[0]} if paths else {}


def most_rows(values: Values) -> Translated:
    """Translate the row limit of ms-swift 2, where -1 means all rows."""
    most = int(values.number("train_dataset_sample", -1))
    return {"data.max_rows": most} if most > 0 else {}


def rope(values: Values) -> Translated:
    """Translate RoPE scaling: a type, whose factor follows from max_model_len, or a dict as in config.json."""
    wanted = values.get("rope_scaling")
    if wanted is None:
        if "max_model_len" in values.explicit:
            raise RefusedValue("max_model_len", "max_model_len needs rope_scaling; max_length is the length of rows.")
        return {}
    if isinstance(wanted, dict):
        own = {"rope_type" if name == "type" else name: value for name, value in wanted.items()}
        return {"model.rope": own, "model.length": values.get("max_model_len")}
    kinds = ("linear", "dynamic", "yarn")
    kind = values.choice("rope_scaling", {word: {"rope_type": word} for word in kinds}, otherwise="")
    if values.get("max_model_len") is None:
        raise RefusedValue("rope_scaling", f"rope_scaling {wanted} needs max_model_len, the tokens to make room for.")
    return {"model.rope": kind, "model.length": values.get("max_model_len")}


def new_tokens(values: Values) -> Translated:
    """Return the new tokens, which may be in text files with one per line."""
    tokens: list[str] = []
    for word in values.words("new_special_tokens"):
        try:
            tokens += Path(word).read_text(encoding="utf-8").split() if word.endswith(".txt") else [word]
        except OSError:
            raise RefusedValue("new_special_tokens", f"there is no file {word} to read tokens from.") from None
    return {"model.new_tokens": tokens}


def system(values: Values) -> Translated:
    text = values.get("system")
    if not isinstance(text, str):
        return {"data.system": text}
    if not text.endswith(".txt"):
        return {"data.system": text.replace("\\n", "\n")}
    try:
        return {"data.system": Path(text).read_text(encoding="utf-8")}
    except OSError:
        raise RefusedValue("system", f"there is no file {text} to read the system message from.") from None


def template(values: Values) -> Translated:
    """Use ms-swift's template of the model and its tokens. Where ms-swift would ask, use the tokenizer's own."""
    settings, note = _template(values)
    values.notes += filter(None, [note])
    return settings


def _template(values: Values) -> tuple[Translated, str]:
    """Return the template, and a note about it if there is one."""
    if values.verb == "pt":
        return {"data.tokens": "ms_swift"}, ""
    if head_of(values) and not values.flag("use_chat_template", True):
        return {"data.template": None, "data.tokens": "ms_swift"}, ""
    name = values.get("template")
    model = str(values.get("model", ""))
    template_name = name or template_of(model, _of_config(model, "architectures"))
    if isinstance(template_name, str) and meta_named(template_name):
        return {"data.template": template_name, "data.tokens": "ms_swift"}, ""
    if head_of(values):
        note = "template: not known for this model, so texts are taken as the tokenizer writes them"
        return {"data.template": name, "data.tokens": "ms_swift"}, note
    return {"data.template": name}, "" if name else "template: the tokenizer's own is used, in npukit's way"


def cutoff(values: Values) -> Translated:
    strategies = {"delete": "drop", "right": "cut", "left": "cut_start", "split": "split"}
    usual = "split" if values.verb == "pt" else "left" if is_grpo(values) else "delete"
    strategy = values.choice("truncation_strategy", strategies, otherwise=usual)
    length = values.get("max_length") or _of_config(str(values.get("model", "")), "max_position_embeddings")
    if length is None:
        values.notes.append("max_length: not given, and the model's own is not known yet, so 2048 is used")
    length = 2048 if length is None else length
    is_shifted = "longlora" in (values.get("tuner_type"), values.get("train_type"))
    groups = transformers.shifted_attention(values, length) if is_shifted else {}
    return {"data.cutoff": length, "data.too_long": strategy, **groups}


def _of_config(model: str, key: str) -> Any:
    """Return a key of the model's config.json. Of several architectures, it is the first."""
    try:
        value = json.loads((Path(model) / "config.json").read_text())[key]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value[0] if isinstance(value, list) and value else value


# the settings of ms-swift for models that embed or rank, by their templates
VARIABLES = {
    "qwen3_vl_emb": {"IMAGE_MAX_TOKEN_NUM": "1800", "FPS": "1", "FPS_MAX_FRAMES": "64"},
    "qwen3_vl_reranker": {"IMAGE_MAX_TOKEN_NUM": "1280", "FPS": "1", "FPS_MAX_FRAMES": "64"},
}


# The variables that `images` reads.
READ = frozenset(
    {"FPS", "FPS_MAX_FRAMES", "ROOT_IMAGE_DIR", "IMAGE_MIN_TOKEN_NUM", "IMAGE_MAX_TOKEN_NUM"}
    | {f"{kind}{limit}" for kind in ("", "VIDEO_") for limit in ("MIN_PIXELS", "MAX_PIXELS")}
    | {"VIDEO_MIN_TOKEN_NUM", "VIDEO_MAX_TOKEN_NUM"}
)


def _variables_of_model(values: Values) -> dict[str, str]:
    """What model_kwargs says, as {"max_pixels": 1003520}: ms-swift sets it in the environment."""
    wanted = values.get("model_kwargs", {})
    if not isinstance(wanted, dict):
        raise RefusedValue("model_kwargs", """model_kwargs must be JSON such as {"max_pixels": 1003520}.""")
    if unread := sorted(key for key in wanted if key.upper() not in READ):
        values.notes.append(f"model_kwargs.{', model_kwargs.'.join(unread)}: variables that npukit does not read")
    return {key.upper(): str(value) for key, value in wanted.items()}


def images(values: Values) -> Translated:
    """Translate the variables of ms-swift and qwen_vl_utils. Pixel limits become whole tokens of the model's size."""
    model = str(values.get("model", ""))
    environ = {
        **VARIABLES.get(_template(values)[0].get("data.template") or "", {}),
        **values.environ,
        **_variables_of_model(values),
    }
    kind = _of_config(model, "model_type") or media_type(model) or ""
    token = (32 if str(kind).startswith("qwen3") else 28) ** 2
    translated: Translated = {}
    for name in ("min", "max"):
        pixels, tokens = (environ.get(key.format(name.upper())) for key in ("{}_PIXELS", "IMAGE_{}_TOKEN_NUM"))
        if pixels and pixels.isdigit():
            translated[f"data.image_{name}_pixels"] = int(pixels) // token * token
        elif tokens and tokens.isdigit():
            translated[f"data.image_{name}_pixels"] = int(tokens) * token
    for name in ("min", "max"):
        pixels, tokens = (environ.get(f"VIDEO_{name.upper()}_{unit}") for unit in ("PIXELS", "TOKEN_NUM"))
        if pixels and pixels.isdigit():
            translated[f"data.video_{name}_pixels"] = int(pixels)
        elif tokens and tokens.isdigit():
            translated[f"data.video_{name}_pixels"] = int(tokens) * token
    for name, option in (("FPS", "data.video_fps"), ("FPS_MAX_FRAMES", "data.video_max_frames")):
        if (value := environ.get(name)) and value.replace(".", "", 1).isdigit():
            translated[option] = float(value) if name == "FPS" else int(value)
    if folder := environ.get("ROOT_IMAGE_DIR"):
        translated["data.media_dir"] = folder
    return translated


def evaluation(values: Values) -> Translated:
    """Evaluate as often as checkpoints are saved, but never without evaluation data."""
    steps = {"no": None, "steps": values.get("eval_steps") or values.get("save_steps"), "epoch": "epoch"}
    every = values.choice("eval_strategy", steps, otherwise=values.get("save_strategy"))
    if every is not None and not validation(values)["data.validation"]:
        if values.flag("load_best_model_at_end"):
            needed = "load_best_model_at_end needs rows to evaluate: add val_dataset, or split_dataset_ratio=0.01."
            raise RefusedValue("load_best_model_at_end", needed)
        if {"eval_steps", "eval_strategy"} & set(values.explicit):
            values.notes.append("eval_steps: not used, because there is neither val_dataset nor split_dataset_ratio")
        return {"training.eval_every": None}
    return {"training.eval_every": every}


def predictions(values: Values) -> Translated:
    """Evaluate with generated answers: the likeliest ones, unless a temperature is given."""
    if not values.flag("predict_with_generate"):
        if "max_new_tokens" in values.explicit:
            values.notes.append("max_new_tokens: only for generation")
        return {}
    if values.verb != "sft" or head_of(values):
        raise RefusedValue("predict_with_generate", "predict_with_generate is for npukit sft with conversations.")
    if values.number("temperature", 0):
        raise RefusedValue("temperature", "evaluation generates the likeliest answers: leave temperature out.")
    if values.number("num_beams", 1) != 1:
        raise RefusedValue("num_beams", "evaluation generates without beams: leave num_beams out.")
    if "per_device_eval_batch_size" in values.explicit:
        values.notes.append("per_device_eval_batch_size: as many answers as memory has room for are generated at once")
    return {
        "evaluation.predict_with_generate": True,
        "evaluation.max_new_tokens": int(values.number("max_new_tokens", 64)),
    }


def best_metric(values: Values) -> Translated:
    """Translate names of metrics for generated answers, which contain a hyphen in ms-swift."""
    translated = transformers.best_metric(values)
    if not values.flag("predict_with_generate"):
        return translated
    name = str(translated.get("training.best_metric", "eval_rouge-l")).replace("-", "_")
    return {"training.best_metric": name, "training.best_is_highest": values.flag("greater_is_better", True)}


def shuffle(values: Values) -> Translated:
    sampling = values.choice("train_sampling_strategy", {"random": True, "sequential": False}, otherwise="random")
    return {
        "training.shuffle": sampling
        and values.flag("dataset_shuffle", True)
        and values.flag("train_dataloader_shuffle", True)
    }


def bad_rows(values: Values) -> Translated:
    return {"data.bad_rows": "stop" if values.flag("strict") else "skip"}


def folder(values: Values) -> Translated:
    files = [Path(word) for word in values.words("custom_dataset_info")]
    if not files:
        return {}
    if len(files) > 1 or files[0].name != "dataset_info.json":
        raise RefusedValue("custom_dataset_info", "custom_dataset_info must be one file named dataset_info.json.")
    return {"data.folder": str(files[0].parent)}


def packing(values: Values) -> Translated:
    if not values.flag("packing") and not is_grpo(values):
        values.notes.append("packing: off, as in ms-swift; --packing true is several times faster on short rows")
    return {"data.packing": values.flag("packing")}


def loss_on(values: Values) -> Translated:
    parts = str(values.get("loss_scale", "last_round" if values.verb == "rlhf" else "default")).split("+")
    bases = {"default": "answers", "all": "all", "last_round": "last"}
    kind = bases.get(parts[0], "answers")
    others = [part for part in parts if part not in bases]
    known = ["ignore_empty_think", *weights()]
    if unknown := [part for part in others if part not in known]:
        raise RefusedValue(
            "loss_scale", f"loss_scale {unknown[0]} is not supported; {', '.join([*bases, *known])} are."
        )
    return {
        "data.train_on_prompt": kind == "all" and values.verb != "pt",
        "data.last_answer_only": kind == "last",
        "data.train_on_empty_thought": "ignore_empty_think" not in others,
        "data.weigh": [part for part in others if part != "ignore_empty_think"],
    }


def tool_format(values: Values) -> Translated:
    """Return the format of tools and calls, unless the tokenizer's own template defines it."""
    name = values.get("agent_template")
    if name is None or _template(values)[0].get("data.tokens") != "ms_swift":
        if name is not None:
            values.notes.append(
                "agent_template: not used, because calls are written as the tokenizer's template has them"
            )
        return {}
    if name not in (known := names("ms_swift")):
        raise RefusedValue("agent_template", f"agent_template {name} is not supported; {', '.join(known)} are.")
    return {"data.tool_format": name}


def output(values: Values) -> Translated:
    """Return a separate folder for each run (v0, v1, …), unless add_version is false."""
    name = Path(str(values.get("model", "model"))).name
    folder = Path(str(values.get("output_dir", f"output/{name}")))
    if not values.flag("add_version", True):
        return {"training.output": str(folder)}
    if nodes_of(values.environ).nodes > 1 or ("LOCAL_RANK" in values.environ and values.ranks > 1):
        # Each process reads the flags itself, and all must choose the same folder.
        values.notes.append("add_version: with several machines or torchrun the run is written into output_dir itself")
        return {"training.output": str(folder)}
    used = [int(path.name[1:].split("-")[0]) for path in folder.glob("v[0-9]*") if re.match(r"v\d+(-|$)", path.name)]
    return {"training.output": str(folder / f"v{max(used, default=-1) + 1}")}


def resume(values: Values) -> Translated:
    wanted = values.get("resume_from_checkpoint")
    return {"training.resume": wanted if isinstance(wanted, str) else "never"}


def accumulation(values: Values) -> Translated:
    """Return the default: at least 16 rows in a step, or with GRPO a single batch."""
    if (given := values.get("gradient_accumulation_steps")) is not None:
        return {"training.accumulation": given}
    if is_grpo(values):
        return {"training.accumulation": 1}
    rows = values.number("per_device_train_batch_size", 1) * values.ranks
    return {"training.accumulation": max(1, math.ceil(16 / max(1, rows)))}


def learning_rate(values: Values) -> Translated:
    tuner = values.get("tuner_type") or values.get("train_type")
    return {"training.learning_rate": values.get("learning_rate", 1e-5 if tuner == "full" else 1e-4)}


OWN = (
    task,
    preference,
    head,
    hub,
    dtype,
    adapter,
    template,
    system,
    cutoff,
    datasets,
    validation,
    evaluation,
    shuffle,
    most_rows,
)
ALSO = (predictions, best_metric, model, bad_rows, folder, packing, loss_on, tool_format, output, resume, images)
MORE = (new_tokens, rope, grpo, plugins, sequence_parallel, optimizer, optim_args, accumulation, learning_rate)
FUNCTIONS = {function.__name__: function for function in (*OWN, *ALSO, *MORE, *TUNING)}
SWIFT = Dialect("ms-swift", load(TABLE, "training/swift"), {**transformers.FUNCTIONS, **FUNCTIONS})
