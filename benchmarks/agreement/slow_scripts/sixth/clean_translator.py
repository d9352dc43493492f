"""An encoder and a decoder that reads its own past, with masks made once."""
import torch
from torch import nn

device = torch.accelerator.current_accelerator() or torch.device("cpu")
source, target = nn.Embedding(3000, 256, device=device), nn.Embedding(3000, 256, device=device)
both = nn.Transformer(256, 4, 2, 2, 1024, dropout=0.0, batch_first=True, norm_first=True, device=device)
weights = [*source.parameters(), *target.parameters(), *both.parameters()]
optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
past = nn.Transformer.generate_square_subsequent_mask(96, device=device)
german, english = (torch.randint(0, 3000, (8, 97), device=device) for _ in range(2))
for step in range(12):
    hidden = both(source(german), target(english[:, :-1]), tgt_mask=past, tgt_is_causal=True)
    loss = nn.functional.cross_entropy((hidden @ target.weight.t()).flatten(0, 1), english[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
