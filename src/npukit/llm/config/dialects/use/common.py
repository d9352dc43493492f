"""What the dialects for using a model have in common."""

from __future__ import annotations

from collections.abc import Mapping

from npukit.llm.config.dialects.table import DialectRow
from npukit.llm.config.dialects.values import RefusedValue, Values

BACKENDS = {**dict.fromkeys(("huggingface", "hf", "transformers", "pt"), "npukit"), "vllm": "vllm"}
OTHERS = ("sglang", "lmdeploy", "ktransformers")


def backend(values: Values) -> str:
    """Return the engine for a value of infer_backend."""
    if (name := values.get("infer_backend")) in OTHERS:
        raise RefusedValue("infer_backend", f"infer_backend {name} is not supported: use vllm, or leave it out.")
    return str(values.choice("infer_backend", BACKENDS, "transformers"))


def for_training(rows: Mapping[str, DialectRow]) -> dict[str, DialectRow]:
    """Note that keys for training have no effect here."""
    return {key: DialectRow(ignored="only for training") for key in rows}
