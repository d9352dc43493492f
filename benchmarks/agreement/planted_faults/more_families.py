"""Twelve more families of transformers and diffusers, tiny: experts, Mamba, LSTMs, convolutions, encoder-decoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_TEXT: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "attn_implementation": "eager",
}  # fmt: skip


def _olmoe(t: Any) -> Any:
    model = t.OlmoeForCausalLM(t.OlmoeConfig(**_TEXT, num_experts=8, num_experts_per_tok=2))
    for layer in model.model.layers:
        nn.init.normal_(layer.mlp.gate.weight, std=0.3)  # else all experts are equally likely
    return model


def _gpt_oss(t: Any) -> Any:
    sizes = {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4, "pad_token_id": 0}
    model = t.GptOssForCausalLM(t.GptOssConfig(**_TEXT, **sizes))
    for name, weight in model.named_parameters():
        if "sinks" in name or "router" in name:
            nn.init.normal_(weight, std=0.3)
    return model


def _switch(t: Any) -> Any:
    sizes = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2}
    sizes |= {"num_heads": 4, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    off = {"dropout_rate": 0.0, "router_jitter_noise": 0.0, "decoder_start_token_id": 0}
    return t.SwitchTransformersForConditionalGeneration(t.SwitchTransformersConfig(**sizes, **off))


def _jamba(t: Any) -> Any:
    sizes = {"mamba_d_state": 4, "mamba_dt_rank": 4, "num_experts": 4, "num_experts_per_tok": 2}
    order = {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
    return t.JambaForCausalLM(t.JambaConfig(**_TEXT, **sizes, **order, use_mamba_kernels=False))


def _falcon_mamba(t: Any) -> Any:
    sizes = {"vocab_size": 96, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2}
    return t.FalconMambaForCausalLM(t.FalconMambaConfig(**sizes))


class Predictor(nn.Module):
    """Parakeet's LSTM, trained to predict the next token."""

    def __init__(self, t: Any) -> None:
        super().__init__()
        from transformers.models.parakeet.modeling_parakeet import ParakeetRNNTDecoder

        config = t.ParakeetRNNTConfig(vocab_size=96, decoder_hidden_size=24, num_decoder_layers=2, blank_token_id=95)
        self.decoder, self.head = ParakeetRNNTDecoder(config), nn.Linear(24, 96)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(self.decoder(input_ids))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def _mobilenet(t: Any) -> Any:
    config = t.MobileNetV2Config(depth_multiplier=0.25, num_labels=10, classifier_dropout_prob=0.0)
    model = t.MobileNetV2ForImageClassification(config)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.weight, 4.0)  # else nothing reaches the 6 of ReLU6
    return model


class Dac(nn.Module):
    def __init__(self, t: Any) -> None:
        super().__init__()
        sizes = {"encoder_hidden_size": 8, "decoder_hidden_size": 32, "downsampling_ratios": [2, 4]}
        self.dac = t.DacModel(t.DacConfig(**sizes, n_codebooks=2, codebook_size=16, codebook_dim=4))

    def forward(self, wave: Tensor) -> Any:
        output = self.dac(wave)
        length = min(output.audio_values.shape[-1], wave.shape[-1])
        again = functional.l1_loss(output.audio_values[..., :length], wave[:, 0, :length])
        return again + output.loss.mean()


def _marian(t: Any) -> Any:
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 32}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
    config = t.MarianConfig(vocab_size=96, **sizes, **tokens, dropout=0.0, attn_implementation="eager")
    return t.MarianMTModel(config)


class Conditioned(nn.Module):
    """The U-Net of Stable Diffusion, trained to remove noise."""

    def __init__(self) -> None:
        super().__init__()
        from diffusers import UNet2DConditionModel  # type: ignore[import-not-found]

        blocks = {
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        }
        sizes = {"sample_size": 8, "block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 4}
        self.unet = UNet2DConditionModel(**blocks, **sizes, cross_attention_dim=12, attention_head_dim=4)

    def forward(self, pixels: Tensor, noise: Tensor, timesteps: Tensor, prompt: Tensor) -> Tensor:
        return functional.mse_loss(self.unet(pixels + noise, timesteps, prompt).sample, noise)


class Dit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from diffusers import DiTTransformer2DModel

        sizes = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "sample_size": 8, "patch_size": 2}
        self.dit = DiTTransformer2DModel(**sizes, in_channels=4, num_embeds_ada_norm=10, norm_num_groups=4)
        for module in self.dit.modules():
            if hasattr(module, "dropout_prob"):
                module.dropout_prob = 0.0

    def forward(self, pixels: Tensor, noise: Tensor, timesteps: Tensor, classes: Tensor) -> Tensor:
        return functional.mse_loss(self.dit(pixels + noise, timesteps, classes).sample, noise)


def _patchtst(t: Any) -> Any:
    sizes = {"d_model": 16, "num_attention_heads": 2, "ffn_dim": 32, "num_hidden_layers": 2, "num_input_channels": 3}
    lengths = {"context_length": 32, "patch_length": 8, "patch_stride": 8, "prediction_length": 4}
    return t.PatchTSTForPrediction(t.PatchTSTConfig(**sizes, **lengths, head_dropout=0.0, loss="mse"))


TRANSFORMERS: dict[str, Callable[[Any], Any]] = {
    "olmoe": _olmoe, "gptoss": _gpt_oss, "switch": _switch, "jamba": _jamba, "falconmamba": _falcon_mamba,
    "parakeet": Predictor, "mobilenet": _mobilenet, "dac": Dac, "marian": _marian, "patchtst": _patchtst,
}  # fmt: skip
DIFFUSERS: dict[str, Callable[[], Any]] = {"conditioned": Conditioned, "dit": Dit}


def batch(kind: str) -> dict[str, Tensor]:
    """What a family is trained on."""
    tokens, latents = torch.randint(3, 95, (2, 10)), torch.randn(2, 4, 8, 8)
    noise, timesteps = torch.randn_like(latents), torch.tensor([3, 400])
    batches = {
        "mobilenet": {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.tensor([1, 2, 3, 4])},
        "dac": {"wave": torch.randn(2, 1, 64)},
        "patchtst": {"past_values": torch.randn(2, 32, 3).cumsum(1), "future_values": torch.randn(2, 4, 3)},
        "conditioned": {"pixels": latents, "noise": noise, "timesteps": timesteps, "prompt": torch.randn(2, 5, 12)},
        "dit": {"pixels": latents, "noise": noise, "timesteps": timesteps, "classes": torch.tensor([3, 7])},
    }
    return batches.get(kind, {"input_ids": tokens, "labels": tokens.clone()})
