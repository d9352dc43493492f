"""A character-level GPT in the manner of nanoGPT: one Trainer object, random offsets into a corpus."""
import math

import torch
import torch.nn as nn
from torch.nn import functional as F

corpus = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer. " * 4000
chars = sorted(set(corpus))
stoi = {c: i for i, c in enumerate(chars)}


class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))


class Trainer:
    def __init__(self, batch_size=16, block_size=128, n_embd=64, max_iters=14):
        self.batch_size, self.block_size, self.max_iters = batch_size, block_size, max_iters
        self.wte, self.wpe = nn.Embedding(len(chars), n_embd), nn.Embedding(block_size, n_embd)
        self.h, self.lm_head = nn.Sequential(Block(n_embd, 4), Block(n_embd, 4)), nn.Linear(n_embd, len(chars))
        self.modules = nn.ModuleList([self.wte, self.wpe, self.h, self.lm_head])
        self.optimizer = torch.optim.AdamW(self.modules.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)

    def get_batch(self):
        ix = [(i * 7919) % (len(corpus) - self.block_size - 1) for i in range(self.batch_size)]
        data = [stoi[c] for c in corpus]  # slow: NPK801
        x = torch.stack([torch.tensor(data[i : i + self.block_size]) for i in ix])
        y = torch.stack([torch.tensor(data[i + 1 : i + 1 + self.block_size]) for i in ix])
        return x, y

    def get_lr(self, it):
        return 1e-3 * 0.5 * (1 + math.cos(math.pi * it / self.max_iters))

    def train(self):
        pos = torch.arange(self.block_size)
        for it in range(self.max_iters):
            for group in self.optimizer.param_groups:
                group["lr"] = self.get_lr(it)
            X, Y = self.get_batch()
            logits = self.lm_head(self.h(self.wte(X) + self.wpe(pos)))
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), Y.view(-1))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.modules.parameters(), 1.0)
            self.optimizer.step()


if __name__ == "__main__":
    Trainer().train()
