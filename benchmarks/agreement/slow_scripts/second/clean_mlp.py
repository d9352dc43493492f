import torch
from torch import nn


def main():
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 512))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    data = torch.randn(14 * 512, 512)
    for batch in data.split(512):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch), batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


main()
