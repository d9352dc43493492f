"""The paged key/value cache: keys and values of each layer, and the block table of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from npukit.errors import NpukitError
from npukit.inference.engine.latent import is_latent, keep_packed
from npukit.inference.engine.paged import to_device
from npukit.inference.engine.pool import NULL_BLOCK
from npukit.inference.engine.states import release_states
from npukit.launch.abilities import abilities, eight_bits
from npukit.llm.models.vision import language_model

SCALE_BYTES = 4  # of a token and head, in a cache in 8 bits
_LATENT_ON_NPU = (512, 64)  # the sizes that torch_npu's attention over a cache supports


@dataclass(frozen=True)
class CacheShape:
    """The memory that one token takes in the cache of a model. Layers without attention take none.

    >>> CacheShape.of(model).bytes_per_token
    57344
    """

    layers: int
    heads: int  # of keys and values
    head_size: int
    dtype: torch.dtype
    rotated_size: int | None = None  # of a rotated key, where "keys" are latent vectors and these are the "values"

    @classmethod
    def of(cls, model: Any, dtype: torch.dtype | None = None, extra_layers: int = 0) -> CacheShape:
        """Of a transformers model; `dtype` if it computes in another one than its weights have."""
        config, layers = model.config.get_text_config(), len(attention_modules(model)) + extra_layers
        dtype = dtype or model.dtype
        if not layers:
            return cls(0, 0, 0, dtype)
        if has_latent_attention(model):
            return cls(layers, 1, config.kv_lora_rank, dtype, config.qk_rope_head_dim)
        heads = config.num_attention_heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
        key_heads = getattr(config, "num_key_value_heads", None) or heads
        return cls(layers, key_heads, head_size, dtype)

    @property
    def sizes(self) -> tuple[int, int]:
        """Of a key and of a value."""
        return self.head_size, self.rotated_size or self.head_size

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        scale = SCALE_BYTES if self.is_quantized else 0
        return self.layers * self.heads * (sum(self.sizes) * self.dtype.itemsize + 2 * scale)

    @property
    def is_quantized(self) -> bool:
        """Whether each token and head has a scale beside its 8-bit numbers."""
        return self.dtype.itemsize == 1

    @property
    def is_for_npu_kernel(self) -> bool:
        """Whether torch_npu's attention reads such a cache."""
        return not self.is_quantized and (self.rotated_size is None or self.sizes == _LATENT_ON_NPU)


def cache_dtype(name: str, computed: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of the cache that `kv_cache_dtype` names; auto is the one that the model computes in.

    >>> cache_dtype("int8", torch.bfloat16, torch.device("cpu"))
    torch.int8
    """
    if name == "auto":
        return computed
    if name == "int8":
        return torch.int8
    if abilities(device).own_memory and eight_bits(device) is not torch.float8_e4m3fn:
        raise NpukitError(f"{device} has no fp8: use --kv-cache-dtype int8, which takes as little memory.")
    return torch.float8_e4m3fn


class Cache:
    """Keys and values of each layer in blocks, [blocks, block size, heads, head size], and the rows' block tables.

    Each attention module of the model, and of an `extra` one that drafts for it, gets those of its layer as `key_cache`
    and `value_cache`, in 8 bits with their scales as `key_scales` and `value_scales`, [blocks, block size, heads].
    """

    def __init__(
        self,
        model: nn.Module,
        shape: CacheShape,
        blocks: int,
        block_size: int,
        rows: int,
        max_model_len: int,
        extra: nn.Module | None = None,
    ):
        device = next(model.parameters()).device
        self.block_size = block_size
        # One row more than there are requests, for padding.
        self.tables = torch.full(
            (rows + 1, -(-max_model_len // block_size)), NULL_BLOCK, dtype=torch.int32, device=device
        )
        self.last_tokens = torch.zeros(rows + 1, dtype=torch.int64, device=device)  # of each row
        block = (blocks, block_size, shape.heads)
        layers = attention_modules(model) + (attention_modules(extra) if extra is not None else [])
        if len(layers) != shape.layers:
            raise ValueError(f"{len(layers)} attention modules for {shape.layers} layers")
        for layer in layers:
            layer.key_cache, layer.value_cache = (
                torch.empty((*block, size), dtype=shape.dtype, device=device) for size in shape.sizes
            )
            if shape.is_quantized:
                layer.key_scales = torch.empty(block, dtype=torch.float32, device=device)
                layer.value_scales = torch.empty(block, dtype=torch.float32, device=device)
            if is_latent(layer):
                keep_packed(layer)

    def set_table(self, row: int, blocks: list[int]) -> None:
        """Set the block table of a row."""
        self.tables[row, : len(blocks)] = to_device(torch.tensor(blocks, dtype=torch.int32), self.tables.device)


def release_cache(model: nn.Module) -> None:
    """Remove the cache and the states from a model and free their memory."""
    release_states(model)
    for layer in attention_modules(model):
        for name in ("key_cache", "value_cache", "key_scales", "value_scales", "expand_kv"):
            layer.__dict__.pop(name, None)


def has_latent_attention(model: nn.Module) -> bool:
    """Whether all attention of the language model is latent, and transformers' code of it can hand it over packed."""
    modules = attention_modules(model)
    return bool(modules) and all(map(is_latent, modules))


def attention_modules(model: nn.Module) -> list[Any]:
    """The self-attention modules of the language model, first layer first."""
    modules = language_model(model).modules()
    return [module for module in modules if hasattr(module, "layer_idx") and hasattr(module, "is_causal")]
