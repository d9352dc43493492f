"""The layer for multi-token prediction (MTP) in some checkpoints, which predicts the token after the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class NextTokens:
    """The names of this layer's weights in a checkpoint. `{layers}` stands for the model's number of layers.

    The hidden state of a token and the embedding of the following token are each normalised, and both together are
    projected to the layer's input. Then follow a decoder layer like the model's own, and usually a norm.
    """

    layer: str
    """The prefix of the decoder layer's weights."""
    hidden_norm: str
    embedding_norm: str
    projection: str
    norm: str | None
    """The norm before the output layer, or None."""
    hidden_first: bool = False
    """Whether the hidden state is the first half of the projection's input."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.json whose values are different for this decoder layer."""

    def in_model_of(self, layers: int) -> NextTokens:
        """Return a copy with the names for a model with this number of layers."""
        names = ("layer", "hidden_norm", "embedding_norm", "projection", "norm")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(self, **{name: value.format(layers=layers) for name, value in given.items()})


def nested(layer: str, norm: str, **others: Any) -> NextTokens:
    """Return names that share one prefix, as in DeepSeek-V3. Only the last norm is named differently."""
    return NextTokens(layer, f"{layer}hnorm", f"{layer}enorm", f"{layer}eh_proj", layer + norm, **others)


BESIDE = NextTokens(
    layer="mtp.layers.0.",
    hidden_norm="mtp.pre_fc_norm_hidden",
    embedding_norm="mtp.pre_fc_norm_embedding",
    projection="mtp.fc",
    norm="mtp.norm",
)
"""The names in Qwen3-Next, where the decoder layer and what belongs to it are side by side."""
