"""Families that no set before used, tiny: hybrids, Fourier transforms, LoRA, images, a forecaster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_WIDTH = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_TEXT: dict[str, Any] = {"vocab_size": 96, "attn_implementation": "eager", "pad_token_id": 0, **_WIDTH}
_NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _smollm3(t: Any) -> Any:
    config = t.SmolLM3Config(**_TEXT, num_key_value_heads=2, no_rope_layers=[1, 0], bos_token_id=1, eos_token_id=2)
    return t.SmolLM3ForCausalLM(config)


def _glm4(t: Any) -> Any:
    return t.Glm4ForCausalLM(t.Glm4Config(**_TEXT, num_key_value_heads=2, head_dim=8, eos_token_id=2))


def _olmo2(t: Any) -> Any:
    return t.Olmo2ForCausalLM(t.Olmo2Config(**_TEXT, num_key_value_heads=2, bos_token_id=1, eos_token_id=2))


def _lora(t: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return get_peft_model(_olmo2(t), config)


def _fnet(t: Any) -> Any:
    config = t.FNetConfig(**{**_TEXT, "attn_implementation": None}, hidden_dropout_prob=0.0)
    return t.FNetForMaskedLM(config)


def _xlnet(t: Any) -> Any:
    config = t.XLNetConfig(
        vocab_size=96, d_model=32, n_layer=2, n_head=4, d_inner=64, dropout=0.0, initializer_range=0.2
    )
    return t.XLNetLMHeadModel(config)


def _convnextv2(t: Any) -> Any:
    config = t.ConvNextV2Config(hidden_sizes=[16, 32], depths=[1, 2], num_stages=2, patch_size=2, num_labels=4)
    model = t.ConvNextV2ForImageClassification(config)
    for module in model.modules():
        if type(module).__name__ == "ConvNextV2GRN":
            nn.init.normal_(module.weight, std=0.5)  # else it does nothing yet
    return model


def _regnet(t: Any) -> Any:
    sizes = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 2], "groups_width": 8, "num_labels": 4}
    return t.RegNetForImageClassification(t.RegNetConfig(**sizes, layer_type="y"))


def _poolformer(t: Any) -> Any:
    sizes: dict[str, Any] = {"num_encoder_blocks": 2, "depths": [1, 2], "hidden_sizes": [16, 32], "patch_sizes": [3, 3]}
    sizes |= {"strides": [2, 2], "padding": [1, 1], "layer_scale_init_value": 0.5, "num_labels": 4}
    return t.PoolFormerForImageClassification(t.PoolFormerConfig(**sizes, drop_path_rate=0.0))


def _beit(t: Any) -> Any:
    sizes = {"image_size": 16, "patch_size": 4, "layer_scale_init_value": 0.5, "use_relative_position_bias": True}
    config = t.BeitConfig(**_WIDTH, **sizes, **_NO_DROPOUT, drop_path_rate=0.0, num_labels=4, out_indices=[1])
    return t.BeitForImageClassification(config)


def _pvt(t: Any) -> Any:
    sizes = {"image_size": 32, "num_encoder_blocks": 2, "depths": [1, 1], "sequence_reduction_ratios": [2, 1]}
    sizes |= {"hidden_sizes": [16, 32], "patch_sizes": [4, 2], "strides": [4, 2], "num_attention_heads": [2, 4]}
    config = t.PvtConfig(**sizes, **_NO_DROPOUT, mlp_ratios=[2, 2], drop_path_rate=0.0, num_labels=4)
    return t.PvtForImageClassification(config)


def _gptj(t: Any) -> Any:
    sizes = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16, "rotary_dim": 4}
    off = {"resid_pdrop": 0.1, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "attn_implementation": "eager"}
    return t.GPTJForCausalLM(t.GPTJConfig(**sizes, **off))


def _mpnet(t: Any) -> Any:
    return t.MPNetForMaskedLM(t.MPNetConfig(**{**_TEXT, "pad_token_id": 1}, **_NO_DROPOUT, max_position_embeddings=20))


def _lfm2(t: Any) -> Any:
    sizes = {"num_key_value_heads": 2, "layer_types": ["conv", "full_attention"], "block_multiple_of": 8}
    return t.Lfm2ForCausalLM(t.Lfm2Config(**_TEXT, **sizes))


def _qwen3_next(t: Any) -> Any:
    linear = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}
    sizes = {"linear_num_value_heads": 4, "head_dim": 8, "num_key_value_heads": 2, "mlp_only_layers": [0, 1]}
    layers = {"layer_types": ["linear_attention", "full_attention"], "num_experts": 0}
    return t.Qwen3NextForCausalLM(t.Qwen3NextConfig(**_TEXT, **linear, **sizes, **layers))


def _nystromformer(t: Any) -> Any:
    sizes = {"segment_means_seq_len": 12, "num_landmarks": 4, "max_position_embeddings": 16, "conv_kernel_size": 3}
    own: dict[str, Any] = {"attn_implementation": None, "initializer_range": 0.2, **_NO_DROPOUT}
    config = t.NystromformerConfig(**{**_TEXT, **own}, **sizes)
    return t.NystromformerForMaskedLM(config)


def _forecaster(t: Any) -> Any:
    sizes: dict[str, Any] = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
    sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "dropout": 0.0}
    lengths = {"prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2], "num_time_features": 1}
    config = t.TimeSeriesTransformerConfig(**sizes, **lengths, scaling="mean", attn_implementation="eager")
    return t.TimeSeriesTransformerForPrediction(config)


def _minimax(t: Any) -> Any:
    layers = {"layer_types": ["linear_attention", "full_attention"], "block_size": 4, "head_dim": 8}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
    return t.MiniMaxForCausalLM(t.MiniMaxConfig(**_TEXT, **layers, **experts))


def _zamba2(t: Any) -> Any:
    mamba = {"mamba_d_state": 4, "mamba_headdim": 16, "mamba_ngroups": 1, "n_mamba_heads": 4, "chunk_size": 4}
    layers = {"layers_block_type": ["mamba", "hybrid"], "num_mem_blocks": 1, "use_mem_rope": True, "adapter_rank": 4}
    return t.Zamba2ForCausalLM(t.Zamba2Config(**_TEXT, **mamba, **layers, num_key_value_heads=4))


class Quantised(nn.Module):
    """The vector-quantised autoencoder of diffusers."""

    def __init__(self) -> None:
        super().__init__()
        from diffusers import VQModel  # type: ignore[import-not-found]

        blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
        sizes = {"block_out_channels": (8, 16), "norm_num_groups": 4, "num_vq_embeddings": 16, "latent_channels": 4}
        self.vq = VQModel(**blocks, **sizes, sample_size=16)

    def forward(self, pixels: Tensor) -> Any:
        quantised, loss, _ = self.vq.quantize(self.vq.encode(pixels).latents)
        again = self.vq.decode(quantised, force_not_quantize=True).sample
        return functional.mse_loss(again, pixels) + loss


TRANSFORMERS: dict[str, Callable[[Any], Any]] = {
    "smollm3": _smollm3, "glm4": _glm4, "olmo2": _olmo2, "lora": _lora, "fnet": _fnet, "xlnet": _xlnet,
    "convnextv2": _convnextv2, "regnet": _regnet, "poolformer": _poolformer, "beit": _beit, "pvt": _pvt,
    "gptj": _gptj, "mpnet": _mpnet, "lfm2": _lfm2, "qwen3next": _qwen3_next, "nystromformer": _nystromformer,
    "timeseries": _forecaster, "minimax": _minimax, "zamba2": _zamba2,
}  # fmt: skip
OWN: dict[str, Callable[[], Any]] = {"quantised": Quantised}


def batch(kind: str) -> dict[str, Tensor]:
    """What a family is trained on."""
    tokens, pixels = torch.randint(3, 95, (2, 12)), torch.randn(2, 3, 16, 16)
    padded = tokens.clone()
    padded[0, 8:] = 1
    labelled = {"pixel_values": pixels, "labels": torch.tensor([1, 3])}
    times = {
        "past_values": torch.rand(4, 14).cumsum(1), "past_time_features": torch.rand(4, 14, 1),
        "past_observed_mask": torch.ones(4, 14), "future_values": torch.rand(4, 4) + 5,
        "future_time_features": torch.rand(4, 4, 1),
    }  # fmt: skip
    batches = {
        **dict.fromkeys(("convnextv2", "regnet", "poolformer", "beit"), labelled),
        "pvt": {**labelled, "pixel_values": torch.randn(2, 3, 32, 32)},
        "mpnet": {"input_ids": padded, "attention_mask": (padded != 1).long(), "labels": tokens},
        "timeseries": times,
        "quantised": {"pixels": pixels},
    }
    return batches.get(kind, {"input_ids": tokens, "labels": tokens.clone()})
