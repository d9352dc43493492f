"""The weights of a decoder that is built like Llama; families differ in a few of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from npukit.llm.families.family import Config, Dimensions, Shapes, dimensions


@dataclass(frozen=True)
class Decoder:
    """How a family differs from Llama; calling it gives the shapes of its weights.

    >>> Decoder()(config)["model.layers.0.self_attn.q_proj.weight"]
    (3584, 3584)
    """

    bias: bool | None = None  # of queries, keys and values; None: as attention_bias says
    output_bias: bool = False  # attention_bias holds for the output too
    fused_queries: bool = False  # queries, keys and values are one matrix
    fused_gate: bool = False  # gate and up are one matrix
    tied: bool = False  # whether the output layer is the embedding where the configuration does not say
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    head_norms: str = ""  # norms of queries and keys: of each "head", or of "all" heads together
    shared_expert: bool = False  # beside the experts, one that every token takes, with a gate of its own

    def __call__(self, config: Config) -> Shapes:
        sizes = dimensions(config)
        shapes: Shapes = {
            "model.embed_tokens.weight": (sizes.vocabulary, sizes.hidden),
            "model.norm.weight": (sizes.hidden,),
        }
        if not config.get("tie_word_embeddings", self.tied):
            shapes["lm_head.weight"] = (sizes.vocabulary, sizes.hidden)
        layer = dict(self._layer(config, sizes))
        for number in range(sizes.layers):
            shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
        return shapes

    def _layer(self, config: Mapping[str, Any], sizes: Dimensions) -> Iterator[tuple[str, tuple[int, ...]]]:
        hidden, inner = sizes.hidden, sizes.intermediate
        asked = config.get("attention_bias", False)
        widths = {"q_proj": sizes.queries, "k_proj": sizes.keys, "v_proj": sizes.keys}
        if self.fused_queries:
            widths = {"qkv_proj": sum(widths.values())}
        for name, width in widths.items():
            yield f"self_attn.{name}.weight", (width, hidden)
            if asked if self.bias is None else self.bias:
                yield f"self_attn.{name}.bias", (width,)
        yield "self_attn.o_proj.weight", (hidden, sizes.queries)
        if self.output_bias and asked:
            yield "self_attn.o_proj.bias", (hidden,)
        if sizes.experts:
            yield from self._experts(config, sizes)
        else:
            for name in ("gate_up_proj",) if self.fused_gate else ("gate_proj", "up_proj"):
                yield f"mlp.{name}.weight", (2 * inner if self.fused_gate else inner, hidden)
            yield "mlp.down_proj.weight", (hidden, inner)
        for name in self.norms:
            yield f"{name}.weight", (hidden,)
        if self.head_norms:
            of_all = self.head_norms == "all"
            yield "self_attn.q_norm.weight", (sizes.queries if of_all else sizes.head,)
            yield "self_attn.k_norm.weight", (sizes.keys if of_all else sizes.head,)

    def _experts(self, config: Mapping[str, Any], sizes: Dimensions) -> Iterator[tuple[str, tuple[int, ...]]]:
        """All experts of a layer are one tensor, as transformers keeps them since release 5."""
        hidden, inner = sizes.hidden, sizes.expert
        yield "mlp.gate.weight", (sizes.experts, hidden)
        yield "mlp.experts.gate_up_proj", (sizes.experts, 2 * inner, hidden)
        yield "mlp.experts.down_proj", (sizes.experts, hidden, inner)
        if self.shared_expert:
            shared = config["shared_expert_intermediate_size"]
            yield "mlp.shared_expert.gate_proj.weight", (shared, hidden)
            yield "mlp.shared_expert.up_proj.weight", (shared, hidden)
            yield "mlp.shared_expert.down_proj.weight", (hidden, shared)
            yield "mlp.shared_expert_gate.weight", (1, hidden)
