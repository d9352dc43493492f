"""Families of transformers and diffusers, tiny, each with a batch and an optimizer that decays no norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.agreement.planted_faults import (
    fresh_families,
    later_families,
    more_families,
    right_pairs,
    unseen_families,
)
from benchmarks.agreement.planted_faults.faults import Run
from torch import Tensor, nn
from torch.nn import functional

_WIDTH = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_TEXT: dict[str, Any] = {"vocab_size": 96, "attn_implementation": "eager", **_WIDTH}
_D_MODEL = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
_SEQ2SEQ: dict[str, Any] = {
    "vocab_size": 96, "attn_implementation": "eager", **_D_MODEL, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "dropout": 0.0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 2,
}  # fmt: skip


def _qwen3_moe(t: Any) -> Any:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
    return t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**_TEXT, num_key_value_heads=2, head_dim=8, **experts))


def _deepseek_v3(t: Any) -> Any:
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
    heads = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    sizes = {**experts, **heads, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "num_key_value_heads": 4}
    return t.DeepseekV3ForCausalLM(t.DeepseekV3Config(**_TEXT, **sizes, routed_scaling_factor=2.5))


class Codec(nn.Module):
    """Encodec's convolutions and LSTMs, without the quantizer between them."""

    def __init__(self, t: Any) -> None:
        super().__init__()
        sizes = {"num_filters": 4, "hidden_size": 16, "codebook_dim": 16, "codebook_size": 16}
        model = t.EncodecModel(t.EncodecConfig(**sizes, upsampling_ratios=[4, 2], num_lstm_layers=2))
        self.encoder, self.decoder = model.encoder, model.decoder

    def forward(self, wave: Tensor) -> Any:
        return functional.l1_loss(self.decoder(self.encoder(wave))[..., : wave.shape[-1]], wave)


def _mamba(t: Any) -> Any:
    return t.MambaForCausalLM(t.MambaConfig(vocab_size=96, hidden_size=32, state_size=4, num_hidden_layers=2))


