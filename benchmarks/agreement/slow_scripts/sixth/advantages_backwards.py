"""Policy gradients whose advantages are summed up from the end, one small tensor after the other."""
import torch
from torch import nn

device = torch.accelerator.current_accelerator() or torch.device("cpu")
policy, value = nn.Linear(24, 6).to(device), nn.Linear(24, 1).to(device)
optimizer = torch.optim.RMSprop([*policy.parameters(), *value.parameters()], lr=7e-4, foreach=True)


def advantages(rewards, values, done, gamma=0.99, decay=0.95):
    last, result = torch.zeros_like(rewards[0]), torch.empty_like(rewards)
    for t in range(len(rewards) - 1, -1, -1):  # slow: NPK801  # slow: NPK809
        after = values[t + 1] if t + 1 < len(rewards) else torch.zeros_like(last)  # slow: NPK801  # slow: NPK809
        delta = rewards[t] + gamma * after * (1 - done[t]) - values[t]  # slow: NPK801  # slow: NPK809
        last = delta + gamma * decay * (1 - done[t]) * last  # slow: NPK801  # slow: NPK809
        result[t] = last  # slow: NPK801  # slow: NPK809
    return result


for update in range(12):
    seen, rewards = torch.randn(160, 16, 24, device=device), torch.randn(160, 16, device=device)
    done = (torch.rand(160, 16, device=device) < 0.02).float()
    values = value(seen)[..., 0]
    with torch.no_grad():
        better = advantages(rewards, values, done)
    chosen = torch.distributions.Categorical(logits=policy(seen))
    loss = -(chosen.log_prob(chosen.sample()) * better).mean() + 0.5 * (values - better).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
