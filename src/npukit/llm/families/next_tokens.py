"""The layer that some checkpoints bring for predicting the token after the next one (multi-token prediction, MTP)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class NextTokens:
    """Where a checkpoint has this layer: {layers} is the number of the model's own layers.

    The layer's input is a projection of two norms side by side: of a token's last hidden state, and of the embedding
    of the token after it. What follows is a decoder layer as the model's own ones, and mostly a norm.
    """

    layer: str
    """The prefix of the decoder layer's weights."""
    hidden_norm: str
    embedding_norm: str
    projection: str
    norm: str | None
    """The norm before the output layer; None if there is none."""
    hidden_first: bool = False
    """Whether the hidden state is the first half of the projection's input."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.json that the decoder layer needs otherwise than the model's own layers."""

    def in_model_of(self, layers: int) -> NextTokens:
        """The same with the names that they have in a model of so many layers."""
        names = ("layer", "hidden_norm", "embedding_norm", "projection", "norm")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(self, **{name: value.format(layers=layers) for name, value in given.items()})


def nested(layer: str, norm: str, **others: Any) -> NextTokens:
    """Everything is below one name, as DeepSeek-V3 has it; only the last norm is called differently."""
    return NextTokens(layer, f"{layer}hnorm", f"{layer}enorm", f"{layer}eh_proj", layer + norm, **others)


BESIDE = NextTokens(
    layer="mtp.layers.0.",
    hidden_norm="mtp.pre_fc_norm_hidden",
    embedding_norm="mtp.pre_fc_norm_embedding",
    projection="mtp.fc",
    norm="mtp.norm",
)
"""As in Qwen3-Next: the decoder layer is below the name of what belongs to it."""
