"""Further families, tiny: experts, recurrences, encoder-decoders, speech, images, and nets of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

_WIDTH = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_TEXT: dict[str, Any] = {"vocab_size": 96, "attn_implementation": "eager", **_WIDTH}


def _random_routers(model: nn.Module) -> Any:
    for name, weight in model.named_parameters():
        if name.endswith(("router.weight", "gate.weight")):
            nn.init.normal_(weight, std=0.3)  # else all experts are equally likely
    return model


def _granite_moe(t: Any) -> Any:
    sizes = {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "attention_multiplier": 0.35}
    return _random_routers(t.GraniteMoeForCausalLM(t.GraniteMoeConfig(**_TEXT, **sizes)))


def _ernie_moe(t: Any) -> Any:
    experts = {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16, "moe_num_shared_experts": 1}
    return _random_routers(t.Ernie4_5_MoeForCausalLM(t.Ernie4_5_MoeConfig(**_TEXT, num_key_value_heads=2, **experts)))


def _bamba(t: Any) -> Any:
    sizes = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 4, "mamba_chunk_size": 4}
    return t.BambaForCausalLM(t.BambaConfig(**_TEXT, **sizes, num_key_value_heads=2, attn_layer_indices=[1]))


def _recurrent_gemma(t: Any) -> Any:
    sizes = {**_TEXT, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8, "num_key_value_heads": 1}
    return t.RecurrentGemmaForCausalLM(t.RecurrentGemmaConfig(**sizes))


def _rwkv(t: Any) -> Any:
    return t.RwkvForCausalLM(t.RwkvConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, context_length=16))


def _opt(t: Any) -> Any:
    sizes = {"vocab_size": 96, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    off = {"dropout": 0.0, "word_embed_proj_dim": 32, "max_position_embeddings": 16}
    return t.OPTForCausalLM(t.OPTConfig(**sizes, **off, attn_implementation="eager"))


def _starcoder2(t: Any) -> Any:
    return t.Starcoder2ForCausalLM(t.Starcoder2Config(**_TEXT, num_key_value_heads=2, sliding_window=4))


def _gpt_neox(t: Any) -> Any:
    rotary = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    config = t.GPTNeoXConfig(**_TEXT, pad_token_id=0, num_labels=3, rope_parameters=rotary)
    return t.GPTNeoXForSequenceClassification(config)


def _cohere(t: Any) -> Any:
    return t.CohereForCausalLM(t.CohereConfig(**_TEXT, num_key_value_heads=2, use_qk_norm=True))


def _phi(t: Any) -> Any:
    return t.PhiForCausalLM(t.PhiConfig(**_TEXT, num_key_value_heads=2))


def _stablelm(t: Any) -> Any:
    return t.StableLmForCausalLM(t.StableLmConfig(**_TEXT, num_key_value_heads=2))


def _albert(t: Any) -> Any:
    config = t.AlbertConfig(**{**_TEXT, "num_hidden_layers": 3}, embedding_size=16, max_position_embeddings=32)
    return t.AlbertForMaskedLM(config)


def _umt5(t: Any) -> Any:
    sizes = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    return t.UMT5ForConditionalGeneration(t.UMT5Config(**sizes, dropout_rate=0.0, attn_implementation="eager"))


def _longformer(t: Any) -> Any:
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = t.LongformerConfig(**{**_TEXT, "attn_implementation": None}, **off, attention_window=4)
    return t.LongformerForMaskedLM(config)


def _hubert(t: Any) -> Any:
    sizes = {"conv_dim": (16, 16), "conv_kernel": (4, 4), "conv_stride": (2, 2), "num_conv_pos_embeddings": 8}
    off = dict.fromkeys(("hidden_dropout", "activation_dropout", "attention_dropout", "final_dropout"), 0.0)
    off |= {"layerdrop": 0.0, "mask_time_prob": 0.0, "num_conv_pos_embedding_groups": 4, "classifier_proj_size": 16}
    config = t.HubertConfig(**_TEXT, **sizes, **off, use_weighted_layer_sum=True, num_labels=4)
    return t.HubertForSequenceClassification(config)


def _moonshine(t: Any) -> Any:
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "attn_implementation": "eager"}
    layers = {"encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2}
    heads = {"encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4, "pad_token_id": 0}
    return t.MoonshineForConditionalGeneration(t.MoonshineConfig(**sizes, **layers, **heads))


def _segformer(t: Any) -> Any:
    sizes = {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [16, 32]}
    sizes |= {"patch_sizes": [3, 3], "strides": [2, 2], "num_attention_heads": [2, 4], "mlp_ratios": [2, 2]}
    off = {"drop_path_rate": 0.0, "classifier_dropout_prob": 0.0, "decoder_hidden_size": 16, "num_labels": 5}
    return t.SegformerForSemanticSegmentation(t.SegformerConfig(**sizes, **off, attn_implementation="eager"))


def _efficientnet(t: Any) -> Any:
    sizes = {"width_coefficient": 0.25, "depth_coefficient": 0.3, "image_size": 32, "hidden_dim": 320}
    config = t.EfficientNetConfig(**sizes, dropout_rate=0.0, drop_connect_rate=0.0, num_labels=4)
    return t.EfficientNetForImageClassification(config)


class Sd3(nn.Module):
    """The transformer of Stable Diffusion 3, trained to predict a velocity."""

    target = "velocity"

    def __init__(self) -> None:
        super().__init__()
        from diffusers import SD3Transformer2DModel  # type: ignore[import-not-found]

        sizes = {"sample_size": 8, "num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 2}
        widths = {"joint_attention_dim": 12, "caption_projection_dim": 16, "pooled_projection_dim": 10}
        self.net = SD3Transformer2DModel(**sizes, **widths, in_channels=4, out_channels=4, pos_embed_max_size=8)

    def forward(self, pixels: Tensor, noise: Tensor, timesteps: Tensor, prompt: Tensor, pooled: Tensor) -> Tensor:
        out = self.net(pixels * 0.4 + noise * 0.6, prompt, pooled, timesteps).sample
        return functional.mse_loss(out, noise - pixels if self.target == "velocity" else noise)


class Tagger(nn.Module):
    """A bidirectional LSTM over rows of different lengths."""

    packs = True

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(96, 16)
        self.lstm = nn.LSTM(16, 12, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 5)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        hidden = self.embed(input_ids)
        if self.packs:
            lengths = (input_ids != 0).sum(1)
            packed, _ = self.lstm(pack_padded_sequence(hidden, lengths, batch_first=True, enforce_sorted=False))
            states, _ = pad_packed_sequence(packed, batch_first=True, total_length=input_ids.shape[1])
        else:
            states, _ = self.lstm(hidden)
        return functional.cross_entropy(self.head(states).flatten(0, 1), labels.flatten(), ignore_index=-100)


class Forecaster(nn.Module):
    """Dilated causal convolutions with weight normalisation, and a regression on top."""

    squeezes = True

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.layers = nn.ModuleList(norm(nn.Conv1d(3 if n == 0 else 8, 8, 3, dilation=2**n)) for n in range(3))
        self.head = nn.Linear(8, 1)

    def forward(self, wave: Tensor, targets: Tensor) -> Any:
        for n, layer in enumerate(self.layers):
            wave = functional.elu(layer(functional.pad(wave, (2 * 2**n, 0))))
        value = self.head(wave[..., -1])
        return ((value.squeeze(1) if self.squeezes else value) - targets).square().mean()


def _qwen2_moe(t: Any) -> Any:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    sizes = {**experts, "shared_expert_intermediate_size": 32, "num_key_value_heads": 2}
    return _random_routers(t.Qwen2MoeForCausalLM(t.Qwen2MoeConfig(**_TEXT, **sizes)))


def _nemotron(t: Any) -> Any:
    return t.NemotronForCausalLM(t.NemotronConfig(**_TEXT, num_key_value_heads=2, bos_token_id=1, eos_token_id=2))


def _falcon(t: Any) -> Any:
    config = t.FalconConfig(**_TEXT, bos_token_id=1, eos_token_id=2, new_decoder_architecture=True, num_kv_heads=2)
    return t.FalconForCausalLM(config)


def _pegasus(t: Any) -> Any:
    sizes = {"vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64}
    sizes |= {"decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = t.PegasusConfig(**sizes, dropout=0.0, scale_embedding=True, attn_implementation="eager")
    return t.PegasusForConditionalGeneration(config)


def _dinov2(t: Any) -> Any:
    sizes = {"image_size": 16, "patch_size": 4, "mlp_ratio": 2, "num_labels": 5, "attn_implementation": "eager"}
    config = t.Dinov2Config(**sizes, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    return t.Dinov2ForImageClassification(config)


class Graph(nn.Module):
    """Messages along edges, summed at their ends."""

    mean = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, nodes: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            hidden = layer(nodes)
            summed = torch.zeros_like(hidden).index_add(0, edges[1], hidden[edges[0]])
            if self.mean:
                summed = summed / torch.bincount(edges[1], minlength=len(nodes)).clamp(min=1)[:, None]
            nodes = functional.relu(hidden + summed)
        return functional.cross_entropy(self.head(nodes), labels)


class Critic(nn.Module):
    """Convolutions with spectral normalisation, trained by a hinge."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.spectral_norm
        self.first, self.second = norm(nn.Conv2d(3, 8, 3, stride=2)), norm(nn.Conv2d(8, 8, 3))
        self.head = nn.Linear(8, 1)

    def forward(self, pixels: Tensor, signs: Tensor) -> Tensor:
        hidden = functional.leaky_relu(self.second(functional.leaky_relu(self.first(pixels), 0.2)), 0.2)
        return functional.relu(1 - signs * self.head(hidden.mean((2, 3)))[:, 0]).mean()


