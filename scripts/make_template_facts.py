"""Write the chat templates of LLaMA-Factory and ms-swift as data: the strings they put around turns, nothing else.

    python scripts/make_template_facts.py llama_factory > src/npukit/llm/chat/peers/llama_factory.yaml
    python scripts/make_template_facts.py ms_swift > src/npukit/llm/chat/peers/ms_swift.yaml

Run it where the tool itself can be imported (an environment of its own, with its checkout on PYTHONPATH).
"""

from __future__ import annotations

import json
import sys
from datetime import date
from typing import Any

KINDS = {
    "Template": "plain",
    "Llama2Template": "system_in_question",
    "ReasoningTemplate": "reasoning",
    "Glm47ReasoningTemplate": "reasoning_closing_only",
}
SWIFT_KINDS = {
    "Template": "plain",
    "DeepseekV3_1Template": "plain",
    "Gemma3Template": "system_in_question",
    "Qwen3EmbTemplate": "embedding",
    "Qwen3RerankerTemplate": "reranker",
    "Qwen2VLTemplate": "plain",
    "Qwen2_5VLTemplate": "plain",
    "Qwen2_5OmniTemplate": "plain",
    "Qwen3VLTemplate": "plain",
    "Qwen3OmniTemplate": "plain",
    "GMETemplate": "embedding_with_pictures",
    "Qwen3VLEmbTemplate": "embedding_with_pictures",
    "Qwen3VLRerankerTemplate": "reranker_with_pictures",
}
# Of templates for images, those whose rows npukit writes as ms-swift does.
SEEING = (
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen2_5_omni",
    "qwen3_omni",
    "qwen3_vl",
    "qwen2_gme",
    "qwen3_vl_emb",
    "qwen3_vl_reranker",
)


def llama_factory() -> dict[str, Any]:
    from llamafactory.data.template import TEMPLATES

    found = {}
    for name, template in sorted(TEMPLATES.items()):
        parts = {
            part: [_slot(slot) for slot in getattr(template, f"format_{part}").slots]
            for part in ("prefix", "system", "user", "assistant", "function", "observation")
        }
        row = {
            "kind": KINDS[type(template).__name__],
            **parts,
            "tool_format": template.format_tools.tool_format or name,  # phi4_mini has a text of its own
            "default_system": template.default_system,
            "stop_words": list(template.stop_words),
            "thought_words": list(template.thought_words),
            "call_words": list(template.tool_call_words),
            "efficient_eos": template.efficient_eos,
            "replace_eos": template.replace_eos,
        }
        defaults = {
            "kind": "plain",
            "function": row["assistant"],
            "observation": row["user"],
            "tool_format": "default",
            "thought_words": ["<think>\n", "\n</think>\n\n"],
            "call_words": ["<tool_call>", "</tool_call>"],
        }
        found[name] = _without_defaults(row, defaults)
    return {"templates": found}


def _slot(slot: Any) -> Any:
    return {"special": next(iter(slot))} if isinstance(slot, set) else slot


