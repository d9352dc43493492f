"""Fourteen small models with a batch and an optimizer each: six that precision was tuned on, eight that it was not."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.agreement.planted_faults.families import FAMILIES, make_family
from benchmarks.agreement.planted_faults.faults import Run
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layers = nn.Conv2d(3, 8, 3), nn.Sequential(Residual(8), nn.MaxPool2d(2), Residual(8))
        self.head = nn.Linear(8, 10)

    def forward(self, pixels: Tensor, labels: Tensor) -> Any:
        return nn.functional.cross_entropy(self.head(self.layers(self.stem(pixels)).mean((2, 3))), labels)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm, self.middle = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(11, 3, 1)

    def forward(self, pixels: Tensor, labels: Tensor) -> Any:
        low = nn.functional.silu(self.norm(self.down(pixels)))
        up = self.up(torch.cat([low, self.middle(low)], 1))
        return (self.out(torch.cat([up, pixels], 1)) - pixels.flip(3)).square().mean()


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(96, 16), nn.LSTMCell(16, 24), nn.Linear(24, 96)

    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> Any:
        state, outputs = (torch.zeros(len(input_ids), 24), torch.zeros(len(input_ids), 24)), []
        for column in self.embed(input_ids).unbind(1):
            state = self.cell(column, state)
            outputs.append(self.head(state[0]))
        return nn.functional.cross_entropy(torch.stack(outputs[:-1], 1).flatten(0, 1), labels[:, 1:].flatten())


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 4, stride=4)
        self.positions = nn.Parameter(torch.randn(1, 16, 32) * 0.02)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        tokens = self.patch(pixels).flatten(2).transpose(1, 2) + self.positions
        return functional.cross_entropy(self.head(self.encoder(tokens).mean(1)), labels, label_smoothing=0.1)


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(96, 16, padding_idx=0), nn.GRU(16, 24, 2), nn.Linear(24, 96)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        states, _ = self.rnn(self.embed(input_ids).transpose(0, 1))
        return functional.cross_entropy(self.head(states[:-1]).flatten(0, 1), labels.t()[1:].flatten())


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 8, mode="sum") for _ in range(3))
        self.dense = nn.Sequential(nn.Linear(5, 8), nn.PReLU(), nn.BatchNorm1d(8))
        self.over = nn.Linear(8 + 6, 1)

    def forward(self, numbers: Tensor, items: Tensor, labels: Tensor) -> Tensor:
        parts = torch.stack([self.dense(numbers), *(bag(items[:, n]) for n, bag in enumerate(self.bags))], 1)
        products = torch.bmm(parts, parts.transpose(1, 2))
        row, column = torch.tril_indices(4, 4, -1)
        features = torch.cat([parts[:, 0], products[:, row, column]], 1)
        return functional.binary_cross_entropy_with_logits(self.over(features)[:, 0], labels)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mean, self.log_var = nn.Linear(48, 32), nn.Linear(32, 8), nn.Linear(32, 8)
        self.decode = nn.Sequential(nn.Linear(8, 32), nn.Softplus(), nn.Linear(32, 48))

    def forward(self, values: Tensor, noise: Tensor) -> Any:
        hidden = functional.elu(self.encode(values))
        mean, log_var = self.mean(hidden), self.log_var(hidden).clamp(-6, 6)
        again = self.decode(mean + noise * (0.5 * log_var).exp())
        divergence = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
        return functional.smooth_l1_loss(again, values) + 0.1 * divergence


class Signal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(1, 8, 9, padding=4), nn.InstanceNorm1d(8, affine=True)
        self.gate, self.last = nn.Conv1d(8, 16, 5, padding=4, dilation=2), nn.Conv1d(8, 4, 1)

    def forward(self, wave: Tensor, labels: Tensor) -> Tensor:
        hidden = functional.glu(self.gate(functional.leaky_relu(self.norm(self.first(wave)))), dim=1)
        low = functional.interpolate(functional.avg_pool1d(self.last(hidden), 4), scale_factor=2.0, mode="linear")
        return functional.nll_loss(functional.log_softmax(low.logsumexp(2), 1), labels)


def transformer(kind: str) -> Any:
    import transformers

    sizes: dict[str, Any] = {"vocab_size": 96, "attn_implementation": "eager"}
    if kind == "gpt2":
        sizes |= {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
        sizes |= {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    if kind == "t5":
        sizes |= {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
        sizes |= {"decoder_start_token_id": 0}
        return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))
    sizes |= {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    if kind == "bert":
        sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
    sizes |= {"num_key_value_heads": 2}
    if kind == "moe":
        sizes |= {"num_local_experts": 4, "num_experts_per_tok": 2}
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes))
    if kind == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes))


OWN = {
    "resnet": ResNet,
    "unet": UNet,
    "lstm": Lstm,
    "vit": Vit,
    "gru": Gru,
    "bags": Recommender,
    "vae": Autoencoder,
    "signal": Signal,
}
HELD_OUT = ("bert", "t5", "moe", "vit", "gru", "bags", "vae", "signal")


def make(kind: str) -> Run:
    """A model ready to train, always the same."""
    if kind in FAMILIES:
        return make_family(kind)
    torch.manual_seed(3 if kind in HELD_OUT else 0)
    model: nn.Module = OWN[kind]() if kind in OWN else transformer(kind)
    model.train()
    if kind in HELD_OUT:
        return Run(model, held_out_batch(kind), held_out_optimizer(kind, model))
    run = Run(model, tuned_batch(kind), torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False))
    torch.manual_seed(1)
    return run


def tuned_batch(kind: str) -> dict[str, Tensor]:
    if kind in ("resnet", "unet"):
        return {"pixels": torch.randn(4, 3, 14, 14), "labels": torch.randint(0, 10, (4,))}
    tokens = torch.randint(0, 96, (2, 12))
    mask = torch.ones_like(tokens)
    if kind != "gpt2":
        mask[0, :4] = 0
    return {"input_ids": tokens, "labels": tokens.clone(), "attention_mask": mask}


def held_out_batch(kind: str) -> dict[str, Tensor]:
    tokens = torch.randint(1, 96, (3, 10))
    batches = {
        "vit": {"pixels": torch.randn(4, 3, 16, 16), "labels": torch.randint(0, 10, (4,))},
        "bags": {
            "numbers": torch.randn(6, 5),
            "items": torch.randint(0, 50, (6, 3, 4)),
            "labels": torch.ones(6).bernoulli(0.5),
        },
        "vae": {"values": torch.randn(5, 48), "noise": torch.randn(5, 8)},
        "signal": {"wave": torch.randn(4, 1, 64), "labels": torch.randint(0, 4, (4,))},
    }
    return batches.get(kind, {"input_ids": tokens, "labels": tokens.clone()})


def held_out_optimizer(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    if kind in ("bert", "moe", "vae"):
        return torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=kind == "vae", foreach=False)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, foreach=False)
