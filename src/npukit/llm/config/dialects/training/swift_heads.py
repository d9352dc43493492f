"""ms-swift's flags and variables for models that classify, embed or rank."""

from __future__ import annotations

from npukit.llm.config.dialects.training.transformers import Translated
from npukit.llm.config.dialects.values import RefusedValue, Values

HEADS = {
    "causal_lm": None,
    "seq_cls": "classify",
    "embedding": "embed",
    "reranker": "rerank",
    "generative_reranker": "rerank",
}
PROBLEMS = {"single_label_classification": "one", "multi_label_classification": "several", "regression": "number"}
RANKINGS = {"pointwise_reranker": "pointwise", "listwise_reranker": "listwise"}
SIMILARITIES = ("cosine_similarity", "contrastive", "online_contrastive", "infonce")
# variables of ms-swift that select other losses than these
OTHER_LOSSES = ("INFONCE_HARD_NEGATIVES", "LISTWISE_RERANKER_MIN_GROUP_SIZE")


def head_of(values: Values) -> str | None:
    """Return the task if a model classifies, embeds or ranks. num_labels alone means a classifier."""
    if values.verb != "sft":
        return None
    usual = "causal_lm" if values.get("num_labels") is None else "seq_cls"
    task: str | None = values.choice("task_type", HEADS, otherwise=usual)
    return task


def head(values: Values) -> Translated:
    """Translate the loss and the labels."""
    kind = head_of(values)
    if kind is None:
        return {}
    if other := next((name for name in OTHER_LOSSES if name in values.environ), None):
        raise RefusedValue("task_type", f"the variable {other} is not supported: unset it.")
    if kind == "classify":
        labels = values.number("num_labels", 0)
        if not labels:
            raise RefusedValue("task_type", "task_type seq_cls needs num_labels.")
        usual = "regression" if labels == 1 else "single_label_classification"
        return {"head.labels": labels, "head.problem": values.choice("problem_type", PROBLEMS, otherwise=usual)}
    if kind == "embed":
        masks = _switch(values, "INFONCE_MASK_FAKE_NEGATIVE", False)
        return {
            "head.similarity": values.choice("loss_type", SIMILARITIES, "cosine_similarity"),
            "head.in_batch": _switch(values, "INFONCE_USE_BATCH", True),
            "head.questions": _switch(values, "INFONCE_INCLUDE_QQ", False),
            "head.documents": _switch(values, "INFONCE_INCLUDE_DD", False),
            "head.fake_margin": variable(values, "INFONCE_FAKE_NEG_MARGIN", 0.1) if masks else None,
            "head.temperature": variable(values, "INFONCE_TEMPERATURE", 0.1),
        }
    is_generative = values.get("task_type") == "generative_reranker"
    return {
        "head.ranking": values.choice("loss_type", RANKINGS, otherwise="pointwise_reranker"),
        "head.yes": values.environ.get("GENERATIVE_RERANKER_POSITIVE_TOKEN", "yes") if is_generative else None,
        "head.no": values.environ.get("GENERATIVE_RERANKER_NEGATIVE_TOKEN", "no"),
        "head.positives": variable(values, "MAX_POSITIVE_SAMPLES", 1),
        "head.negatives": variable(values, "MAX_NEGATIVE_SAMPLES", 7),
        "head.temperature": variable(values, "LISTWISE_RERANKER_TEMPERATURE", 1.0),
    }


def _switch(values: Values, name: str, otherwise: bool) -> bool:
    return values.environ.get(name, str(otherwise)).lower() in ("1", "true", "yes", "on", "y", "t")


def variable(values: Values, name: str, otherwise: float) -> float:
    """Return a number that ms-swift reads from the environment."""
    written = values.environ.get(name)
    try:
        return otherwise if written is None else float(written)
    except ValueError:
        raise RefusedValue("task_type", f"the variable {name} must be a number, not {written!r}.") from None
