"""What npukit has to know about a model family, and the ways in which families commonly differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Config = Mapping[str, Any]  # the contents of config.json
Shapes = dict[str, tuple[int, ...]]  # of the weights, by name


@dataclass(frozen=True)
class Dimensions:
    """The sizes that memory and work depend on."""

    layers: int
    hidden: int
    intermediate: int  # of all experts that a token takes, where there are experts
    heads: int
    key_value_heads: int
    head: int  # the width of one
    vocabulary: int
    experts: int = 0  # of a layer
    experts_per_token: int = 0
    expert: int = 0  # the intermediate width of one
    state_layers: int = 0  # those that keep a state of a fixed size instead of keys and values
    state_inputs: int = 0  # numbers of a sequence in such a layer: the last inputs of its convolution,
    state_memory: int = 0  # and what it remembers, in float32

    @property
    def queries(self) -> int:
        """The width of all query heads together."""
        return self.heads * self.head

    @property
    def keys(self) -> int:
        """The width of all key heads together, and of all value heads."""
        return self.key_value_heads * self.head


def dimensions(config: Config) -> Dimensions:
    """Sizes by the names that most families use."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    experts = config.get("num_experts") or config.get("num_local_experts") or 0
    taken = config.get("num_experts_per_tok", 0) if experts else 0
    inner = config.get("intermediate_size") or 4 * hidden
    expert = config.get("moe_intermediate_size") or inner
    shared = config.get("shared_expert_intermediate_size") or 0
    return Dimensions(
        layers=config["num_hidden_layers"],
        hidden=hidden,
        intermediate=taken * expert + shared if taken else inner,
        heads=heads,
        key_value_heads=config.get("num_key_value_heads") or heads,
        head=config.get("head_dim") or hidden // heads,
        vocabulary=config["vocab_size"],
        experts=experts,
        experts_per_token=taken,
        expert=expert if taken else 0,
    )


def no_window(config: Config) -> int | None:
    """Every token sees all tokens before it."""
    return None


def window(config: Config) -> int | None:
    """Every layer looks back over `sliding_window` tokens, where that is set."""
    return config.get("sliding_window")


def optional_window(config: Config) -> int | None:
    """The same, but only where `use_sliding_window` asks for it; Qwen's configurations name an unused width."""
    return config.get("sliding_window") if config.get("use_sliding_window") else None


@dataclass(frozen=True)
class Family:
    """One family of models."""

    attention: Literal["plain", "mixed", "latent", "capped", "unknown"] = "plain"
    """plain: softmax(qk)v, the only kind that packing computes.
    mixed: plain in some layers; the others keep a state of a fixed size (linear attention, state spaces).
    latent: keys and values are unpacked from a smaller vector (MLA). capped: scores pass through a tanh."""
    plain_logits: bool = True
    """Logits are the last hidden states times the output layer, with no scale or cap."""
    experts: bool = False
    """Each token takes its own way through some of many expert layers."""
    rotary: Literal["halves", "pairs", "none"] = "none"
    """Which elements of a head are turned together: its two halves, neighbours, or none (learned positions)."""
    fused_rotary: bool = False
    """Whether torch_npu's npu_rotary_mul computes what the family's apply_rotary_pos_emb does: halves, the whole
    head, in the type of its input."""
    window: Callable[[Config], int | None] = no_window
    """How many tokens a layer looks back over; None means all of them."""
    dimensions: Callable[[Config], Dimensions] = dimensions
    shapes: Callable[[Config], Shapes] | None = None
    """The names and shapes of the weights, as transformers makes them; None where npukit cannot tell."""
    packs: bool = True
    """False for a model whose attention to images does not work in packed rows."""
    templates: Mapping[str, str] = field(default_factory=dict)
    """Names of chat templates that LLaMA-Factory or ms-swift have for its models, and the template here."""

    @property
    def can_pack(self) -> bool:
        """Whether several texts can be one row of a training batch."""
        return self.attention == "plain" and self.packs
