"""Families that no set before used, tiny: proteins, speech, forecasts, depth, documents, and some of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_WIDTH = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_TEXT: dict[str, Any] = {"vocab_size": 96, "attn_implementation": "eager", "pad_token_id": 0, **_WIDTH}
_DECODER: dict[str, Any] = {**_TEXT, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
_NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _esm(t: Any) -> Any:
    own = {"mask_token_id": 3, "token_dropout": True, "max_position_embeddings": 32}
    return t.EsmForMaskedLM(t.EsmConfig(**_TEXT, **_NO_DROPOUT, **own))


def _roformer(t: Any) -> Any:
    sizes = {"embedding_size": 32, "max_position_embeddings": 32}
    return t.RoFormerForMaskedLM(t.RoFormerConfig(**_TEXT, **_NO_DROPOUT, **sizes))


def _gpt_neo(t: Any) -> Any:
    sizes = {"vocab_size": 96, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 32}
    kinds = {"attention_types": [[["global", "local"], 1]], "window_size": 4, "attn_implementation": "eager"}
    return t.GPTNeoForCausalLM(t.GPTNeoConfig(**sizes, **kinds))


def _swinv2(t: Any) -> Any:
    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": 4}
    return t.Swinv2ForImageClassification(t.Swinv2Config(**sizes, drop_path_rate=0.0, num_labels=4))


def _wavlm(t: Any) -> Any:
    sizes = {"conv_dim": (16, 16), "conv_kernel": (4, 4), "conv_stride": (2, 2), "num_conv_pos_embeddings": 8}
    sizes |= {"num_conv_pos_embedding_groups": 2, "num_buckets": 16, "max_bucket_distance": 20}
    off = dict.fromkeys(("hidden_dropout", "activation_dropout", "attention_dropout", "final_dropout"), 0.0)
    off |= {"layerdrop": 0.0, "mask_time_prob": 0.0}
    config = t.WavLMConfig(**{**_TEXT, "vocab_size": 24}, **sizes, **off)
    model = t.WavLMForCTC(config)
    for layer in model.wavlm.encoder.layers:
        nn.init.normal_(layer.attention.gru_rel_pos_const)  # as after training
    return model


def _autoformer(t: Any) -> Any:
    sizes: dict[str, Any] = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "num_time_features": 1}
    sizes |= {"prediction_length": 4, "context_length": 12, "label_length": 4, "lags_sequence": [1, 2]}
    off = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    off |= {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
    return t.AutoformerForPrediction(t.AutoformerConfig(**sizes, **off, moving_average=3, scaling="mean"))


def _glpn(t: Any) -> Any:
    sizes = {"num_encoder_blocks": 4, "depths": [1] * 4, "sr_ratios": [4, 2, 1, 1], "num_attention_heads": [1, 1, 2, 2]}
    sizes |= {"hidden_sizes": [8, 8, 16, 16], "mlp_ratios": [2] * 4, "decoder_hidden_size": 8}
    return t.GLPNForDepthEstimation(t.GLPNConfig(**sizes, drop_path_rate=0.0))


def _falcon_h1(t: Any) -> Any:
    mamba = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_chunk_size": 4}
    scales = {"ssm_out_multiplier": 0.5, "attention_out_multiplier": 0.8, "key_multiplier": 0.7}
    return t.FalconH1ForCausalLM(t.FalconH1Config(**_DECODER, **mamba, **scales))


def _diffllama(t: Any) -> Any:
    return t.DiffLlamaForCausalLM(t.DiffLlamaConfig(**_DECODER))


def _codegen(t: Any) -> Any:
    sizes = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "n_ctx": 32, "rotary_dim": 4}
    return t.CodeGenForCausalLM(t.CodeGenConfig(**sizes, attn_implementation="eager"))


def _olmo(t: Any) -> Any:
    return t.OlmoForCausalLM(t.OlmoConfig(**_DECODER, clip_qkv=0.05))


def _siglip(t: Any) -> Any:
    both = {**_WIDTH, "attn_implementation": "eager"}
    text = {**both, "vocab_size": 96, "max_position_embeddings": 12, "eos_token_id": 2, "bos_token_id": 1}
    config = t.SiglipConfig(text_config=text, vision_config={**both, "image_size": 16, "patch_size": 4})
    return t.SiglipModel(config)


def _funnel(t: Any) -> Any:
    sizes = {"vocab_size": 96, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 32, "n_head": 4, "d_head": 8}
    off = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    return t.FunnelForMaskedLM(t.FunnelConfig(**sizes, **off, d_inner=64))


def _patchtsmixer(t: Any) -> Any:
    sizes: dict[str, Any] = {"context_length": 16, "patch_length": 4, "patch_stride": 4, "num_input_channels": 3}
    sizes |= {"d_model": 8, "num_layers": 2, "prediction_length": 4, "mode": "mix_channel"}
    return t.PatchTSMixerForPrediction(t.PatchTSMixerConfig(**sizes, dropout=0.0, head_dropout=0.0))


def _lilt(t: Any) -> Any:
    sizes = {"max_position_embeddings": 32, "max_2d_position_embeddings": 64, "channel_shrink_ratio": 2}
    config = t.LiltConfig(**{**_TEXT, "hidden_size": 48}, **_NO_DROPOUT, **sizes, num_labels=5)
    return t.LiltForTokenClassification(config)


def _convbert(t: Any) -> Any:
    sizes = {"embedding_size": 32, "conv_kernel_size": 3, "max_position_embeddings": 32}
    return t.ConvBertForMaskedLM(t.ConvBertConfig(**_TEXT, **_NO_DROPOUT, **sizes))


def _bottlenecks(t: Any) -> Any:
    sizes = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 2], "num_labels": 4}
    return t.ResNetForImageClassification(t.ResNetConfig(**sizes, layer_type="bottleneck"))


def _decision(t: Any) -> Any:
    sizes = {"state_dim": 5, "act_dim": 3, "hidden_size": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "max_ep_len": 32}
    return Decision(t.DecisionTransformerModel(t.DecisionTransformerConfig(**sizes, **off)))


def _xlstm(t: Any) -> Any:
    sizes = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "chunk_size": 4}
    kinds = {"mode": "train", "autocast_kernel_dtype": "float32", "use_cache": False}
    return t.xLSTMForCausalLM(t.xLSTMConfig(**sizes, **kinds, ffn_round_up_to_multiple_of=16))


class Decision(nn.Module):
    """The decision transformer of transformers, with a loss."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, actions: Tensor, **batch: Tensor) -> Tensor:
        return functional.mse_loss(self.inner(actions=actions, **batch).action_preds, actions)


