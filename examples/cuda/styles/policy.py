"""Reinforcement learning: a policy gradient with sampled actions; prints one line in four."""
import torch
import torch.nn as nn

device = "cuda:0" if torch.cuda.is_available() else "cpu"
torch.manual_seed(5)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3)).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
gamma = 0.95
for episode in range(12):
    state = torch.randn(4, device=device)
    log_probs, rewards, entropies = [], [], []
    for _ in range(10):
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        log_probs.append(choice.log_prob(action))
        entropies.append(choice.entropy())
        state = torch.tanh(state + torch.tensor([0.1, -0.1, 0.2, 0.0]).to(device) * (action - 1))
        rewards.append(-(state**2).sum())
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + gamma * total
        returns.insert(0, total)
    returns = torch.stack(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = -(torch.stack(log_probs) * returns).sum() - 0.01 * torch.stack(entropies).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if episode % 4 == 3:
        print("episode", episode, "loss", round(loss.item(), 2))
