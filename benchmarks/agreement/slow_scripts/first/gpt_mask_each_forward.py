"""A small GPT after a well-known tutorial."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

block_size, n_embd, n_head, vocab = 1024, 64, 2, 200


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(n_embd, dim=2)
        q, k, v = (t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in (q, k, v))
        mask = torch.full((B, n_head, T, T), float("-inf"))  # slow: NPK819
        mask = torch.triu(mask, diagonal=1)  # slow: NPK819
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention()
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln(x))
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab, n_embd)
        self.h = nn.ModuleList([Block() for _ in range(3)])
        self.lm_head = nn.Linear(n_embd, vocab)

    def forward(self, idx, targets):
        x = self.wte(idx) * math.sqrt(n_embd)
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.lm_head(x).flatten(0, 1), targets.flatten())


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
tokens = torch.randint(0, vocab, (2, 40000))
for it in range(14):
    ix = it * block_size
    loss = model(tokens[:, ix : ix + block_size], tokens[:, ix + 1 : ix + 1 + block_size])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