def _mamba2(t: Any) -> Any:
    sizes = {"num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 4, "state_size": 4, "expand": 2}
    return t.Mamba2ForCausalLM(t.Mamba2Config(vocab_size=96, hidden_size=32, num_hidden_layers=2, **sizes))


def _convnext(t: Any) -> Any:
    sizes = {"hidden_sizes": [16, 32], "depths": [1, 2], "num_stages": 2, "patch_size": 2, "num_labels": 10}
    return t.ConvNextForImageClassification(t.ConvNextConfig(**sizes, layer_scale_init_value=0.1))


def _bart(t: Any) -> Any:
    return t.BartForConditionalGeneration(t.BartConfig(**_SEQ2SEQ, max_position_embeddings=32))


def _whisper(t: Any) -> Any:
    sizes = {"num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 16}
    return t.WhisperForConditionalGeneration(t.WhisperConfig(**_SEQ2SEQ, **sizes))


def _gemma2(t: Any) -> Any:
    sizes = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4}
    return t.Gemma2ForCausalLM(t.Gemma2Config(**_TEXT, **sizes)).bfloat16()


def _swin(t: Any) -> Any:
    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": 4}
    config = t.SwinConfig(**sizes, num_labels=10, drop_path_rate=0.0, attn_implementation="eager")
    model = t.SwinForImageClassification(config)
    for name, weight in model.named_parameters():
        if "relative_position_bias_table" in name:  # else they are 0, and so is every mistake with them
            nn.init.normal_(weight, std=0.2)
    return model


def _wav2vec2(t: Any) -> Any:
    sizes = {"conv_dim": (16, 16), "conv_kernel": (4, 4), "conv_stride": (2, 2), "num_conv_pos_embeddings": 8}
    off = dict.fromkeys(
        ("hidden_dropout", "activation_dropout", "attention_dropout", "feat_proj_dropout", "layerdrop"), 0.0
    )
    off |= {"final_dropout": 0.0, "mask_time_prob": 0.0, "mask_feature_prob": 0.0}
    return t.Wav2Vec2ForCTC(t.Wav2Vec2Config(**_TEXT, **sizes, **off, num_conv_pos_embedding_groups=4))


def _deberta(t: Any) -> Any:
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_position_embeddings": 32}
    return t.DebertaV2ForMaskedLM(t.DebertaV2Config(**{**_TEXT, "attn_implementation": None}, **off, **sizes))


def _bloom(t: Any) -> Any:
    off = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    return t.BloomForCausalLM(t.BloomConfig(vocab_size=96, hidden_size=32, n_layer=2, n_head=4, **off))


class Clip(nn.Module):
    def __init__(self, t: Any) -> None:
        super().__init__()
        image = {"image_size": 16, "patch_size": 4, **_WIDTH}
        text = {"vocab_size": 96, "max_position_embeddings": 16, "eos_token_id": 2, **_WIDTH}
        config = t.CLIPConfig(text_config=text, vision_config=image, projection_dim=16, attn_implementation="eager")
        self.clip = t.CLIPModel(config)

    def forward(self, **batch: Tensor) -> Any:
        return self.clip(**batch, return_loss=True).loss


class Denoiser(nn.Module):
    """The U-Net of diffusers, trained to remove noise."""

    def __init__(self) -> None:
        super().__init__()
        from diffusers import UNet2DModel  # type: ignore[import-not-found]

        blocks = {
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        }
        sizes = {"sample_size": 8, "block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 4}
        self.unet = UNet2DModel(in_channels=3, out_channels=3, attention_head_dim=8, **blocks, **sizes)

    def forward(self, pixels: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        return functional.mse_loss(self.unet(pixels + noise, timesteps).sample, noise)


class ImageCodec(nn.Module):
    """The variational autoencoder of diffusers; its mode is decoded."""

    def __init__(self) -> None:
        super().__init__()
        from diffusers import AutoencoderKL

        blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
        self.vae = AutoencoderKL(**blocks, block_out_channels=(16, 32), norm_num_groups=8, sample_size=16)

    def forward(self, pixels: Tensor) -> Any:
        latent = self.vae.encode(pixels).latent_dist
        return functional.mse_loss(self.vae.decode(latent.mode()).sample, pixels) + 1e-3 * latent.kl().mean()


_TRANSFORMERS: dict[str, Callable[[Any], Any]] = {
    "qwen3moe": _qwen3_moe, "deepseek": _deepseek_v3, "encodec": Codec, "mamba": _mamba, "mamba2": _mamba2,
    "convnext": _convnext, "bart": _bart, "whisper": _whisper, "gemma2": _gemma2, "swin": _swin,
    "wav2vec2": _wav2vec2, "deberta": _deberta, "bloom": _bloom, "clip": Clip, **more_families.TRANSFORMERS,
    **later_families.TRANSFORMERS, **fresh_families.TRANSFORMERS, **right_pairs.TRANSFORMERS,
    **unseen_families.TRANSFORMERS,
}  # fmt: skip
_OTHERS: dict[str, Callable[[], Any]] = {
    "denoiser": Denoiser, "image codec": ImageCodec, **more_families.DIFFUSERS, **later_families.OWN,
    **fresh_families.OWN, **unseen_families.OWN,
}  # fmt: skip
FAMILIES = {*_TRANSFORMERS, *_OTHERS}


def make_family(kind: str) -> Run:
    """A model of a family ready to train, always the same."""
    torch.manual_seed(5)
    if kind in _OTHERS:
        model = _OTHERS[kind]()
    else:
        import transformers

        model = _TRANSFORMERS[kind](transformers)
    model.train()
    parameters = list(model.parameters())
    groups = [
        {"params": [weight for weight in parameters if weight.dim() > 1], "weight_decay": 0.01},
        {"params": [weight for weight in parameters if weight.dim() <= 1], "weight_decay": 0.0},
    ]
    return Run(model, _batch(kind), torch.optim.AdamW(groups, lr=1e-5, foreach=False))


def _batch(kind: str) -> dict[str, Tensor]:
    if kind in {*more_families.TRANSFORMERS, *more_families.DIFFUSERS}:
        return more_families.batch(kind)
    if kind in {*later_families.TRANSFORMERS, *later_families.OWN}:
        return later_families.batch(kind)
    if kind in {*fresh_families.TRANSFORMERS, *fresh_families.OWN}:
        return fresh_families.batch(kind)
    if kind in {*unseen_families.TRANSFORMERS, *unseen_families.OWN}:
        return unseen_families.batch(kind)
    if kind in right_pairs.TRANSFORMERS:
        return right_pairs.batch(kind)
    tokens = torch.randint(3, 96, (2, 10))
    if kind in ("bart", "deberta"):
        mask = torch.ones_like(tokens)
        mask[0, 7:] = 0
        return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.flip(1)}
    pixels = torch.randn(2, 3, 16, 16)
    batches = {
        "encodec": {"wave": torch.randn(2, 1, 64)},
        "convnext": {"pixel_values": pixels, "labels": torch.tensor([1, 2])},
        "swin": {"pixel_values": pixels, "labels": torch.tensor([1, 2])},
        "whisper": {"input_features": torch.randn(2, 8, 24), "labels": tokens},
        "wav2vec2": {"input_values": torch.randn(2, 160), "labels": tokens[:, :5]},
        "clip": {"input_ids": torch.cat([tokens, torch.full((2, 1), 2)], 1), "pixel_values": pixels},
        "denoiser": {"pixels": pixels, "noise": torch.randn_like(pixels), "timesteps": torch.tensor([3, 400])},
        "image codec": {"pixels": pixels},
    }
    return batches.get(kind, {"input_ids": tokens, "labels": tokens.clone()})