class Sequence(nn.Module):
    """A GRU that predicts a value at each place that is no padding."""

    masked = True

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 12, batch_first=True, bidirectional=True), nn.Linear(24, 1)

    def forward(self, values: Tensor, targets: Tensor, mask: Tensor) -> Any:
        loss = (self.head(self.rnn(values)[0])[..., 0] - targets).abs()
        return (loss * mask).sum() / mask.sum() if self.masked else (loss * mask).mean()


TRANSFORMERS: dict[str, Callable[[Any], Any]] = {
    "granitemoe": _granite_moe, "erniemoe": _ernie_moe, "bamba": _bamba, "recurrentgemma": _recurrent_gemma,
    "rwkv": _rwkv, "opt": _opt, "starcoder2": _starcoder2, "gptneox": _gpt_neox, "cohere": _cohere, "phi": _phi,
    "stablelm": _stablelm, "albert": _albert, "umt5": _umt5, "longformer": _longformer, "hubert": _hubert,
    "moonshine": _moonshine, "segformer": _segformer, "efficientnet": _efficientnet, "qwen2moe": _qwen2_moe,
    "nemotron": _nemotron, "falcon": _falcon, "pegasus": _pegasus, "dinov2": _dinov2,
}  # fmt: skip
OWN: dict[str, Callable[[], Any]] = {
    "sd3": Sd3, "tagger": Tagger, "forecaster": Forecaster, "graph": Graph, "critic": Critic, "sequence": Sequence,
}  # fmt: skip


