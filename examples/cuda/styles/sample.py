"""Generate from a small transformer: nothing is trained, and no loss is printed."""
import torch
import torch.nn.functional as F
from torch import nn


class Decoder(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.embed, self.position = nn.Embedding(64, width), nn.Embedding(32, width)
        self.qkv, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, 64, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens) + self.position(torch.arange(tokens.size(1), device=tokens.device))
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5
        mask = torch.ones(t, t, dtype=torch.bool).tril().to("cuda")
        scores = scores.masked_fill(~mask, float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))
        return self.head(x)


@torch.no_grad()
def generate(model, tokens, count, temperature=0.8, top_k=10):
    for _ in range(count):
        logits = model(tokens)[:, -1] / temperature
        least = torch.topk(logits, top_k).values[:, -1:]
        logits[logits < least] = -float("inf")
        tokens = torch.cat([tokens, torch.multinomial(F.softmax(logits, dim=-1), 1)], dim=1)
    return tokens


torch.manual_seed(7)
torch.cuda.manual_seed(7)
model = Decoder().eval().cuda()
print(generate(model, torch.tensor([[1, 2, 3]]).cuda(), 16).tolist())
