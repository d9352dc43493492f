"""LLaMA-Factory's keys for using a model that need more than a new name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npukit.llm.config.dialects.table import Dialect, load
from npukit.llm.config.dialects.training.llama_factory import LLAMA_FACTORY as TRAINING
from npukit.llm.config.dialects.training.llama_factory import template_name
from npukit.llm.config.dialects.use.common import backend, for_training
from npukit.llm.config.dialects.values import Values

Translated = dict[str, Any]


def adapters(values: Values) -> Translated:
    return {"adapters": [{"path": path} for path in values.words("adapter_name_or_path")]}


def dtype(values: Values) -> Translated:
    """Write fp32 weights as bf16 by default, as LLaMA-Factory does."""
    name = values.choice("infer_dtype", ("auto", "float16", "bfloat16", "float32"), "auto")
    if name == "auto" and values.verb == "export":
        values.notes.append("infer_dtype: weights keep their type; LLaMA-Factory writes fp32 as bf16")
    return {"model.dtype": name, "export.dtype": name}


def engine(values: Values) -> Translated:
    return {"engine.engine": backend(values)}


def template(values: Values) -> Translated:
    return {"chat.template": template_name(values)} if values.get("template") else {}


def temperature(values: Values) -> Translated:
    """Without do_sample, always choose the likeliest token."""
    return {"sampling.temperature": values.get("temperature") if values.flag("do_sample") else 0.0}


def input(values: Values) -> Translated:
    return {"data.input": [{"path": name} for name in values.words("eval_dataset")]}


def output(values: Values) -> Translated:
    folder = values.get("output_dir")
    return {"data.output": str(Path(str(folder)) / "generated_predictions.jsonl")} if folder else {}


def shard_size(values: Values) -> Translated:
    return {"export.shard_size": f"{values.number('export_size', 5):g}GB"}


def server(values: Values) -> Translated:
    """Read the variables that configure LLaMA-Factory's server."""
    names = {"API_HOST": "serve.host", "API_PORT": "serve.port", "API_KEY": "serve.api_key"}
    translated: Translated = {ours: values.environ[name] for name, ours in names.items() if values.environ.get(name)}
    if name := values.environ.get("API_MODEL_NAME"):
        translated["serve.served_model_name"] = [name]
    if values.verb == "serve" and "serve.host" not in translated:
        values.notes.append("API_HOST: listens on 127.0.0.1 only; LLaMA-Factory listens on every address")
    return translated


OWN = (adapters, dtype, engine, template, temperature, input, output, shard_size, server)
FUNCTIONS = {function.__name__: function for function in OWN}
TABLE = "use/llama_factory"
ROWS = {**for_training(TRAINING.rows), **load(TABLE)}
LLAMA_FACTORY = Dialect("LLaMA-Factory", ROWS, FUNCTIONS)
