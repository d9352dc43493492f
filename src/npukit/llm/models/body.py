"""The part of a model without its output layer, also where that lies inside of the language model, as in Llama 4."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


def body_of(model: Any) -> Any:
    """The model without its output layer; that of Llama 4's language model has another name than it says."""
    body = getattr(model, model.base_model_prefix, None)
    return model.model if body is None else body


def give_body(model: Any) -> None:
    """Let a model that sees have a body like others: tower, projector and the language model without its output layer.

    It holds no weights of its own, so that their names stay as they are.
    """
    if hasattr(model, model.base_model_prefix):
        return
    object.__setattr__(model, model.base_model_prefix, Body(model))
    kind = type(model)
    model.__class__ = type(kind.__name__, (WithBody, kind), {})


class Body(nn.Module):
    """The parts of a model by the names that they have there; its `forward` is set from outside."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        object.__setattr__(self, "whole", whole)

    @property
    def language_model(self) -> Any:
        return body_of(self.whole.language_model)

    def modules(self, *args: Any, **options: Any) -> Iterator[nn.Module]:
        return self.whole.modules(*args, **options)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["whole"], name)


class WithBody:
    """A model whose logits are made of what its body returns."""

    def forward(self: Any, *args: Any, logits_to_keep: int = 0, **batch: Any) -> Any:
        from transformers.modeling_outputs import CausalLMOutputWithPast

        outputs = body_of(self)(*args, **batch)
        hidden: Tensor = outputs[0]
        logits = self.get_output_embeddings()(hidden[:, -logits_to_keep:])
        return CausalLMOutputWithPast(logits=logits, past_key_values=outputs.past_key_values)
