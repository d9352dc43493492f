"""What npukit needs to know about a model family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Config = Mapping[str, Any]  # the contents of config.json
Shapes = dict[str, tuple[int, ...]]  # the shapes of the weights by name


@dataclass(frozen=True)
class Dimensions:
    """The sizes that determine a model's memory and computation."""

    layers: int
    hidden: int
    intermediate: int  # with experts, the sum over all experts that a token uses
    heads: int
    key_value_heads: int
    head: int  # the width of one head
    vocabulary: int
    experts: int = 0  # the number of experts in a layer
    experts_per_token: int = 0
    expert: int = 0  # the intermediate size of one expert
    state_layers: int = 0  # the number of layers with a state of fixed size instead of keys and values
    state_inputs: int = 0  # in such a layer, the numbers of a sequence that its convolution keeps,
    state_memory: int = 0  # and those of its state, in float32
    cached: int = 0  # with latent attention, the numbers of a token that the cache of a layer keeps

    @property
    def queries(self) -> int:
        """The width of all query heads together."""
        return self.heads * self.head

    @property
    def keys(self) -> int:
        """The width of all key heads together. Value heads have the same width."""
        return self.key_value_heads * self.head


def dimensions(config: Config) -> Dimensions:
    """Read the sizes under the names that most families use in config.json."""
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
    """For families in which every token attends to all tokens before it."""
    return None


def window(config: Config) -> int | None:
    """For families in which all layers attend to the last `sliding_window` tokens, if that is set."""
    return config.get("sliding_window")


def optional_window(config: Config) -> int | None:
    """Like `window`, but only if `use_sliding_window` is set. Qwen's configurations contain unused window sizes."""
    return config.get("sliding_window") if config.get("use_sliding_window") else None


@dataclass(frozen=True)
class Family:
    """What npukit knows about one family of models."""

    attention: Literal["plain", "mixed", "latent", "capped", "unknown"] = "plain"
    """plain: softmax(qk)v, the only kind that packing supports.
    mixed: plain in some layers; the others have a state of fixed size (linear attention, state spaces).
    latent: keys and values are projections of a smaller vector (MLA). capped: a tanh limits the scores."""
    plain_logits: bool = True
    """Whether logits are the output layer times the last hidden states, without a scale or a cap."""
    experts: bool = False
    """Whether the model is a mixture of experts."""
    fused_rotary: bool = False
    """Whether torch_npu's npu_rotary_mul can replace the family's apply_rotary_pos_emb. The operator pairs halves,
    rotates the whole head, and computes in the dtype of its input."""
    window: Callable[[Config], int | None] = no_window
    """The number of previous tokens that a layer attends to, or None for all of them."""
    dimensions: Callable[[Config], Dimensions] = dimensions
    shapes: Callable[[Config], Shapes] | None = None
    """The names and shapes of the weights in transformers, or None if npukit does not know them."""
    packs: bool = True
    """False if the attention to images does not work in packed rows."""
    templates: Mapping[str, str] = field(default_factory=dict)
    """The chat templates of npukit for the names that LLaMA-Factory and ms-swift use for this family."""

    @property
    def is_paged(self) -> bool:
        """Whether the engine has a paged cache for its attention."""
        return self.attention in ("plain", "mixed", "latent") and self.plain_logits

    @property
    def can_pack(self) -> bool:
        """Whether a row of a training batch can hold several texts."""
        return self.attention == "plain" and self.packs
