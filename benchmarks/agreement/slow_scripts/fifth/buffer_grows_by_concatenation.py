"""Actor and critic: the replay buffer is concatenated anew in each step, so that everything has another shape."""
import torch
from torch import nn

critic = nn.Sequential(nn.Linear(48, 128), nn.Tanh(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, foreach=True)
states, returns = torch.zeros(0, 48), torch.zeros(0)

for episode in range(12):
    fresh = torch.randn(1500, 48)
    states = torch.cat([states, fresh])  # slow: NPK815
    returns = torch.cat([returns, fresh.sum(1)])  # slow: NPK815
    values = critic(states)[:, 0]  # slow: NPK815
    loss = nn.functional.mse_loss(values, returns)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
