"""The layer for multi-token prediction that a checkpoint has beside the model, and that transformers does not load."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.llm import families
from npukit.llm.families.next_tokens import NextTokens
from npukit.llm.models.checkpoint import WeightFiles
from npukit.llm.models.experts import use_grouped_experts

LISTS = ("layer_types", "mlp_layer_types")  # in a configuration: what kind each layer is
SHARED = ("embed_tokens", "shared_head")  # copies of the model's own, and the last norm


class NextTokenLayer(nn.Module):
    """Turns a token's last hidden state and the embedding of the token after it into the hidden state from which the
    output layer predicts the one after that. `body` is the model's own kind of decoder, with one layer.
    """

    def __init__(self, body: Any, hidden_norm: nn.Module, embedding_norm: nn.Module, hidden_first: bool) -> None:
        super().__init__()
        self.body, self.hidden_norm, self.embedding_norm = body, hidden_norm, embedding_norm
        size = body.config.hidden_size
        self.projection = nn.Linear(2 * size, size, bias=False, dtype=body.dtype)
        self._hidden_first = hidden_first

    def forward(self, hidden: Tensor, embedded: Tensor, **batch: Any) -> Tensor:
        """Both are [1, tokens, hidden]; `batch` is what the model's own decoder takes."""
        both = self.hidden_norm(hidden), self.embedding_norm(embedded)
        joined = torch.cat(both if self._hidden_first else both[::-1], -1)
        result: Tensor = self.body(inputs_embeds=self.projection(joined), use_cache=False, **batch)[0]
        return result


def load_next_token_layer(model: Any, weights: WeightFiles) -> NextTokenLayer:
    """The layer that the model's checkpoint has, on the model's device and in its dtype.

    >>> load_next_token_layer(model, open_checkpoint(Path("glm-4.5-air"))).projection.weight.shape
    torch.Size([4096, 8192])
    """
    names = find_next_token_layer(model.config, weights)
    like = model.base_model.norm
    layer = NextTokenLayer(_body(model, names, weights), copy.deepcopy(like), copy.deepcopy(like), names.hidden_first)
    for module, name in (
        (layer.hidden_norm, names.hidden_norm),
        (layer.embedding_norm, names.embedding_norm),
        (layer.projection, names.projection),
    ):
        module.load_state_dict({"weight": weights.read(f"{name}.weight")})
    layer = layer.to(model.device).eval()
    use_grouped_experts(layer.body)
    return layer


def find_next_token_layer(config: Any, weights: WeightFiles) -> NextTokens:
    """The names of the layer's weights, which must all be there."""
    kind, family = config.model_type, families.next_tokens_of(config)
    if family is None:
        raise NpukitError(
            f"npukit cannot compute multi-token prediction for {kind} models: leave out --speculative-method, or use "
            "--speculative-model or --prompt-lookup."
        )
    names = family.in_model_of(config.num_hidden_layers)
    parts = [part for part in (names.hidden_norm, names.embedding_norm, names.projection, names.norm) if part]
    if missing := [f"{part}.weight" for part in parts if f"{part}.weight" not in weights.entries]:
        raise NpukitError(
            f"{weights.folder} has no layer for multi-token prediction ({missing[0]}): leave out --speculative-method, "
            "or use --speculative-model or --prompt-lookup."
        )
    return names


def _body(model: Any, names: NextTokens, weights: WeightFiles) -> Any:
    """A decoder of the model's class whose only layer has the weights below `names.layer`."""
    config = copy.deepcopy(model.config)
    for name in LISTS:
        if kinds := getattr(config, name, None):
            setattr(config, name, [(getattr(config, f"mtp_{name}", None) or kinds[-1:])[0]])
    # No embedding of its own: one row takes its place.
    config.update({"num_hidden_layers": 1, "vocab_size": 1, "pad_token_id": None, **names.config})
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    own = {name: name.removeprefix(names.layer) for name in weights.entries if name.startswith(names.layer)}
    state = {f"model.layers.0.{rest}": weights.read(name) for name, rest in own.items() if not rest.startswith(SHARED)}
    if names.norm is not None:
        state["model.norm.weight"] = weights.read(f"{names.norm}.weight")
    body, loaded = type(model.base_model).from_pretrained(
        None,
        config=config,
        state_dict=state,
        dtype=model.dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are reported below
    )
    missing = {name for name in loaded["missing_keys"] if "embed_tokens" not in name and name != "norm.weight"}
    if missing or loaded["mismatched_keys"]:
        raise NpukitError(
            f"The layer for multi-token prediction in {weights.folder} does not fit its config.json: "
            f"{min(missing) if missing else min(loaded['mismatched_keys'])[0]} is missing or has another size."
        )
    if names.norm is None:
        body.norm = nn.Identity()
    return body