class Denoiser(nn.Module):
    """A denoiser for any level of noise, which is scaled before and after the network, as in EDM."""

    def __init__(self) -> None:
        super().__init__()
        self.spread = 0.5
        self.level, self.enter, self.leave = (
            nn.Linear(1, 16),
            nn.Conv2d(3, 16, 3, padding=1),
            nn.Conv2d(16, 3, 3, padding=1),
        )
        self.block = nn.Sequential(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1))

    def forward(self, pixels: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
        sigma = sigma[:, None, None, None]
        total = sigma.square() + self.spread**2
        noisy = pixels + sigma * noise
        hidden = self.enter(noisy * total.rsqrt()) + self.level(sigma.flatten(1).log() / 4)[:, :, None, None]
        made = self.leave(hidden + self.block(hidden))
        clean = noisy * (self.spread**2 / total) + made * (sigma * self.spread * total.rsqrt())
        loss: Tensor = ((clean - pixels).square() * (total / (sigma * self.spread).square())).mean()
        return loss


class StateSpace(nn.Module):
    """A linear state space with complex, diagonal transitions, computed as a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.doubled = 2.0  # the other half of the states is conjugate
        self.embed, self.head = nn.Embedding(96, 16), nn.Linear(16, 96)
        self.decay, self.turn = nn.Parameter(torch.rand(16, 4)), nn.Parameter(torch.arange(4.0).repeat(16, 1))
        self.mix = nn.Parameter(torch.randn(16, 4, 2) * 0.5)
        self.step = nn.Parameter(torch.rand(16) * 0.5 + 0.1)

    def kernel(self, length: int) -> Tensor:
        rate = torch.complex(-self.decay.exp(), self.turn) * self.step[:, None]
        powers = (rate[..., None] * torch.arange(length)).exp()
        weights = torch.view_as_complex(self.mix) * (rate.exp() - 1) / rate
        return self.doubled * (weights[..., None] * powers).sum(1).real

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(input_ids).transpose(1, 2)
        size = 2 * x.shape[-1]
        product = torch.fft.rfft(x, n=size) * torch.fft.rfft(self.kernel(x.shape[-1]), n=size)
        y = functional.gelu(torch.fft.irfft(product, n=size)[..., : x.shape[-1]] + x).transpose(1, 2)
        return functional.cross_entropy(self.head(y)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


TRANSFORMERS: dict[str, Callable[[Any], Any]] = {
    "esm": _esm, "roformer": _roformer, "gptneo": _gpt_neo, "swinv2": _swinv2, "wavlm": _wavlm, "glpn": _glpn,
    "autoformer": _autoformer, "falconh1": _falcon_h1, "diffllama": _diffllama, "codegen": _codegen, "olmo": _olmo,
    "siglip": _siglip, "funnel": _funnel, "patchtsmixer": _patchtsmixer, "lilt": _lilt, "convbert": _convbert,
    "bottlenecks": _bottlenecks, "decision": _decision, "xlstm": _xlstm,
    "helium": lambda t: t.HeliumForCausalLM(t.HeliumConfig(**_DECODER, head_dim=8)),
}  # fmt: skip
OWN: dict[str, Callable[[], Any]] = {"edm": Denoiser, "statespace": StateSpace}


def batch(kind: str) -> dict[str, Tensor]:
    """What a family is trained on."""
    tokens, pixels = torch.randint(4, 95, (4, 12)), torch.randn(2, 3, 16, 16)
    masked = tokens.clone()
    masked[:, 3::5] = 3
    text = {"input_ids": tokens, "labels": tokens.clone()}
    times = {
        "past_values": torch.rand(4, 14).cumsum(1), "past_time_features": torch.rand(4, 14, 1),
        "past_observed_mask": torch.ones(4, 14), "future_values": torch.rand(4, 4) + 5,
        "future_time_features": torch.rand(4, 4, 1),
    }  # fmt: skip
    present = torch.ones(2, 6)
    present[0, :2] = 0
    steps = {
        "states": torch.randn(2, 6, 5), "actions": torch.randn(2, 6, 3).tanh(), "rewards": torch.randn(2, 6, 1),
        "returns_to_go": torch.rand(2, 6, 1), "timesteps": torch.arange(6).repeat(2, 1), "attention_mask": present,
    }  # fmt: skip
    corners, sizes = torch.randint(0, 30, (4, 12, 2)), torch.randint(1, 30, (4, 12, 2))
    pictures = {"pixel_values": pixels, "labels": torch.tensor([1, 3])}
    batches = {
        "esm": {"input_ids": masked, "attention_mask": torch.ones_like(tokens), "labels": tokens},
        "swinv2": pictures,
        "bottlenecks": pictures,
        "wavlm": {"input_values": torch.randn(2, 160), "labels": tokens[:2, :5] % 23 + 1},
        "glpn": {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.rand(2, 32, 32) * 5 + 1},
        "autoformer": times,
        "siglip": {"input_ids": tokens, "pixel_values": torch.randn(4, 3, 16, 16), "return_loss": torch.ones(1)},
        "patchtsmixer": {"past_values": torch.randn(4, 16, 3), "future_values": torch.randn(4, 4, 3)},
        "lilt": {**text, "labels": tokens % 5, "bbox": torch.cat([corners, corners + sizes], -1)},
        "decision": steps,
        "edm": {"pixels": pixels, "noise": torch.randn_like(pixels), "sigma": torch.tensor([0.1, 3.0])},
    }  # fmt: skip
    return batches.get(kind, text)
