"""ms-swift's flags for using a model that need more than a new name."""

from __future__ import annotations

from typing import Any

from npukit.llm.config.dialects.table import Dialect, load
from npukit.llm.config.dialects.training.swift import SWIFT as TRAINING
from npukit.llm.config.dialects.training.swift import folder, hub
from npukit.llm.config.dialects.training.swift import system as training_system
from npukit.llm.config.dialects.training.swift_data import sources
from npukit.llm.config.dialects.use.common import backend, for_training
from npukit.llm.config.dialects.values import RefusedValue, Values

Translated = dict[str, Any]
DTYPES = ("auto", "bfloat16", "float16", "float32")
METRICS = {"acc": ["accuracy"], "rouge": ["rouge", "bleu"]}


def dtype(values: Values) -> Translated:
    name = values.choice("torch_dtype", DTYPES, "auto")
    return {"model.dtype": name, "export.dtype": name}


def system(values: Values) -> Translated:
    return {"chat.system": training_system(values)["data.system"]} if "system" in values.explicit else {}


def engine(values: Values) -> Translated:
    return {"engine.engine": backend(values)}


def merge_lora(values: Values) -> Translated:
    wanted = values.flag("merge_lora")
    if wanted and values.verb != "export":
        values.notes.append("merge_lora: adapters are applied without merging, which gives the same answers")
    return {"export.merge_lora": wanted}


def max_requests(values: Values) -> Translated:
    """ms-swift answers one row at a time by default; here the memory decides."""
    wanted = values.get("vllm_max_num_seqs") or values.get("max_batch_size")
    return {"engine.max_num_seqs": wanted} if wanted else {}


def input(values: Values) -> Translated:
    """Return the rows to answer: the validation data, or all of it if its share is 1."""
    if rows := sources("val_dataset", values):
        return {"data.input": rows}
    rows = sources("dataset", values)
    share = values.number("split_dataset_ratio", 0)
    if rows and share not in (0, 1):
        raise RefusedValue(
            "split_dataset_ratio", "a share of the data set is not supported: give its rows as val_dataset."
        )
    return {"data.input": rows} if rows else {}


def metrics(values: Values) -> Translated:
    return {"data.metrics": values.choice("metric", METRICS, "acc")} if values.get("metric") else {}


def names(values: Values) -> Translated:
    name = values.get("served_model_name")
    if values.verb == "serve" and "host" not in values.explicit:
        values.notes.append("host: listens on 127.0.0.1 only; ms-swift listens on every address")
    return {"serve.served_model_name": [str(name)]} if name else {}


OWN = (dtype, hub, system, engine, merge_lora, max_requests)
ALSO = (input, folder, metrics, names)
FUNCTIONS = {function.__name__: function for function in (*OWN, *ALSO)}
TABLE = "use/swift"
ROWS = {**for_training(TRAINING.rows), **load(TABLE)}
SWIFT = Dialect("ms-swift", ROWS, FUNCTIONS)