def batch(kind: str) -> dict[str, Tensor]:
    """What a family is trained on."""
    tokens, latents = torch.randint(3, 95, (2, 10)), torch.randn(2, 4, 8, 8)
    padded = tokens.clone()
    padded[0, 7:] = 0
    pixels, tags = torch.randn(2, 3, 32, 32), torch.randint(0, 5, (2, 10)).where(padded != 0, -100)
    conditions = {"timesteps": torch.tensor([3.0, 400.0]), "prompt": torch.randn(2, 5, 12)}
    batches = {
        "gptneox": {"input_ids": padded, "labels": torch.tensor([0, 2])},
        "albert": {"input_ids": padded, "attention_mask": (padded != 0).long(), "labels": tokens},
        "umt5": {"input_ids": padded, "attention_mask": (padded != 0).long(), "labels": tokens.flip(1)},
        "hubert": {"input_values": torch.randn(2, 160), "labels": torch.tensor([1, 3])},
        "moonshine": {"input_values": torch.randn(2, 2000), "labels": tokens},
        "segformer": {"pixel_values": pixels, "labels": torch.randint(0, 5, (2, 32, 32))},
        "efficientnet": {"pixel_values": pixels, "labels": torch.tensor([1, 3])},
        "sd3": {"pixels": latents, "noise": torch.randn_like(latents), **conditions, "pooled": torch.randn(2, 10)},
        "tagger": {"input_ids": padded, "labels": tags},
        "dinov2": {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([1, 3])},
        "graph": {
            "nodes": torch.randn(12, 6), "edges": torch.randint(0, 12, (2, 40)), "labels": torch.randint(0, 3, (12,)),
        },
        "critic": {"pixels": torch.randn(4, 3, 12, 12), "signs": torch.tensor([1.0, -1.0, 1.0, -1.0])},
        "sequence": {
            "values": torch.randn(3, 9, 4), "targets": torch.randn(3, 9),
            "mask": (torch.arange(9) < torch.tensor([[9], [6], [4]])).float(),
        },
        "forecaster": {"wave": torch.randn(6, 3, 24), "targets": torch.randn(6)},
    }  # fmt: skip
    return batches.get(kind, {"input_ids": tokens, "labels": tokens.clone()})
