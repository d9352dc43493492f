"""Faults in models, and of kinds, that precision's tolerances were not tuned on; otherwise as precision_faults.py.

    python benchmarks/precision_held_out.py [--only NAME]

Eight small models that the other benchmark does not have: BERT, T5, a mixture of experts, a vision transformer, a GRU,
a recommender with embedding bags, a variational autoencoder and a network over one-dimensional signals.
"""

from __future__ import annotations

from typing import Any

import torch
from precision_faults import (  # type: ignore[import-not-found]  # the folder is no package
    Clean,
    Fault,
    Run,
    evaluate,
    one_nan,
    one_percent,
    permuted,
    setting,
    stale,
    threads,
    to_bf16,
)
from torch import Tensor, nn
from torch.nn import functional


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
    if kind == "t5":
        sizes |= {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
        sizes |= {"decoder_start_token_id": 0}
        return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))
    sizes |= {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    if kind == "bert":
        sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
    sizes |= {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes))


def make(kind: str) -> Run:
    torch.manual_seed(3)
    own = {"vit": Vit, "gru": Gru, "bags": Recommender, "vae": Autoencoder, "signal": Signal}
    model: nn.Module = own[kind]() if kind in own else transformer(kind)
    tokens = torch.randint(1, 96, (3, 10))
    batches = {
        "vit": {"pixels": torch.randn(4, 3, 16, 16), "labels": torch.randint(0, 10, (4,))},
        "bags": {"numbers": torch.randn(6, 5), "items": torch.randint(0, 50, (6, 3, 4)), "labels": torch.ones(6).bernoulli(0.5)},
        "vae": {"values": torch.randn(5, 48), "noise": torch.randn(5, 8)},
        "signal": {"wave": torch.randn(4, 1, 64), "labels": torch.randint(0, 4, (4,))},
    }  # fmt: skip
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, foreach=False)
    if kind in ("bert", "moe", "vae"):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=kind == "vae", foreach=False)  # type: ignore[assignment]
    return Run(model, batches.get(kind, {"input_ids": tokens, "labels": tokens.clone()}), optimizer)


# What wrong kernels do here and not there


def last_column_twice(x: Tensor) -> Tensor:
    x[..., -2] = x[..., -1]
    return x


def clamped(x: Tensor) -> Tensor:
    return x.clamp(-0.05, 0.05)


def smallest_bits_lost(x: Tensor) -> Tensor:
    bits = x.contiguous().view(torch.int32)
    return (bits & ~0x3FF).view(torch.float32)


def one_row_scaled(x: Tensor) -> Tensor:
    x.view(-1)[: x.shape[-1]] *= 0.97
    return x


def frozen(path: str) -> Any:
    return lambda run: run.model.get_submodule(path).requires_grad_(False) and None


def attention_not_scaled(run: Run) -> None:
    run.model.bert.encoder.layer[1].attention.self.scaling = 1.0


def summed_loss(run: Run) -> None:
    forward = functional.binary_cross_entropy_with_logits
    run.model.forward = lambda **batch: _with(forward, run, batch)


def _with(forward: Any, run: Run, batch: Any) -> Any:
    functional.binary_cross_entropy_with_logits = lambda *a: forward(*a, reduction="sum")
    try:
        return type(run.model).forward(run.model, **batch)
    finally:
        functional.binary_cross_entropy_with_logits = forward


def channels_in_eval(path: str) -> Any:
    return lambda run: run.model.get_submodule(path).eval() and None


# ruff: noqa: E501
FAULTS = [
    Fault("bert", "GELU cuts off large values", "gelu", 1, clamped),
    Fault("bert", "attention is not scaled", patch=attention_not_scaled, expected=r"argument: mul in bert\.encoder\.layer\.1\.attention\.self"),
    Fault("bert", "backward: GELU off in one row", "gelu_backward", 1, one_row_scaled),
    Fault("t5", "relative positions off by one", "embedding", 1, last_column_twice),
    Fault("t5", "softmax loses its last ten bits", "_softmax", 3, smallest_bits_lost),
    Fault("t5", "backward: product permuted", "mm", 40, permuted),
    Fault("moe", "weights of experts off by 1%", "topk", 0, one_percent),
    Fault("moe", "backward: stale gradient of a gather", "index_put_", 0, stale),
    Fault("vit", "layer norm off in one row", "native_layer_norm", 2, one_row_scaled),
    Fault("vit", "label smoothing differs", patch=lambda run: setattr(run.model, "forward", _smoothless(run.model)), expected=r"(missing|argument|operator|source|shape): .*(nll_loss|sum|mul|add|div|mean|log_softmax)"),
    Fault("gru", "a state in bf16", "tanh_", 9, to_bf16),
    Fault("gru", "a frozen layer", patch=frozen("head"), expected=r"(gradients of head|head|SGD\.step)"),
    Fault("bags", "embedding bag lost a column", "_embedding_bag", 1, last_column_twice),
    Fault("bags", "batch norm in eval mode", patch=channels_in_eval("dense.2"), expected=r"batch_norm.* in dense\.2"),
    Fault("bags", "loss summed, not averaged", patch=summed_loss, expected=r"binary_cross_entropy|mean|sum"),
    Fault("vae", "exponential loses bits", "exp", 0, smallest_bits_lost),
    Fault("vae", "backward: softplus gives a NaN", "softplus_backward", 0, one_nan),
    Fault("vae", "optimizer: second moment off by 1%", "addcmul_", 3, one_percent),
    Fault("signal", "instance norm's epsilon", patch=setting("norm", "eps", 1e-2), expected=r"argument: .*norm.* in norm"),
    Fault("signal", "pooling shifted", "avg_pool2d", 0, last_column_twice),
]  # fmt: skip


def _smoothless(model: nn.Module) -> Any:
    def forward(pixels: Tensor, labels: Tensor) -> Tensor:
        tokens = model.patch(pixels).flatten(2).transpose(1, 2) + model.positions  # type: ignore[operator]
        return functional.cross_entropy(model.head(model.encoder(tokens).mean(1)), labels)  # type: ignore[operator]

    return forward


def contiguous_batch(run: Run) -> None:
    run.batch = {name: each.t().contiguous().t() if each.dim() == 2 else each for name, each in run.batch.items()}


CLEAN: list[Clean] = [
    ("bert", "two threads", threads, "ops"),
    ("t5", "foreach optimizer", lambda run: _sgd(run, foreach=True), "ops"),
    ("moe", "two threads, modules", threads, "modules"),
    ("vit", "fused optimizer", lambda run: _sgd(run, fused=True), "ops"),
    ("gru", "another memory layout", contiguous_batch, "ops"),
    ("signal", "two threads", threads, "ops"),
]


def _sgd(run: Run, **kind: bool) -> None:
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.05, momentum=0.9, nesterov=True, **kind)


if __name__ == "__main__":
    evaluate(FAULTS, CLEAN, make)