def ms_swift() -> dict[str, Any]:
    from swift.model import MODEL_MAPPING
    from swift.template import TEMPLATE_MAPPING
    from swift.template.constant import LLMTemplateType

    templates = {}
    text = {value for key, value in vars(LLMTemplateType).items() if not key.startswith("_") and isinstance(value, str)}
    for name in sorted({*text, *SEEING}):
        meta = TEMPLATE_MAPPING.get(name)
        if meta is None or meta.template_cls.__name__ not in SWIFT_KINDS:
            continue  # a class of its own decides what is written
        row = {
            "kind": SWIFT_KINDS[meta.template_cls.__name__],
            "prefix": meta.prefix,
            "prompt": meta.prompt,
            "last_prompt": getattr(meta, "system_prompt", None),
            "separator": meta.chat_sep,
            "suffix": meta.suffix,
            "system_prefix": meta.system_prefix,
            "default_system": meta.default_system,
            "begins_as_the_tokenizer": meta.auto_add_bos,
            "stop_words": [word for word in meta.stop_words if isinstance(word, str)],
            "is_thinking": meta.is_thinking,
            "thinking_prefix": meta.thinking_prefix,
            "non_thinking_prefix": meta.non_thinking_prefix,
            "history_thinking_prefix": meta.history_thinking_prefix,
            "preserve_thinking": meta.preserve_thinking,
            "agent": meta.agent_template,
            "thinks_after_questions_only": meta.template_cls.non_thinking_prefix_only_after_user,
        }
        templates[name] = _without_defaults(row, {"kind": "plain"})
    models: dict[str, dict[str, list[str]]] = {}
    for meta in MODEL_MAPPING.values():
        is_known = not meta.is_multimodal or meta.template in SEEING
        for group in meta.model_groups if is_known else ():
            names = {(model.ms_model_id or model.hf_model_id).split("/")[-1].lower() for model in group.models}
            for architecture in meta.architectures:
                known = models.setdefault(architecture, {})
                template = group.template or meta.template
                known[template] = sorted({*known.get(template, ()), *names})
    seeing = {name: known for name, known in models.items() if set(known) & {*SEEING}}  # asked for by name, too
    return {"templates": templates, "models": dict(sorted((_few(models) | seeing).items())), "media": _media()}


def _media() -> dict[str, Any]:
    """Models of images, audio or video that transformers cannot load for text alone or that npukit lets see, by their
    type there, and data sets of such. Those of remote code have no type.
    """
    from swift.dataset import DATASET_MAPPING
    from swift.model import MODEL_MAPPING
    from transformers.models.auto import modeling_auto as auto

    from npukit.llm import families

    text_too = {
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(kind)
        for kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        if kind not in families.visions()
    }
    metas = [meta for meta in MODEL_MAPPING.values() if meta.is_multimodal and not text_too & {*meta.architectures}]
    kinds = {name: kind for kind, name in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items()}
    kinds["Qwen2_5OmniModel"] = "qwen2_5_omni_thinker"
    kinds["Qwen3OmniMoeForConditionalGeneration"] = "qwen3_omni_moe_thinker"
    models: dict[str, set[str]] = {}
    for meta in metas:
        is_other = "pixtral" in meta.model_type
        kind = "" if is_other else kinds.get(next(iter(meta.architectures), ""), "")
        for model in (model for group in meta.model_groups for model in group.models):
            models.setdefault(kind, set()).add((model.ms_model_id or model.hf_model_id).split("/")[-1].lower())
    data = [meta for meta in DATASET_MAPPING.values() if {"multi-modal", "vision", "audio", "video"} & {*meta.tags}]
    return {
        "models": {kind: sorted(names) for kind, names in sorted(models.items())},
        "datasets": sorted(
            {name.lower() for meta in data for name in (meta.ms_dataset_id, meta.hf_dataset_id) if name}
        ),
    }


def _few(models: dict[str, dict[str, list[str]]]) -> dict[str, dict[str, list[str]]]:
    """Names matter only where an architecture has several templates."""
    return {
        architecture: known if len(known) > 1 else {template: [] for template in known}
        for architecture, known in sorted(models.items())
        if known
    }


def _without_defaults(row: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    # ms-swift tells "no separator" (None: one round alone) from an empty one.
    empty: tuple[Any, ...] = (None, "", [], False)
    return {key: value for key, value in row.items() if value != defaults.get(key) and (value not in empty)} | {
        key: row[key] for key in ("separator",) if row.get(key) == []
    }


if __name__ == "__main__":
    tool = sys.argv[1]
    stdout, sys.stdout = sys.stdout, sys.stderr  # the tools print when they are imported
    today = date.today().strftime("%d %b %Y")  # as templates of Llama 3.2 have it
    made = {"llama_factory": llama_factory, "ms_swift": ms_swift}[tool]()
    print(f"# Written by scripts/make_template_facts.py {tool}.", file=stdout)
    for section, rows in made.items():
        print(f"{section}:", file=stdout)
        for name, row in rows.items():
            text = json.dumps(row, ensure_ascii=False).replace(today, "{{TODAY}}")
            print(f"  {name}: {text}", file=stdout)
