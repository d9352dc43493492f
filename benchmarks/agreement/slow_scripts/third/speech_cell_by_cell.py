"""A recogniser whose recurrence is written out, frame by frame."""
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, mel=40, hidden=48, layers=2):
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(mel if n == 0 else hidden, hidden) for n in range(layers))
        self.hidden = hidden

    def forward(self, feats):
        batch = feats.shape[0]
        states = [(feats.new_zeros(batch, self.hidden), feats.new_zeros(batch, self.hidden)) for _ in self.cells]
        outputs = []
        for frame in feats.unbind(1):
            for n, cell in enumerate(self.cells):
                states[n] = cell(frame, states[n])  # slow: NPK801
                frame = states[n][0]
            outputs.append(frame)
        return torch.stack(outputs, 1)


class Recogniser(nn.Module):
    def __init__(self, vocab=30):
        super().__init__()
        self.encoder, self.ctc_lo = Encoder(), nn.Linear(48, vocab)

    def forward(self, feats, targets):
        logp = self.ctc_lo(self.encoder(feats)).log_softmax(-1)
        return -logp.mean(1).gather(1, targets).mean()


def run():
    net = Recogniser()
    optim = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    for _ in range(14):
        feats, targets = torch.randn(4, 120, 40), torch.randint(1, 30, (4, 8))
        loss = net(feats, targets)
        optim.zero_grad(set_to_none=True)
        loss.backward()  # slow: NPK801
        optim.step()


run()
