"""The shapes of the weights of decoders that are built like Llama."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from npukit.llm.families.family import Config, Dimensions, Shapes, dimensions


@dataclass(frozen=True)
class Decoder:
    """How a family's decoder layer differs from Llama's. Call it to get the shapes of the weights.

    >>> Decoder()(config)["model.layers.0.self_attn.q_proj.weight"]
    (3584, 3584)
    """

    bias: bool | None = None  # of queries, keys and values; None means that attention_bias decides
    output_bias: bool = False  # whether attention_bias also applies to the output projection
    fused_queries: bool = False  # queries, keys and values are one matrix
    fused_gate: bool = False  # the gate and up projections are one matrix
    tied: bool = False  # the default of tie_word_embeddings
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    head_norms: str = ""  # queries and keys are normalised: by "head", or "all" heads together
    shared_expert: bool = False  # a gated expert that every token uses besides its own

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
        """Yield the weights of the experts. Since transformers 5, all experts of a layer are in one tensor."""
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
