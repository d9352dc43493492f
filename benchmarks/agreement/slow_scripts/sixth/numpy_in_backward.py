"""An operator of one's own whose gradient was written with numpy, pair by pair."""
import numpy as np
import torch
from torch import nn

device = torch.accelerator.current_accelerator() or torch.device("cpu")


class SoftRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores):
        ctx.save_for_backward(scores)
        return torch.sigmoid(scores[:, :, None] - scores[:, None, :]).sum(-1)

    @staticmethod
    def backward(ctx, given):
        scores, given = ctx.saved_tensors[0].cpu().numpy(), given.cpu().numpy()
        result = np.zeros_like(scores)
        for row in range(scores.shape[0]):
            for i in range(scores.shape[1]):
                slope = 1 / (1 + np.exp(scores[row] - scores[row, i]))  # slow: NPK801
                slope = slope * (1 - slope)  # slow: NPK801
                result[row, i] += (slope * (given[row, i] - given[row])).sum()  # slow: NPK801
        return torch.from_numpy(result).to(device)


ranker = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.Adam(ranker.parameters(), lr=1e-3, foreach=True)
documents, wanted = torch.randn(32, 48, 32, device=device), torch.rand(32, 48, device=device) * 48
for step in range(12):
    ranks = SoftRank.apply(ranker(documents)[..., 0])
    loss = (ranks - wanted).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
