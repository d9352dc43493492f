import random

import torch
from torch import nn


class GridWorld:
    def __init__(self, size=24):
        self.size = size
        self.reset()

    def reset(self):
        self.walls = {(random.randrange(self.size), random.randrange(self.size)) for _ in range(60)}
        self.x = self.y = self.size // 2

    def step(self, action):
        dx, dy = [(0, 1), (0, -1), (1, 0), (-1, 0)][action]
        nx, ny = self.x + dx, self.y + dy
        if 0 <= nx < self.size and 0 <= ny < self.size and (nx, ny) not in self.walls:
            self.x, self.y = nx, ny
        return [1.0 if (i, j) in self.walls else 0.0 for i in range(self.size) for j in range(self.size)]  # slow: NPK801


def rollout(env, steps):
    observations, actions = [], []
    for _ in range(steps):
        a = random.randrange(4)
        observations.append(env.step(a))  # slow: NPK801
        actions.append(a)
    return torch.tensor(observations), torch.tensor(actions)


net = nn.Sequential(nn.Linear(576, 128), nn.ReLU(), nn.Linear(128, 4))
optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
envs = [GridWorld() for _ in range(4)]
for update in range(14):
    batch = [rollout(env, 64) for env in envs]
    obs = torch.cat([b[0] for b in batch])
    act = torch.cat([b[1] for b in batch])
    loss = nn.functional.cross_entropy(net(obs), act)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
