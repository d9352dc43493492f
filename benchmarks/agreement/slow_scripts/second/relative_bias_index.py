"""Windowed attention as in Swin, with the index of the bias table made in forward."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class WindowAttention(nn.Module):
    def __init__(self, dim=32, window=16, heads=2):
        super().__init__()
        self.window, self.heads = window, heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))

    def relative_index(self):
        w = self.window
        grid = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")).flatten(1)  # slow: NPK819
        diff = grid[:, :, None] - grid[:, None, :]  # slow: NPK819
        diff = diff.permute(1, 2, 0).contiguous()  # slow: NPK819
        return (diff[..., 0] + w - 1) * (2 * w - 1) + diff[..., 1] + w - 1  # slow: NPK819

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.table[self.relative_index().view(-1)].view(N, N, -1).permute(2, 0, 1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None].expand(B, -1, -1, -1))
        return out.transpose(1, 2).reshape(B, N, C)


net = nn.ModuleList([WindowAttention() for _ in range(4)])
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
for step in range(14):
    x = torch.randn(1, 256, 32)
    for layer in net:
        x = x + layer(x)
    optimizer.zero_grad()
    x.square().mean().backward()
    optimizer.step()
