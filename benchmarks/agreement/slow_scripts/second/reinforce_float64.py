import numpy as np
import torch
import torch.nn as nn

policy = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 4))
baseline = nn.Linear(64, 1)
torch.set_num_threads(2)
optimizer = torch.optim.Adam([*policy.parameters(), *baseline.parameters()], lr=1e-3, fused=True)


def returns_of(rewards, gamma=0.99):
    out = np.zeros_like(rewards)
    running = np.zeros(rewards.shape[0])
    for t in reversed(range(rewards.shape[1])):
        running = rewards[:, t] + gamma * running
        out[:, t] = running
    return out


mixing = torch.tensor(np.random.randn(512, 512) / 512)
for episode in range(14):
    states = torch.randn(32, 64, 64)
    logits = policy(states)
    dist = torch.distributions.Categorical(logits=logits)
    actions = dist.sample()
    rewards = returns_of(np.random.randn(32, 64))
    features = policy[:3](states) @ mixing.float()
    advantage = torch.from_numpy(rewards) - baseline(states).squeeze(-1)  # slow: NPK824
    kernel = torch.exp(-(advantage.reshape(-1, 1) - advantage.reshape(1, -1)) ** 2)  # slow: NPK824
    smooth = kernel @ kernel @ advantage.reshape(-1, 1) / kernel.sum()
    loss = -(dist.log_prob(actions) * smooth.reshape(32, 64).detach()).mean() + 1e-3 * advantage.pow(2).mean() + 1e-6 * features.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
