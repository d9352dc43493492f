"""On-policy distillation: learn from a larger model's log-probabilities of an answer's tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from npukit.errors import NpukitError
from npukit.llm import families
from npukit.llm.config.options import Config, ModelOptions
from npukit.llm.models.adapter import apply_adapter
from npukit.llm.models.folder import find_parts
from npukit.llm.models.forward import return_loss
from npukit.llm.models.loading import load_model, load_tokenizer, locate
from npukit.llm.models.vision import see_images


def load_teacher(config: Config, student: Any, tokenizer: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Load the model of grpo.teacher on a device; it is called like the student. Both have the same vocabulary."""
    path = config.grpo.teacher or ""
    base, adapters = find_parts(path, ()) if Path(path).exists() else (path, ())
    options = ModelOptions(path=str(base), hub=config.model.hub, trust_remote_code=config.model.trust_remote_code)
    place = locate(options)
    if load_tokenizer(options, place).get_vocab() != tokenizer.get_vocab():
        raise NpukitError(
            f"grpo.teacher: {path} has another tokenizer than {config.model.path}: use a model of the same family."
        )
    shape = student.config
    model: Any = load_model(options, place, dtype, shape.get_text_config()._attn_implementation)
    vision = families.vision_of(model.config)
    if (vision or families.vision_of(shape)) and model.config.model_type != shape.model_type:
        raise NpukitError(
            f"grpo.teacher: {path} is a {model.config.model_type} and the model a {shape.model_type}, which read "
            "images differently: use a model of the same family."
        )
    if vision:
        see_images(model, vision)
    for adapter in adapters:
        apply_adapter(model, adapter)
    return_loss(model)
    return model.to(device).eval().requires_grad_(False)
