"""Gradients of two halves of a batch are added up before the optimizer's step."""
import torch
from torch import nn

layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True)
encoder, head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(128, 20)
weights = [*encoder.parameters(), *head.parameters()]
optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
tokens, labels = torch.randn(32, 128, 128), torch.randint(0, 20, (32,))
for step in range(12):
    for half, wanted in zip(tokens.chunk(2), labels.chunk(2)):
        loss = nn.functional.cross_entropy(head(encoder(half).mean(1)), wanted) / 2
        loss.backward()
    nn.utils.clip_grad_norm_(weights, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
