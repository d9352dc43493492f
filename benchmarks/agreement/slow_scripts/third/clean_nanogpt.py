"""Pretraining with accumulated gradients, as many scripts after nanoGPT have it."""
import torch
from torch import nn
from torch.nn import functional as F

gradient_accumulation_steps, batch_size, block_size, vocab_size = 2, 4, 128, 1024
layer = nn.TransformerEncoderLayer(384, 6, 1536, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
model = nn.ModuleDict({"wte": nn.Embedding(vocab_size, 384), "h": nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)})
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1, fused=True)
data = torch.randint(0, vocab_size, (200_000,))
mask = nn.Transformer.generate_square_subsequent_mask(block_size)


def get_batch():
    ix = torch.randint(len(data) - block_size - 1, (batch_size, 1)) + torch.arange(block_size + 1)
    rows = data[ix]
    return rows[:, :-1], rows[:, 1:]


X, Y = get_batch()
for iter_num in range(14):
    for micro_step in range(gradient_accumulation_steps):
        hidden = model["h"](model["wte"](X), mask=mask, is_causal=True)
        loss = F.cross_entropy((hidden @ model["wte"].weight.t()).flatten(0, 1), Y.flatten())
        X, Y = get_batch()
        (loss / gradient_accumulation_steps).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
